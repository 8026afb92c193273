"""Training with several workers under torchrun: quality, byte-identical ranks, failures, options that are rejected."""

import hashlib
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.distributed.launch import finish, torchrun

from ncelm.distributed import collective, membership
from ncelm.distributed.collective import SingleProcess
from ncelm.errors import NcelmError
from ncelm.io import array_files, run
from ncelm.io.metrics import Metrics
from ncelm.text.prepare import prepare
from ncelm.training.config import TrainConfig
from ncelm.training.loop import train
from ncelm.training.options import flag, to_flat

OPTIONS = {"context": 2, "dim": 8, "noise_samples": 10, "batch_size": 40, "learning_rate": 0.2, "sync_interval": 160}
OPTIONS = to_flat(TrainConfig().with_changes(**OPTIONS))
del OPTIONS["epochs"], OPTIONS["init_from"]  # the first differs between tests, the second has no flag for none
FLAGS = [
    flag(name) if value is True else f"--no-{flag(name)[2:]}" if value is False else f"{flag(name)}={value}"
    for name, value in OPTIONS.items()
]


@pytest.fixture(scope="module")
def store(cycle_store):
    return cycle_store


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="needs the extra `torch`")


# -- one process -----------------------------------------------------------------------------------------------------


def test_a_resumed_run_broadcasts_its_checkpoint(store, tmp_path, monkeypatch):
    """Parameters and accumulators."""
    train(store, tmp_path / "run", epochs=1, threads=1, **OPTIONS)
    broadcast = []

    class Recorder(SingleProcess):
        def broadcast_arrays(self, arrays):
            broadcast.append({name: array.copy() for name, array in arrays.items()})

    monkeypatch.setattr(collective, "current", lambda peer_timeout: Recorder())
    train(store, tmp_path / "run", epochs=1, threads=1, resume=True, **OPTIONS)
    checkpoint = load_file(tmp_path / "run" / run.CHECKPOINT)
    parameters, accumulators = broadcast
    assert {f"accumulator.{name}" for name in accumulators} | set(parameters) == set(checkpoint)
    for name, array in parameters.items():
        np.testing.assert_array_equal(array, checkpoint[name])
        np.testing.assert_array_equal(accumulators[name], checkpoint[f"accumulator.{name}"])


@pytest.mark.parametrize("options", [{"log_normalizers": "learned"}, {"optimizer": "adam"}], ids=str)
def test_options_for_one_process_are_rejected(store, tmp_path, monkeypatch, options):
    if "optimizer" in options:
        pytest.importorskip("torch", reason="needs the extra `torch`")

    class Two(SingleProcess):
        size = 2

    monkeypatch.setattr(collective, "current", lambda peer_timeout: Two())
    ((name, value),) = options.items()
    with pytest.raises(NcelmError, match=f"`{name}` {value} goes with one process, not with torchrun"):
        train(store, tmp_path / "run", threads=1, engine="torch" if name == "optimizer" else "compiled", **options)
    assert not (tmp_path / "run").exists()


# -- several processes -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_workers_reach_the_perplexity_of_one(torch, store, tmp_path):
    single = train(store, tmp_path / "one", epochs=4, threads=1, **OPTIONS)
    arguments = ["train", store.path, "--out", tmp_path / "two", "--epochs", "4", "--threads", "1", *FLAGS, "--json"]
    code, out, err = finish(torchrun(arguments))
    assert code == 0, err
    (line,) = out.splitlines()  # rank 0 alone prints
    result = json.loads(line)
    assert result["workers"] == 2
    assert result["bytes_sent"] > 0
    assert result["valid_perplexity"] == pytest.approx(single["valid_perplexity"], rel=0.05)  # of 400 sentences
    assert [record["epoch"] for record in Metrics(tmp_path / "two" / run.METRICS).read()] == [1, 2, 3, 4]


@pytest.mark.slow
def test_three_ranks_end_with_byte_identical_parameters(torch, store, tmp_path):
    runs = {"adagrad": {**OPTIONS, "epochs": 3}}
    sgd = {name: OPTIONS[name] for name in OPTIONS if name not in ("initial_accumulator", "warmup_steps")}
    runs["sgd"] = sgd | {"epochs": 3, "optimizer": "sgd", "learning_rate": 0.02}
    arguments = [store.path, tmp_path, json.dumps(runs)]
    code, _, err = finish(torchrun(arguments, script=(Path(__file__).parent / "train_ranks.py",), workers=3))
    assert code == 0, err
    for name, options in runs.items():
        ranks = [json.loads((tmp_path / f"{name}.{rank}.json").read_text()) for rank in range(3)]
        # accumulators have the same row means, but only those of rank 0 are in the checkpoint
        parameters = [{k: v for k, v in rank["digests"].items() if k.startswith("parameters.")} for rank in ranks]
        assert parameters[0] == parameters[1] == parameters[2]
        result, digests = ranks[0]["result"], ranks[0]["digests"]
        for measure in ("loss", "valid_perplexity"):
            assert {rank["result"][measure] for rank in ranks} == {result[measure]}
        assert result["workers"] == 3
        single = train(store, tmp_path / "single" / name, threads=1, **options)
        assert result["valid_perplexity"] == pytest.approx(single["valid_perplexity"], rel=0.1)
        checkpoint = load_file(tmp_path / name / run.CHECKPOINT)  # of the last epoch
        assert set(digests) == {key if "." in key else f"parameters.{key}" for key in checkpoint}
        for key, digest in digests.items():
            assert hashlib.sha256(checkpoint[key.removeprefix("parameters.")].tobytes()).hexdigest() == digest


@pytest.mark.slow
def test_training_continues_after_a_worker_was_killed(torch, store, tmp_path):
    out = tmp_path / "run"
    arguments = ["train", store.path, "--out", out, "--epochs", "40", "--threads", "1", *FLAGS, "--json"]
    process = torchrun([*arguments, "--checkpoint-minutes", "0"], "--max-restarts", "2")  # resumes without --resume
    deadline = time.monotonic() + 120
    while not (out / run.METRICS).exists() or not (out / run.METRICS).read_text():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    code, result, err = finish(process)
    assert code == 0, err
    assert "failed (exitcode: -9)" in err  # training was not finished when the worker was killed
    assert [record["epoch"] for record in Metrics(out / run.METRICS).read()] == [*range(1, 41)]
    single = train(store, tmp_path / "one", epochs=40, threads=1, **OPTIONS)
    assert json.loads(result)["valid_perplexity"] == pytest.approx(single["valid_perplexity"], rel=0.05)


@pytest.mark.slow
def test_sigterm_writes_a_checkpoint(torch, store, tmp_path):
    """torchrun forwards SIGTERM to the workers, and kills them after half a minute."""
    out = tmp_path / "run"
    process = torchrun(["train", store.path, "--out", out, "--threads", "1", *FLAGS, "--epochs", "10000"])
    deadline = time.monotonic() + 120
    while not (out / run.METRICS).exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, _, err = finish(process)
    introduction, *lines = [line for line in err.splitlines() if line.startswith("ncelm: ")]
    assert "(given: " in introduction  # the options that were chosen
    assert lines, err
    assert all("stopped by SIGTERM; a checkpoint is in" in line for line in lines), lines
    assert sorted(path.name for path in out.iterdir()) == sorted(
        [run.CHECKPOINT, run.CONFIG, run.METRICS, run.MODEL, run.VOCABULARY, membership.FILE]
    )
    header = array_files.read_header(out / run.CHECKPOINT)
    assert header["state"]["workers"] == 2
    assert header["checksum"] == array_files.checksum(load_file(out / run.CHECKPOINT), header)


# arguments "A|B" are A on rank 0 and B on the others
DIFFERENT = """
import json, os, sys
from ncelm.cli.main import main
first = os.environ["RANK"] == "0"
for command in json.loads(sys.argv[1]):
    code = main([word if "|" not in word else word.split("|")[not first] for word in command])
    sys.stdout.write(f"{code}\\n")  # in one piece, unlike print with PYTHONUNBUFFERED
"""


@pytest.mark.slow
def test_workers_with_different_arguments_are_rejected(torch, store, tmp_path):
    (tmp_path / "text").write_text("a b c d\n" * 50)
    other = prepare(train=tmp_path / "text", out=tmp_path / "other", boundary="sentence")
    (tmp_path / "different.py").write_text(DIFFERENT)
    options = ["--out", str(tmp_path / "run"), "--epochs", "1", "--threads", "1"]
    commands = [
        ["train", f"{store.path}|{other.path}", *options, "--dim=8"],
        ["train", str(store.path), *options, "--dim=8|--dim=9"],
    ]
    code, out, err = finish(torchrun([json.dumps(commands)], script=(tmp_path / "different.py",)))
    assert code == 0, err
    assert out.split() == ["2"] * 4  # both ranks, both commands
    assert err.count("ncelm: worker 1 has token store ") == 2
    assert err.count("ncelm: worker 1 has --dim 9, and worker 0 has 8: start all workers with the same --dim") == 2
    assert "Error" not in "".join(line for line in err.splitlines() if line.startswith("ncelm"))
    assert not (tmp_path / "run").exists()


def started(process, out):
    """Wait until a run has a checkpoint; return the processes of its workers by rank."""
    deadline = time.monotonic() + 120
    while not (out / run.CHECKPOINT).exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return {int(environment(child)["RANK"]): int(child) for child in children}


def environment(process):
    """Return the environment of another process."""
    entries = Path(f"/proc/{process}/environ").read_text().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


@pytest.mark.slow
@pytest.mark.serial
def test_a_silent_worker_ends_the_group_and_training_can_be_resumed_by_another_number(torch, store, tmp_path):
    """A halted worker is named within the time limit. Three workers continue in the middle of the epoch."""
    out = tmp_path / "run"
    arguments = ["train", store.path, "--out", out, "--threads", "1", *FLAGS, "--epochs", "3000"]
    process = torchrun([*arguments, "--checkpoint-minutes", "0", "--peer-timeout", "2"])
    workers = started(process, out)
    os.kill(workers[1], signal.SIGSTOP)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{workers[0]}").exists() and environment_exists(workers[0]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(workers[1], signal.SIGCONT)
    code, _, err = finish(process)
    assert code != 0
    host = os.uname().nodename
    assert [line for line in err.splitlines() if line.startswith(f"ncelm: worker 1 on {host} did not answer for ")], err
    epoch = array_files.read_header(out / run.CHECKPOINT)["state"]["epoch"]
    again = ["train", store.path, "--out", out, "--threads", "1", *FLAGS, "--epochs", "3000", "--resume"]
    process = torchrun(again, workers=3)
    deadline = time.monotonic() + 120
    while array_files.read_header(out / run.CHECKPOINT)["state"]["epoch"] <= epoch:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    finish(process)
    assert array_files.read_header(out / run.CHECKPOINT)["state"]["workers"] == 3


def environment_exists(process):
    """Return whether a process runs: a zombie has no environment."""
    try:
        return bool(Path(f"/proc/{process}/environ").read_bytes())
    except OSError:
        return False


# a worker whose parameters become infinite in the second epoch
BROKEN = """
import os, sys
from ncelm.cli.main import main
from ncelm.distributed.process_group import ProcessGroup
register = ProcessGroup.register
def break_later(self, parameters, *rest):
    register(self, parameters, *rest)
    def synchronize(self, full=False, synchronize=ProcessGroup.synchronize, count=[0]):
        count[0] += 1
        if self.rank == 1 and count[0] == 60:
            parameters["target_vectors"][3, 2] = float("inf")
        return synchronize(self, full)
    ProcessGroup.synchronize = synchronize
ProcessGroup.register = break_later
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.serial
def test_a_number_that_is_not_finite_ends_training_on_all_workers(torch, store, tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    out = tmp_path / "run"
    arguments = ["train", store.path, "--out", out, "--threads", "1", *FLAGS, "--epochs", "40"]
    code, _, err = finish(torchrun(arguments, "--max-restarts", "2", script=(tmp_path / "broken.py",)))
    assert code != 0
    lines = [line for line in err.splitlines() if line.startswith("ncelm: training diverged")]
    assert lines, err
    assert all("worker 1 has parameters that are not finite; the best model before that" in line for line in lines)
    last = Metrics(out / run.METRICS).read()[-1]
    assert last["diverged"] == "worker 1 has parameters that are not finite"
    assert all(np.isfinite(array).all() for array in load_file(out / run.MODEL).values())


@pytest.mark.slow
@pytest.mark.serial
def test_sigterm_of_one_worker_ends_all_with_143(torch, store, tmp_path):
    out = tmp_path / "run"
    process = torchrun(["train", store.path, "--out", out, "--threads", "1", *FLAGS, "--epochs", "10000"])
    workers = started(process, out)
    os.kill(workers[1], signal.SIGTERM)
    _, _, err = finish(process)
    lines = [line for line in err.splitlines() if line.startswith("ncelm: stopped")]
    assert len(lines) == 2, err
    assert all(line.startswith("ncelm: stopped by SIGTERM; a checkpoint is in") for line in lines)
    assert "exitcode: 143" in err or "exitcode  : 143" in err


# a worker on which the second validation, of the model after the first epoch, is {FAULT}
FAULTY = """
import os, signal, sys
from ncelm.cli.main import main
from ncelm.training import loop
evaluate, calls = loop.evaluate_sample, []
def faulty(*arguments):
    calls.append(arguments)
    if len(calls) == 3 and os.environ["RANK"] == "1":  # the first call compiles
        {FAULT}
    return evaluate(*arguments)
loop.evaluate_sample = faulty
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.serial
def test_sigterm_of_one_worker_during_validation(torch, store, tmp_path):
    """All stop with a checkpoint after the last minibatch of the epoch, and the resumed run validates."""
    script, out = tmp_path / "faulty.py", tmp_path / "run"
    script.write_text(FAULTY.replace("{FAULT}", "os.kill(os.getpid(), signal.SIGTERM)"))
    arguments = ["train", store.path, "--out", out, "--threads", "1", *FLAGS, "--epochs", "3"]
    code, _, err = finish(torchrun(arguments, script=(script,)))
    assert code != 0
    lines = [line for line in err.splitlines() if line.startswith("ncelm: stopped")]
    assert lines, err  # torchrun may kill the other worker before it prints its line
    assert all(line.startswith("ncelm: stopped by SIGTERM; a checkpoint is in") for line in lines)
    state = array_files.read_header(out / run.CHECKPOINT)["state"]
    assert (state["epoch"], state["step"] > 0) == (1, True)
    code, _, err = finish(torchrun([*arguments, "--resume"]))
    assert code == 0, err
    assert [record["epoch"] for record in Metrics(out / run.METRICS).read()] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.serial
def test_an_error_of_one_worker_during_validation_ends_all(torch, store, tmp_path):
    script, out = tmp_path / "faulty.py", tmp_path / "run"
    script.write_text(FAULTY.replace("{FAULT}", "raise __import__('ncelm').NcelmError('the disk is full')"))
    code, _, err = finish(torchrun(["train", store.path, "--out", out, "--threads", "1", *FLAGS], script=(script,)))
    assert code != 0
    lines = {"ncelm: the disk is full", "ncelm: worker 1 failed: the disk is full"}
    assert lines & set(err.splitlines()), err  # when one worker has ended, torchrun may kill the other one
    assert [record["epoch"] for record in Metrics(out / run.METRICS).read()] == [1]


# of three epochs, the second has the lowest perplexity on the sample, and on all of the text
SELECTED = """
import hashlib, math, sys
from pathlib import Path
import numpy as np
from ncelm.distributed import collective
from ncelm.models.evaluate import EvaluationSums
from ncelm.training import loop
store, out, valid_words = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
of_sample, of_text, digests = iter([9.0, 9.0, 5.0, 8.0]), iter([8.0, 5.0]), []
def evaluate(model, store, name, words, *rest):
    digests.append(hashlib.sha256(b"".join(array.tobytes() for array in model.arrays().values())).hexdigest())
    perplexity = next(of_text if words == valid_words else of_sample)
    return EvaluationSums.from_array(np.array([words, -words * math.log(perplexity), 0.0, 0.0]))
loop.evaluate_sample = evaluate
options = {"context": 2, "dim": 8, "noise_samples": 10, "batch_size": 40, "sync_interval": 160}
result = loop.train(store, out, epochs=3, patience=2, validation_words=100, threads=1, **options)
rank = collective.current().rank
(out.parent / f"{rank}.txt").write_text(" ".join([str(result["best_epoch"]), *digests]))
"""


@pytest.mark.slow
def test_all_workers_evaluate_the_selected_model(torch, store, tmp_path):
    """It is in the run directory of rank 0, which broadcasts it."""
    (tmp_path / "selected.py").write_text(SELECTED)
    arguments = [store.path, tmp_path / "run", store.split("valid").tokens]
    code, _, err = finish(torchrun(arguments, script=(tmp_path / "selected.py",)))
    assert code == 0, err
    first, second = ((tmp_path / f"{rank}.txt").read_text().split() for rank in range(2))
    assert first == second
    best, _, _, second_epoch, third_epoch, last, selected = first
    assert (best, last, selected) == ("2", third_epoch, second_epoch)
    assert second_epoch != third_epoch
