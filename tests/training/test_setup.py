"""Synchronisation intervals, minibatches and warm-up steps of several workers."""

import pytest

from ncelm.training.config import Adagrad, Sgd, TrainConfig
from ncelm.training.setup import sync_words, worker_batch_size, worker_optimizer


@pytest.mark.parametrize(
    ("tokens", "workers", "expected"),
    [(900_000, 2, 12_000), (900_000, 4, 5_223), (900_000, 8, 2_273), (60_000_000, 2, 60_000), (9_000, 2, 37)],
)
def test_the_interval_depends_on_text_and_workers(tokens, workers, expected):
    assert sync_words(tokens, workers) == expected


def test_a_worker_has_a_minibatch_in_each_interval():
    config = TrainConfig().with_changes(batch_size=1000)
    assert worker_batch_size(config, 900_000, 1) == worker_batch_size(config, 900_000, 2) == 1000
    assert worker_batch_size(config, 900_000, 8) == 2_273 // 8
    assert worker_batch_size(config.with_changes(sync_interval=80), 900_000, 8) == 10


@pytest.mark.parametrize(
    ("steps", "workers", "expected"), [(800, 1, 800), (800, 8, 100), (100, 8, 20), (20, 2, 20), (5, 8, 5)]
)
def test_steps_of_all_workers_are_warmup_steps(steps, workers, expected):
    assert worker_optimizer(Adagrad(warmup_steps=steps), workers).warmup_steps == expected


def test_sgd_has_no_warmup():
    assert worker_optimizer(Sgd(), 8) == Sgd()
