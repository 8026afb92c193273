"""Synchronisation intervals, minibatches and warm-up steps of several workers."""

from dataclasses import replace

import pytest

from ncelm.distributed.collective import SingleProcess
from ncelm.kernels.records import Order
from ncelm.text.store import part_of
from ncelm.training.config import Adagrad, Sgd, TrainConfig
from ncelm.training.setup import Setup, sync_words, worker_batch_size, worker_optimizer


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


class TwoWorkers(SingleProcess):
    """The collective of worker 1 of two, without the other one."""

    rank, size = 1, 2

    def gather(self, text):
        return [text, text]


def test_under_torchrun_the_order_of_an_epoch_is_in_blocks_of_the_whole_text(cycle_store, tmp_path, monkeypatch):
    train = cycle_store.split("train")
    config = TrainConfig().with_changes(seed=7, context=2, dim=8, noise_samples=5, batch_size=40)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert Setup.create(cycle_store, tmp_path / "run", config, (), SingleProcess()).order == Order(7, 0, 1)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert Setup.create(cycle_store, tmp_path / "run", config, (), SingleProcess()).order == Order(7, 0, 2)
    assert 2 <= train.tokens / 1024 < 4
    part = part_of(train, cycle_store.path, 1, 2)
    store = replace(cycle_store, splits=cycle_store.splits | {"train": part})
    assert Setup.create(store, tmp_path / "run", config, (), TwoWorkers()).order == Order(7, train.tokens // 2, 2)
