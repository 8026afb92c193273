"""Checks of arguments: each function returns one argument of a public function, or raises an error that names it.

An argument of a wrong type raises `ArgumentTypeError`, which is also a TypeError, and a wrong value `ArgumentError`,
which is also a ValueError. The message is one line with the parameter in backticks: "`dim` is 1.5: give a whole number
from 1 to 300". The command line replaces the parameter by its flag.
"""

import errno
import math
import operator
import os
from collections.abc import Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncelm.errors import ArgumentError, ArgumentTypeError

INT64_MAX = 2**63 - 1  # the upper limit of integers that have no other: files and compiled code use 64 bits
SHOWN_CHARACTERS = 60  # of a value in a message


def check(name: str, value: object, valid: bool, expected: str) -> None:
    """Raise `ArgumentError` unless a value is valid."""
    if not valid:
        raise ArgumentError(_message(name, value, expected))


def check_type(name: str, value: object, valid: bool, expected: str) -> None:
    """Raise `ArgumentTypeError` unless the type of a value is valid."""
    if not valid:
        raise ArgumentTypeError(_message(name, value, expected))


def set_checked(part: object, field: str, value: object) -> None:
    """Set a field of a frozen dataclass to the value that its check has returned: an int for one of NumPy."""
    object.__setattr__(part, field, value)


def shown(value: object) -> str:
    """Return a value for a message: on one line, and not long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an int with thousands of digits, or an error in __repr__
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def _message(name: str, value: object, expected: str) -> str:
    return f"`{name}` is {shown(value)}: give {expected}"


# -- numbers ---------------------------------------------------------------------------------------------------------


def check_int(name: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """Return a whole number in this range. An integer of NumPy becomes an int; a bool is none."""
    expected = _int_range(low, high)
    check_type(name, value, not isinstance(value, bool), expected)  # bool is a subclass of int
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentTypeError(_message(name, value, expected)) from None
    check(name, value, (low is None or number >= low) and (high is None or number <= high), expected)
    check(name, value, abs(number) <= INT64_MAX, f"{expected}, below 2**63")
    return number


def check_ints(name: str, value: object, low: int | None = None) -> list[int]:
    """Return a list of whole numbers, none of them lower than `low`."""
    expected = "a list of whole numbers" + ("" if low is None else f", at least {low:,}")
    is_array = isinstance(value, np.ndarray) and value.dtype.kind in "iu"
    numbers = _list(name, value.tolist() if is_array else value, expected)  # type: ignore[attr-defined]
    try:
        if numbers and set(map(type, numbers)) == {int}:  # as fast as possible: a vocabulary may have a million counts
            check_int(name, min(numbers), low)
            check_int(name, max(numbers), low)
            return numbers
        return [check_int(name, number, low) for number in numbers]
    except (ArgumentError, ArgumentTypeError) as error:  # name the whole list
        raise type(error)(_message(name, value, expected)) from None


def check_ids(name: str, value: object) -> npt.NDArray[np.integer]:
    """Return an array of integers with one dimension."""
    expected = "a list or an array of whole numbers, with one dimension"
    try:
        numbers = np.asarray(value)
    except ValueError:  # lists of different lengths
        raise ArgumentError(_message(name, value, expected)) from None
    if numbers.size == 0:  # the type of [] is float64
        numbers = numbers.astype(np.int64)
    check_type(name, value, numbers.dtype.kind in "iu", expected)
    check(name, value, numbers.ndim == 1, expected)
    return numbers


def _int_range(low: int | None, high: int | None) -> str:
    if low is not None and high is not None:
        return f"a whole number from {low:,} to {high:,}"
    return "a whole number" if low is None else f"a whole number, at least {low:,}"


def check_float(
    name: str, value: object, low: float = -math.inf, high: float = math.inf, positive: bool = False
) -> float:
    """Return a finite number in this range, and not 0 if it must be positive, as a float."""
    expected = _float_range(low, high, positive)
    check_type(name, value, isinstance(value, Real) and not isinstance(value, bool), expected)
    try:
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:  # an int such as 10**400
        number = math.inf
    check(name, value, math.isfinite(number) and low <= number <= high and (number > 0 or not positive), expected)
    return number


def check_floats(name: str, value: object) -> list[float]:
    """Return a list of finite numbers, as floats."""
    expected = "a list of finite numbers"
    numbers = _list(name, value, expected)
    try:
        return [check_float(name, number) for number in numbers]
    except (ArgumentError, ArgumentTypeError) as error:
        raise type(error)(_message(name, value, expected)) from None


def _float_range(low: float, high: float, positive: bool) -> str:
    if positive:
        return "a positive number" + (f", at most {high:g}" if math.isfinite(high) else "")
    if math.isfinite(low) and math.isfinite(high):
        return f"a number from {low:g} to {high:g}"
    return f"a finite number, at least {low:g}" if math.isfinite(low) else "a finite number"


# -- other single values ---------------------------------------------------------------------------------------------


def check_bool(name: str, value: object) -> bool:
    """Return True or False. No other value stands for one of them."""
    check_type(name, value, isinstance(value, bool), "True or False")
    return bool(value)


def check_str(name: str, value: object, expected: str = "a string") -> str:
    """Return a string."""
    check_type(name, value, isinstance(value, str), expected)
    return str(value)


def check_choice(name: str, value: object, choices: Iterable[str]) -> Any:
    """Return one of the choices, which are strings. (Any: the parameter is a Literal.)"""
    choices = tuple(choices)
    expected = f"one of {', '.join(choices)}"
    check_type(name, value, isinstance(value, str), expected)
    check(name, value, value in choices, expected)
    return value


def check_callable(name: str, value: object) -> None:
    """Raise `ArgumentTypeError` unless a value is a function or None."""
    check_type(name, value, value is None or callable(value), "a function or None")


# -- paths and collections -------------------------------------------------------------------------------------------


def check_path(name: str, value: object, expected: str = "a path") -> Path:
    """Return a path that the file system can have; the file need not exist."""
    try:
        path = os.fspath(value)  # type: ignore[call-overload]
    except TypeError:
        raise ArgumentTypeError(_message(name, value, f"{expected}, as a str or a Path")) from None
    check_type(name, value, isinstance(path, str), f"{expected}, as a str or a Path")  # not bytes
    check(name, value, path != "", f"{expected} that is not empty")
    check(name, value, "\0" not in path, f"{expected} without a NUL character")
    try:
        os.lstat(path)
    except UnicodeEncodeError:
        raise ArgumentError(_message(name, value, f"{expected} that can be encoded as UTF-8")) from None
    except OSError as error:
        check(name, value, error.errno != errno.ENAMETOOLONG, f"{expected} that is shorter")
    return Path(path)


def check_paths(name: str, value: object) -> list[Path]:
    """Return a list of paths. A single path is an error: a str is a collection of letters."""
    paths = _list(name, value, "a list of paths")
    return [check_path(name, path, "a list of paths") for path in paths]


def check_strings(name: str, value: object) -> list[str]:
    """Return a list of strings. A single string is an error."""
    strings = _list(name, value, "a list of strings")
    if not set(map(type, strings)) <= {str}:  # as fast as possible: these may be all words of a text
        for string in strings:
            check_type(name, value, isinstance(string, str), "a list of strings")
    return strings


def check_iterable(name: str, value: object, expected: str) -> Iterable[Any]:
    """Return a collection or an iterator, which is not read. A string and a mapping are none."""
    check_type(name, value, not isinstance(value, str | bytes | Mapping), expected)
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:
        raise ArgumentTypeError(_message(name, value, expected)) from None
    return value  # type: ignore[return-value]


def _list(name: str, value: object, expected: str) -> list[Any]:
    return list(check_iterable(name, value, expected))
