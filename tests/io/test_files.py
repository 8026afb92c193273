"""Atomic files and folders, locks, and JSON files."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from ncelm.errors import NcelmError
from ncelm.io.files import atomic_folder, atomic_write, exclusive_lock, read_json


def test_a_file_keeps_its_content_when_writing_fails(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(RuntimeError), atomic_write(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_is_complete_or_absent(tmp_path):
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "new") as folder:
        (folder / "half").write_text("half")
        raise RuntimeError
    assert os.listdir(tmp_path) == []
    with atomic_folder(tmp_path / "new") as folder:
        (folder / "whole").write_text("whole")
        assert not (tmp_path / "new").exists()
    assert os.listdir(tmp_path) == ["new"]
    with pytest.raises(NcelmError, match="exists already"), atomic_folder(tmp_path / "new"):
        pass


def test_folders_of_ended_processes_are_removed_and_those_of_running_ones_are_not(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / f".new.{ended.pid}.partial").mkdir()
    (tmp_path / f".new.{10**30}.partial").mkdir()  # no process id
    running = tmp_path / f".new.{os.getppid()}.partial"
    running.mkdir()
    (tmp_path / ".new.mine.partial").mkdir()
    with atomic_folder(tmp_path / "new"):
        pass
    assert sorted(os.listdir(tmp_path)) == sorted([".new.mine.partial", running.name, "new"])


def test_a_folder_that_cannot_be_created_is_an_error_of_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NcelmError, match="cannot write"), atomic_folder(tmp_path / "file" / "below"):
        pass


def test_json_of_another_kind_is_rejected(tmp_path):
    for content, message in (("[]", "not a thing"), ('{"format": "thing"}', "no version"), ("{", "not JSON")):
        (tmp_path / "a.json").write_text(content)
        with pytest.raises(NcelmError, match=message):
            read_json(tmp_path / "a.json", "thing", "thing", 1)


# -- locks -----------------------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from ncelm.io.files import exclusive_lock
with exclusive_lock(Path(sys.argv[1]), "busy"):
    print("locked", flush=True)
    time.sleep(60)
"""


def holder(path):
    """Return a process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "locked\n"
    return process


def test_a_lock_excludes_others_and_leaves_no_file(tmp_path):
    path = tmp_path / "lock"
    for _ in range(2):
        with (
            exclusive_lock(path, "busy"),
            pytest.raises(NcelmError, match=r"^the run is busy$"),
            exclusive_lock(path, "the run is busy"),
        ):
            pass
        assert os.listdir(tmp_path) == []
    with pytest.raises(RuntimeError), exclusive_lock(path, "busy"):
        raise RuntimeError
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_the_lock_of_a_killed_process_is_free(tmp_path, name):
    path = tmp_path / "lock"
    with holder(path) as process:
        with pytest.raises(NcelmError, match="busy"), exclusive_lock(path, "busy"):
            pass
        process.send_signal(getattr(signal, name))
        process.wait(timeout=20)
    with exclusive_lock(path, "busy"):
        pass
    assert os.listdir(tmp_path) == []


def test_many_processes_hold_a_lock_one_at_a_time(tmp_path):
    """Lock files that are removed at release never let two processes in."""
    script = """
import sys, time
from pathlib import Path
from ncelm.errors import NcelmError
from ncelm.io.files import exclusive_lock
folder = Path(sys.argv[1])
end = time.monotonic() + 1
while time.monotonic() < end:
    try:
        with exclusive_lock(folder / "lock", "busy"):
            (folder / "inside").mkdir()  # fails if another process is inside
            (folder / "inside").rmdir()
    except NcelmError:
        pass
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in processes:
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(tmp_path, monkeypatch, number):
    fcntl = pytest.importorskip("fcntl")

    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    began = time.monotonic()
    with exclusive_lock(tmp_path / "lock", "busy"):
        pass
    assert time.monotonic() - began < 5
    assert os.listdir(tmp_path) == []
