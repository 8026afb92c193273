"""Teams of threads, work items and the barrier."""

import numpy as np
import pytest
from numba import njit

from ncelm.errors import NcelmError
from ncelm.kernels.barrier import take_item, wait_for_all
from ncelm.kernels.records import SYNC_STRIDE
from ncelm.kernels.threads import Team


@njit(nogil=True)
def two_phases(thread, threads, sync, items, sums):
    """Take every item once; after the barrier each thread adds up what all of them have done."""
    item = take_item(sync, 0)
    while item < items.size:
        items[item] += item
        item = take_item(sync, 0)
    wait_for_all(sync, 0, threads)
    for i in range(items.size):
        sums[thread] += items[i]


@pytest.mark.parametrize("threads", [1, 2, 3, 8])  # also more than there are cores
def test_items_are_done_once_and_all_of_them_before_the_next_phase(threads):
    with Team(threads) as team:
        for _ in range(20):
            items, sums = np.zeros(1000, np.int64), np.zeros(threads, np.int64)
            team.run(two_phases, 2, items, sums)
            np.testing.assert_array_equal(items, np.arange(1000))
            assert (sums == 499_500).all()


def test_counters_of_phases_are_zero_at_the_start():
    seen = []
    with Team(1) as team:
        team.run(lambda thread, threads, sync: seen.append((thread, threads, sync.copy())), 3)
    ((thread, threads, sync),) = seen
    assert (thread, threads) == (0, 1)
    assert sync.tolist() == [0] * (3 * SYNC_STRIDE)


def test_one_thread_of_a_team_may_do_all_of_the_work():
    items, sums = np.zeros(1000, np.int64), np.zeros(3, np.int64)
    with Team(3) as team:
        team.run_alone(two_phases, 2, items, sums)
    np.testing.assert_array_equal(items, np.arange(1000))
    assert sums.tolist() == [499_500, 0, 0]


def test_an_exception_of_any_thread_reaches_the_caller():
    def fails(thread, threads, sync):
        if thread == 1:
            raise ValueError("thread 1")

    with Team(2) as team, pytest.raises(ValueError, match="thread 1"):
        team.run(fails, 1)


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_impossible_numbers_of_threads_are_errors(threads):
    with pytest.raises(NcelmError, match="give a whole number from 1 to 1,024"):
        Team(threads)


def test_a_team_has_a_thread_for_each_available_core():
    assert Team().threads >= 1


def test_blas_stays_on_the_calling_thread_while_a_team_is_open():
    from threadpoolctl import threadpool_info

    def blas_threads():
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    with Team(2):
        assert set(blas_threads()) == {1}
