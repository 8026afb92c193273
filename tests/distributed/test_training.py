"""Several workers under torchrun: the same quality as one, a killed worker, and those that do not fit together."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from ncelm.distributed import collective as workers  # noqa: E402
from ncelm.distributed import process_group as distributed  # noqa: E402
from ncelm.io import run  # noqa: E402
from ncelm.io.metrics import Metrics  # noqa: E402
from ncelm.kernels import exchange as exchange_kernels  # noqa: E402
from ncelm.text.prepare import prepare  # noqa: E402
from ncelm.training.loop import train  # noqa: E402

OPTIONS = {"context": 2, "dim": 8, "noise_samples": 10, "batch_size": 40, "learning_rate": 0.2, "sync_interval": 160}
WORDS = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]


@pytest.fixture(scope="module")
def store(cycle_store):
    return cycle_store


def torchrun(arguments, *options, script=("-m", "ncelm")):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options]
    return subprocess.Popen(
        [*command, *script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finished(process):
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@pytest.mark.slow
def test_two_workers_learn_what_one_does(store, tmp_path):
    alone = train(store, tmp_path / "one", epochs=4, threads=1, **OPTIONS)
    arguments = ["train", store.path, "--out", tmp_path / "two", "--epochs", "4", "--threads", "1", *WORDS, "--json"]
    code, out, err = finished(torchrun(arguments))
    assert code == 0, err
    (answer,) = out.splitlines()  # of one worker only
    together = json.loads(answer)
    assert together["workers"] == 2
    assert together["bytes_sent"] > 0
    assert together["valid_perplexity"] == pytest.approx(alone["valid_perplexity"], rel=0.05)  # of 400 sentences
    assert [line["epoch"] for line in Metrics(tmp_path / "two" / run.METRICS).read()] == [1, 2, 3, 4]


def test_other_workers_are_given_what_a_resumed_run_has(store, tmp_path, monkeypatch):
    """Parameters and Adagrad's sums of squares, as they are in the checkpoint."""
    train(store, tmp_path / "run", epochs=1, threads=1, **OPTIONS)
    given = []

    class Watched(workers.Alone):
        def hand_out(self, arrays):
            given.append({name: array.copy() for name, array in arrays.items()})

    monkeypatch.setattr(workers, "of_this_run", Watched)
    train(store, tmp_path / "run", epochs=1, threads=1, resume=True, **OPTIONS)
    checkpoint = load_file(tmp_path / "run" / run.CHECKPOINT)
    values, squares = given
    assert {f"squares.{name}" for name in squares} | set(values) == set(checkpoint)
    for name, value in values.items():
        np.testing.assert_array_equal(value, checkpoint[name])
        np.testing.assert_array_equal(squares[name], checkpoint[f"squares.{name}"])


@pytest.mark.slow
def test_a_killed_worker_costs_nothing_but_time(store, tmp_path):
    out = tmp_path / "run"
    arguments = ["train", store.path, "--out", out, "--epochs", "40", "--threads", "1", *WORDS, "--json"]
    process = torchrun([*arguments, "--checkpoint-minutes", "0"], "--max-restarts", "2")  # resumed unasked
    deadline = time.monotonic() + 120
    while not (out / run.METRICS).exists() or not (out / run.METRICS).read_text():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    code, answer, err = finished(process)
    assert code == 0, err
    assert "failed (exitcode: -9)" in err  # it was killed while it worked
    assert [line["epoch"] for line in Metrics(out / run.METRICS).read()] == [*range(1, 41)]
    alone = train(store, tmp_path / "one", epochs=40, threads=1, **OPTIONS)
    assert json.loads(answer)["valid_perplexity"] == pytest.approx(alone["valid_perplexity"], rel=0.05)


DIFFERENT = """
import os, sys
from ncelm.cli.main import main  # noqa: E402
first = os.environ["RANK"] == "0"
sys.exit(main([word if "|" not in word else word.split("|")[not first] for word in sys.argv[1:]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["token store", "set of options"])
def test_workers_that_do_not_fit_together_are_refused(store, tmp_path, what):
    (tmp_path / "text").write_text("a b c d\n" * 50)
    other = prepare(train=tmp_path / "text", out=tmp_path / "other", boundary="sentence")
    (tmp_path / "different.py").write_text(DIFFERENT)
    where = f"{store.path}|{other.path}" if what == "token store" else store.path
    dim = "--dim=8|--dim=9" if what == "set of options" else "--dim=8"
    arguments = ["train", where, "--out", tmp_path / "run", "--epochs", "1", "--threads", "1", dim]
    code, _, err = finished(torchrun(arguments, script=(tmp_path / "different.py",)))
    assert code != 0
    assert f"ncelm: worker 1 has another {what} than worker 0: give all workers the same" in err
    assert "Error" not in "".join(line for line in err.splitlines() if line.startswith("ncelm"))
    assert not (tmp_path / "run").exists()


def test_learned_log_normalizers_are_for_one_process(store, tmp_path):
    command = ["train", store.path, "--out", tmp_path / "run", "--log-normalizers", "learned", "--threads", "1"]
    code, _, err = finished(torchrun(command))
    assert code != 0
    assert "ncelm: --log-normalizers learned goes with one process" in err


def table(values, squares):
    rings = [distributed._Ring(np.arange(2), 1), distributed._Ring(np.arange(2, len(values)), 2)]
    return distributed._Table(values, squares, rings)


def test_news_are_what_was_learned_since_and_the_rest_goes_with_the_next():
    """Two workers in one process: neither loses what it learned, and in the end both have what both have learned."""
    random = np.random.default_rng(0)
    start = random.normal(size=(6, 5)).astype(np.float32)
    squares = np.abs(random.normal(size=(6, 5))).astype(np.float32)
    workers = [table(start.copy(), squares.copy()) for _ in range(2)]
    messages = [np.zeros(worker.size(worker.most), np.uint8) for worker in workers]
    learned, grown = np.zeros_like(start), np.zeros(6, np.float32)
    for turn in range(6):
        told = [worker.write(message) for worker, message in zip(workers, messages, strict=True)]
        for worker in workers:
            if turn < 3:  # while the messages travel
                change = random.normal(size=start.shape).astype(np.float32)
                worker.now += change
                worker.squares += change**2
                learned, grown = learned + change, grown + (change**2).mean(1)
        workers[0].take(messages[1], told[1])
        workers[1].take(messages[0], told[0])
        assert all(n <= 4 for n in told)  # two always, two of the other four
    assert told == [0, 0]  # nothing is left that is worth telling
    for worker in workers:
        np.testing.assert_allclose(worker.now, start + learned, rtol=0.03, atol=0.03)
        np.testing.assert_allclose(worker.squares.mean(1), squares.mean(1) + grown, rtol=1e-5)


def test_a_change_is_told_by_a_byte_for_each_number():
    former = np.zeros((3, 4), np.float32)
    now = np.array([[0, 0, 0, 0], [1.27, -0.5, 0.004, 0.006], [np.inf, 0, 0, 0]], np.float32)
    rows, scales, news = np.array([1, 0, 2], np.int32), np.ones(3, np.float32), np.zeros((3, 4), np.uint8)
    exchange_kernels.write_news(now, former, rows, scales, news)
    np.testing.assert_array_equal(news[:2].view(np.int8), [[127, -50, 0, 1], [0, 0, 0, 0]])
    assert scales[:2] == pytest.approx([0.01, 0.0])
    np.testing.assert_allclose(former[1], [1.27, -0.5, 0.0, 0.01])  # as told, not as it is
    assert np.isnan(scales[2])
    others, theirs = np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32)
    exchange_kernels.take_news(others, theirs, rows, scales, news)
    np.testing.assert_array_equal(others[:2], former[:2])
    np.testing.assert_array_equal(theirs[:2], former[:2])
    assert np.isnan(others[2]).all()  # all must hear of it


def test_sums_of_squares_grow_in_proportion():
    squares = np.array([[1.0, 3.0], [0.0, 0.0]], np.float32)
    told = squares.mean(1)
    rows = np.array([0, 1], np.int32)
    exchange_kernels.take_growth(squares, told, rows, np.array([1.0, 0.5], np.float32))
    np.testing.assert_allclose(squares, [[1.5, 4.5], [0.5, 0.5]])
    squares[0] += 2.0  # of one's own
    growth = np.zeros(2, np.float32)
    exchange_kernels.write_growth(squares, told, rows, growth)
    np.testing.assert_allclose(growth, [2.0, 0.0])


def test_changed_rows_are_picked_in_turn():
    former = np.ones((5, 20), np.float32)
    now = former.copy()
    now[[1, 2, 4]] += 0.5  # learned
    now[3] += 1e-6  # hardly
    ring, rows = np.arange(5, dtype=np.int32), np.zeros(2, np.int32)
    pick = exchange_kernels.pick_changed
    start, found = pick(now, former, ring, 0, 5, 8, np.float32(0.01), rows)
    assert (start, found, rows.tolist()) == (3, 2, [1, 2])
    start, found = pick(now, former, ring, start, 3, 8, np.float32(0.01), rows)
    assert (start, found, rows[0]) == (1, 1, 4)  # after three looks: 3, 4, 0
    now[0, 0] = np.nan
    assert pick(now, former, ring, 0, 1, 8, np.float32(0.01), rows) == (1, 1)
