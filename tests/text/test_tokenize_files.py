"""Worker processes: their death, Ctrl-C, output, and systems that cannot start them."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from ncelm.errors import NcelmError
from ncelm.text import tokenize_files
from ncelm.text.prepare import prepare


def names(folder):
    return {path.name for path in folder.iterdir()}


def semaphores():
    shm = Path("/dev/shm")
    return {path.name for path in shm.glob(f"sem.loky-{os.getpid()}-*")} if shm.exists() else set()


def test_scripts_need_no_main_guard(three):
    script = three / "script.py"
    script.write_text(
        "from ncelm.text.prepare import prepare\n"
        "store = prepare(out='store', train='train', valid='valid', test='test', workers=3)\n"
        "print('prepared', len(store.vocabulary))\n"
    )
    done = subprocess.run([sys.executable, script], cwd=three, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("prepared 8\n", "")


def test_modules_in_the_current_folder_are_not_imported(three):
    for name in ("argparse", "json", "pickle", "queue", "signal", "threading", "nltk", "loky"):
        (three / f"{name}.py").write_text("print('imported', __file__)\nraise SystemExit(1)\n")
    script = "from ncelm.text.prepare import prepare; prepare(out='store', train=['train'] * 3, workers=2)"
    command = [sys.executable, "-P", "-c", script]  # like the script `ncelm`, whose folder is not the current one
    done = subprocess.run(command, cwd=three, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_without_standard_output(three, monkeypatch, closed):
    with monkeypatch.context() as patch:
        patch.setattr(sys, closed, None)
        store = prepare(out=three / "store", train=[three / "train"] * 3, workers=2)
    assert store.split("train").n_sentences == 9


@pytest.mark.parametrize("error", [OSError(38, "Function not implemented"), ImportError("no semaphores")])
def test_without_semaphores(three, monkeypatch, error):
    import loky

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(loky, "ProcessPoolExecutor", fail)
    store = prepare(out=three / "store", train=[three / "train"] * 3, workers=2)
    assert store.split("train").n_sentences == 9


def test_workers_leave_nothing_behind(three, capfd, monkeypatch):
    """No output, processes, threads, semaphores, files or environment variables."""

    def tokenize(unit, number, counter_file):
        import os
        import sys

        print("text on standard output", flush=True)
        print("text on standard error", file=sys.stderr, flush=True)
        os.write(1, b"bytes on standard output")
        return original(unit, number, counter_file)

    original = tokenize_files._tokenize_in_worker
    monkeypatch.setattr(tokenize_files, "_tokenize_in_worker", tokenize)
    environment, threads = dict(os.environ), threading.active_count()
    handler = signal.getsignal(signal.SIGINT)
    before = names(three)
    for number in range(2):
        prepare(out=three / f"store{number}", train=[three / "train"] * 5, workers=2)
    assert capfd.readouterr() == ("", "")
    assert not [child for child in psutil.Process().children() if "popen_loky" in " ".join(child.cmdline())]
    assert threading.active_count() == threads
    assert semaphores() == set()
    assert names(three) == before | {"store0", "store1"}
    assert dict(os.environ) == environment
    assert signal.getsignal(signal.SIGINT) is handler


def test_in_another_thread(three):
    stores = []
    thread = threading.Thread(
        target=lambda: stores.append(prepare(out=three / "store", train=[three / "train"] * 3, workers=2))
    )
    thread.start()
    thread.join(timeout=60)
    assert stores[0].split("train").n_sentences == 9


def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def failed(*_):
    raise RuntimeError("oh\nno")


def stopped(*_):
    os._exit(0)


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        ("_tokenize_in_worker", killed, r"was killed .*\(SIGKILL\), .*memory: .*`workers` 1$"),
        ("_tokenize_in_worker", failed, r"stopped \(RuntimeError: oh no\): .*`workers` 1$"),
        ("_tokenize_in_worker", stopped, r"stopped \(exit code 0\)"),
        ("_start_worker", killed, r"was killed .*memory: .*`workers` 1$"),
        ("_start_worker", failed, r"stopped .*`workers` 1$"),
    ],
)
def test_a_dying_worker_is_an_error_of_one_line(three, monkeypatch, capfd, name, function, message):
    before = names(three)
    monkeypatch.setattr(tokenize_files, name, function)
    with pytest.raises(NcelmError, match=message) as caught:
        prepare(out=three / "store", train=[three / "train"] * 30, workers=2)
    assert "\n" not in str(caught.value)
    assert names(three) == before
    del caught  # its traceback refers to the executor
    gc.collect()
    deadline = time.monotonic() + 20
    while semaphores() and time.monotonic() < deadline:
        multiprocessing.active_children()  # joins the processes that have ended, as the next start of one does
        time.sleep(0.05)  # on a busy machine they take a moment to end
    assert semaphores() == set()
    if (name, function) != ("_start_worker", failed):  # which does not redirect the output
        assert capfd.readouterr() == ("", "")


# -- signals ---------------------------------------------------------------------------------------------------------

WAITING = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup ignores it
from ncelm.text import tokenize_files
from ncelm.text.prepare import prepare

def wait_or_work(unit, *arguments):
    from ncelm.text.tokenize_files import _tokenize_in_worker
    if unit.number == 0:
        time.sleep(1000)
    return _tokenize_in_worker(unit, *arguments)

tokenize_files._tokenize_in_worker = wait_or_work
try:
    prepare(out='store', train=['valid', 'train'], workers=2)
except KeyboardInterrupt:
    print('interrupted')
"""


@contextmanager
def waiting(folder):
    """Yield a process of which one worker has finished and the other waits forever; end all of them in the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = []
    try:
        deadline = time.monotonic() + 60
        while not list(folder.glob(".store.*/spills/1.words")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        children = psutil.Process(process.pid).children()
        assert len([child for child in children if "popen_loky" in " ".join(child.cmdline())]) == 2
        yield process, children
        _, alive = psutil.wait_procs(children, timeout=20)
        assert not alive
    finally:
        for one in (process, *children):
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.communicate()


@pytest.mark.parametrize("whole_group", [True, False], ids=["terminal", "kill"])
def test_ctrl_c_ends_all_processes(three, whole_group):
    """A terminal sends SIGINT to all processes of a command, `kill` to one."""
    with waiting(three) as (process, _):
        if whole_group:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (0, "interrupted\n", "")
        assert names(three) == {"train", "valid", "test"}


def test_workers_end_when_their_parent_is_killed(three):
    with waiting(three) as (process, _):
        process.kill()
        _, err = process.communicate(timeout=20)
        assert err == ""


def test_ctrl_c_while_processes_start(three, monkeypatch):
    """The interrupt takes effect when all workers are known, so that none is left behind."""
    original = os.pipe
    calls = []

    def pipe():
        calls.append(1)
        if len(calls) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return original()

    before = names(three)
    monkeypatch.setattr(os, "pipe", pipe)
    with pytest.raises(KeyboardInterrupt):
        prepare(out=three / "store", train=[three / "train"] * 3, workers=2)
    assert len(calls) >= 4
    assert names(three) == before
    assert not [child for child in psutil.Process().children() if "popen_loky" in " ".join(child.cmdline())]
