"""Optimizers as types: how a row of a table and a single value are updated.

An optimizer is a NamedTuple of its hyper-parameters, its state for a parameter a NamedTuple of arrays with the shape of
the parameter. To add one: both types, the functions below marked with `implements`, `STATES`, and its configuration in
ncelm.training.config. Gradients are those of an objective that is maximised.
"""

from typing import Any, NamedTuple

import numpy as np

from ncelm.kernels.compile import generic, implements
from ncelm.kernels.simd import add_rows, prefetch

ONE = np.float32(1.0)


class Sgd(NamedTuple):
    """Plain stochastic gradient descent."""


class Adagrad(NamedTuple):
    """Adagrad (Duchi, Hazan & Singer 2011)."""


class AdagradState(NamedTuple):
    """Sums of squared gradients."""

    accumulator: np.ndarray


class Adam(NamedTuple):
    """Adam (Kingma & Ba 2015), for the rows that a minibatch has a gradient for.

    Bias correction is part of the learning rate: `bias_correction`.
    """

    beta1: np.float32
    beta2: np.float32
    epsilon: np.float32


class AdamState(NamedTuple):
    """Moving averages of gradients and of squared gradients."""

    momentum: np.ndarray
    accumulator: np.ndarray


# The state of each optimizer for one parameter.
STATES: dict[type, type[Any] | None] = {Sgd: None, Adagrad: AdagradState, Adam: AdamState}


def bias_correction(optimizer: Any, updates: np.ndarray) -> np.ndarray:
    """The factor of the learning rate of update t, (n,): √(1 − β₂ᵗ) / (1 − β₁ᵗ) for Adam, otherwise 1."""
    if not isinstance(optimizer, Adam):
        return np.ones(len(updates))
    return np.sqrt(1.0 - float(optimizer.beta2) ** updates) / (1.0 - float(optimizer.beta1) ** updates)


@generic
def update_row(optimizer, table, state, index, weight, gradient, rate, decay):
    """Update table[index] by the gradient weight · gradient − decay · row.

    `weight` is float32, because another type would make the arithmetic float64.
    """


@implements(update_row, Sgd)
def _sgd_row(optimizer, table, state, index, weight, gradient, rate, decay):
    values = table[index]
    for t in range(values.size):
        values[t] += rate * (weight * gradient[t] - decay * values[t])


@implements(update_row, Adagrad)
def _adagrad_row(optimizer, table, state, index, weight, gradient, rate, decay):
    values, sums = table[index], state.accumulator[index]
    for t in range(values.size):
        g = weight * gradient[t] - decay * values[t]
        sums[t] += g * g
        values[t] += rate * g / (np.sqrt(sums[t]) + np.float32(1e-8))


@implements(update_row, Adam)
def _adam_row(optimizer, table, state, index, weight, gradient, rate, decay):
    values, mean, square = table[index], state.momentum[index], state.accumulator[index]
    for t in range(values.size):
        g = weight * gradient[t] - decay * values[t]
        mean[t] += (ONE - optimizer.beta1) * (g - mean[t])
        change = (ONE - optimizer.beta2) * (g * g - square[t])
        square[t] = max(square[t] + change, (ONE - optimizer.beta2) * g * g)  # β₂ close to 0: rounding could give 0
        values[t] += rate * mean[t] / (np.sqrt(square[t]) + optimizer.epsilon)


@generic
def update_value(optimizer, values, state, index, gradient, rate):
    """Update values[index], a bias or a log-normalizer: there is no weight decay for these."""


@implements(update_value, Sgd)
def _sgd_value(optimizer, values, state, index, gradient, rate):
    values[index] += rate * gradient


@implements(update_value, Adagrad)
def _adagrad_value(optimizer, values, state, index, gradient, rate):
    sums = state.accumulator
    sums[index] += gradient * gradient
    values[index] += rate * gradient / (np.sqrt(sums[index]) + np.float32(1e-8))


@implements(update_value, Adam)
def _adam_value(optimizer, values, state, index, gradient, rate):
    mean, square = state.momentum, state.accumulator
    mean[index] += (ONE - optimizer.beta1) * (gradient - mean[index])
    change = (ONE - optimizer.beta2) * (gradient * gradient - square[index])
    square[index] = max(square[index] + change, (ONE - optimizer.beta2) * gradient * gradient)
    values[index] += rate * mean[index] / (np.sqrt(square[index]) + optimizer.epsilon)


@generic
def update_row_by_sum(optimizer, table, state, index, weights, vectors, rows, gradient, rate, decay):
    """Update table[index] by Σ_j weights[j] vectors[rows[j]]. `gradient` (d,) is scratch, and so are the weights."""


@implements(update_row_by_sum, Sgd)
def _sgd_sum(optimizer, table, state, index, weights, vectors, rows, gradient, rate, decay):
    if decay == 0.0:  # the sum is added to the row itself
        for p in range(rows.size):
            weights[p] *= rate
        add_rows(weights, vectors, rows, table[index], True)
    else:
        add_rows(weights, vectors, rows, gradient, False)
        update_row(optimizer, table, state, index, ONE, gradient, rate, decay)


@implements(update_row_by_sum, Adagrad, Adam)
def _sum_then_update(optimizer, table, state, index, weights, vectors, rows, gradient, rate, decay):
    add_rows(weights, vectors, rows, gradient, False)
    update_row(optimizer, table, state, index, ONE, gradient, rate, decay)


@generic
def prefetch_state(state, index):
    """Prefetch the optimizer's state for one row or value."""


@implements(prefetch_state, type(None))
def _no_state(state, index):
    pass


@implements(prefetch_state, AdagradState)
def _prefetch_adagrad(state, index):
    prefetch(state.accumulator, index)


@implements(prefetch_state, AdamState)
def _prefetch_adam(state, index):
    prefetch(state.momentum, index)
    prefetch(state.accumulator, index)
