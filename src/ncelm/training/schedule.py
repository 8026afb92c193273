"""Learning rates and early stopping: pure functions of the configuration and of validation perplexities."""

import math
from dataclasses import dataclass

import numpy as np

from ncelm.training.config import Halve, Linear, Optimizer, Schedule


@dataclass(frozen=True)
class ScheduleState:
    """The state of a schedule between epochs."""

    learning_rate: float  # before linear decay and warm-up
    last_perplexity: float | None = None
    best_perplexity: float | None = None
    epochs_without_improvement: int = 0


def total_steps(schedule: Schedule, steps_per_epoch: int) -> int:
    """Return the number of minibatches of a run without early stopping, at least 1."""
    return math.ceil(schedule.epochs * steps_per_epoch)


def learning_rates(
    schedule: Schedule, optimizer: Optimizer, learning_rate: float, updates_done: np.ndarray, steps_per_epoch: int
) -> np.ndarray:
    """Return the learning rate of each update, (n,) float64, given the number of updates before it, (n,)."""
    rates = np.full(len(updates_done), float(learning_rate))
    if isinstance(schedule, Linear):
        rates *= 1.0 - updates_done / total_steps(schedule, steps_per_epoch)
    # The first updates of adaptive optimizers have the size of the learning rate in every coordinate, whatever the
    # gradient is. Without warm-up a small model diverges.
    return rates * np.minimum((updates_done + 1) / getattr(optimizer, "warmup_steps", 1), 1.0)


def after_validation(
    state: ScheduleState, schedule: Schedule, perplexity: float, tolerance: float = 0.0
) -> tuple[ScheduleState, bool]:
    """Return the state after an epoch with this validation perplexity, and whether it is the lowest so far.

    An increase up to the relative `tolerance`, the sampling error of a small validation text, does not count for early
    stopping of a linear schedule: the last epochs, with low learning rates, usually improve the model.
    """
    threshold = 1.0 - schedule.min_improvement if isinstance(schedule, Halve) else 1.0 + tolerance
    learning_rate = state.learning_rate
    stalled = state.last_perplexity is not None and perplexity > state.last_perplexity * threshold
    if stalled and isinstance(schedule, Halve):  # the paper's rule, section 4
        learning_rate /= 2.0
    improved = state.best_perplexity is None or perplexity < state.best_perplexity * threshold
    best = state.best_perplexity is None or perplexity < state.best_perplexity
    following = ScheduleState(
        learning_rate=learning_rate,
        last_perplexity=perplexity,
        best_perplexity=perplexity if best else state.best_perplexity,
        epochs_without_improvement=0 if improved else state.epochs_without_improvement + 1,
    )
    return following, best


def is_finished(state: ScheduleState, schedule: Schedule, epochs_done: int) -> bool:
    """Return whether training ends after this number of epochs: all epochs are done, or early stopping applies."""
    if schedule.patience and state.epochs_without_improvement >= schedule.patience:
        return True
    return epochs_done >= schedule.epochs
