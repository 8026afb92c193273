"""All-reduce of losses."""

import numpy as np

from ncelm.distributed.collective import SingleProcess
from ncelm.training.reduction import LossReduction


def test_losses_are_returned_with_their_steps():
    reduction = LossReduction(SingleProcess())
    reduction.add(np.array([1.0, 2.0]))
    reduction.add(np.array([3.0]))
    reduction.start(step=10, stop=0.0, save=True)
    reduction.add(np.array([4.0]))
    reduction.start(step=11, stop=1.0, save=False)
    first, second = reduction.finish(keep=0)
    assert (first.first_step, first.losses.tolist(), first.stop, first.save) == (7, [1.0, 2.0, 3.0], 0.0, True)
    assert (second.first_step, second.losses.tolist(), second.stop, second.save) == (10, [4.0], 1.0, False)
    assert list(reduction.finish(keep=0)) == []


def test_the_last_reductions_may_stay_in_flight():
    reduction = LossReduction(SingleProcess())
    for step in range(1, 4):
        reduction.add(np.array([float(step)]))
        reduction.start(step, stop=0.0, save=False)
    assert [reduced.first_step for reduced in reduction.finish(keep=1)] == [0, 1]
    assert [reduced.first_step for reduced in reduction.finish(keep=0)] == [2]


def test_a_reduction_without_losses_carries_requests_only():
    reduction = LossReduction(SingleProcess())
    reduction.start(step=5, stop=1.0, save=False)
    (reduced,) = reduction.finish(keep=0)
    assert reduced.losses.size == 0
    assert reduced.stop
