"""Checks of numbers that modules and optimizers are given; the errors are those of PyTorch, `ValueError`."""

import math


def at_least_one(name: str, value: int) -> int:
    """Return a number that must be 1 or more."""
    if value < 1:
        raise ValueError(f"{name} is {value}: give at least 1")
    return int(value)


def positive(name: str, value: float) -> float:
    """Return a number that must be positive and finite."""
    if not 0.0 < value < math.inf:
        raise ValueError(f"{name} is {value}: give a positive number")
    return float(value)


def nonnegative(name: str, value: float) -> float:
    """Return a number that must be finite and not negative."""
    if not 0.0 <= value < math.inf:
        raise ValueError(f"{name} is {value}: give a number that is not negative")
    return float(value)


def fraction(name: str, value: float) -> float:
    """Return a number that must be from 0 to 1."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} is {value}: give a number from 0 to 1")
    return float(value)
