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

from tests.test_training import store  # noqa: E402, F401  (a fixture)

from ncelm import run, workers  # noqa: E402
from ncelm.preparing import prepare  # noqa: E402
from ncelm.torch import exchange_kernels  # noqa: E402
from ncelm.training import train  # noqa: E402

OPTIONS = {"context": 2, "dim": 8, "noise_samples": 10, "batch_size": 40, "learning_rate": 0.2, "exchange_words": 160}
WORDS = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]


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
def test_two_workers_learn_what_one_does(store, tmp_path):  # noqa: F811
    alone = train(store, tmp_path / "one", epochs=4, threads=1, **OPTIONS)
    arguments = ["train", store.path, "--out", tmp_path / "two", "--epochs", "4", "--threads", "1", *WORDS, "--json"]
    code, out, err = finished(torchrun(arguments))
    assert code == 0, err
    (answer,) = out.splitlines()  # of one worker only
    together = json.loads(answer)
    assert together["workers"] == 2
    assert together["bytes_sent"] > 0
    assert together["valid_perplexity"] == pytest.approx(alone["valid_perplexity"], rel=0.05)  # of 400 sentences
    assert [line["epoch"] for line in run.Metrics(tmp_path / "two" / run.METRICS).read()] == [1, 2, 3, 4]


def test_other_workers_are_given_what_a_resumed_run_has(store, tmp_path, monkeypatch):  # noqa: F811
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
def test_a_killed_worker_costs_nothing_but_time(store, tmp_path):  # noqa: F811
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
    assert [line["epoch"] for line in run.Metrics(out / run.METRICS).read()] == [*range(1, 41)]
    alone = train(store, tmp_path / "one", epochs=40, threads=1, **OPTIONS)
    assert json.loads(answer)["valid_perplexity"] == pytest.approx(alone["valid_perplexity"], rel=0.05)


DIFFERENT = """
import os, sys
from ncelm.cli import main
first = os.environ["RANK"] == "0"
sys.exit(main([word if "|" not in word else word.split("|")[not first] for word in sys.argv[1:]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["token store", "set of options"])
def test_workers_that_do_not_fit_together_are_refused(store, tmp_path, what):  # noqa: F811
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


def test_learned_constants_are_for_one_process(store, tmp_path):  # noqa: F811
    command = ["train", store.path, "--out", tmp_path / "run", "--constants", "learned", "--threads", "1"]
    code, _, err = finished(torchrun(command))
    assert code != 0
    assert "ncelm: --constants learned goes with one process" in err


def bfloat16(numbers):
    """Rounded to bfloat16, by PyTorch; the bits of it."""
    return torch.from_numpy(numbers).to(torch.bfloat16).view(torch.uint16).numpy()


def test_news_are_what_was_learned_since_and_the_rest_goes_with_the_next():
    """Two workers, in one process: both agree on the sum of what they said, and neither loses what it learned since."""
    random = np.random.default_rng(0)
    shared = random.normal(size=(6, 5)).astype(np.float32)
    rows = np.array([4, 1])
    learned = [random.normal(size=(6, 5)).astype(np.float32) * 0.01 for _ in range(4)]
    now, former, news = [shared + learned[i] for i in range(2)], [shared.copy(), shared.copy()], []
    for i in range(2):
        news.append(np.zeros((2, 5), np.uint16))
        exchange_kernels.write_news(now[i], former[i], rows, news[i])
        np.testing.assert_array_equal(news[i], bfloat16((now[i] - former[i])[rows]))
        now[i] += learned[2 + i]  # while the message travels
    said = [torch.from_numpy(some).view(torch.bfloat16) for some in news]
    total = (said[0] + said[1]).view(torch.uint16).numpy()
    for i in range(2):
        exchange_kernels.take_news(now[i], former[i], rows, news[i], total, False)
        of_all = sum(some.float().numpy() for some in said)
        np.testing.assert_allclose(former[i][rows], shared[rows] + of_all, atol=1e-4)  # bfloat16 once more
        others = of_all - said[i].float().numpy()
        expected = (shared + learned[i] + learned[2 + i])[rows] + others
        np.testing.assert_allclose(now[i][rows], expected, atol=1e-4)
    np.testing.assert_array_equal(former[0], former[1])
    for i in range(2):  # the last word on everything: all have the same, and nothing is left to say
        exchange_kernels.take_news(now[i], former[i], rows, np.zeros_like(total), np.zeros_like(total), True)
    np.testing.assert_array_equal(now[0][rows], now[1][rows])
    untouched = [0, 2, 3, 5]
    np.testing.assert_array_equal(former[0][untouched], shared[untouched])


def test_changed_rows_are_found_exactly_or_at_a_glance():
    former = np.ones((4, 20), np.float32)
    now = former.copy()
    now[1] += 0.5  # learned
    now[2] += 1e-6  # what rounding has left
    now[3, 15] = 2.0  # beyond a glance
    answer = np.zeros(4, np.uint8)
    exchange_kernels.find_changed(now, former, 20, np.float32(0.0), answer)
    assert answer.tolist() == [0, 1, 1, 1]
    exchange_kernels.find_changed(now, former, 8, np.float32(1e-4), answer)
    assert answer.tolist() == [0, 1, 0, 0]
    now[0, 0] = np.nan
    for columns, tolerance in ((20, 0.0), (8, 1e-4)):
        exchange_kernels.find_changed(now, former, columns, np.float32(tolerance), answer)
        assert answer[0] == 1
