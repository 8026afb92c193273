"""Atomic files and folders, locks, and JSON files."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ncelm.errors import NcelmError
from ncelm.io.files import (
    atomic_folder,
    atomic_write,
    exclusive_lock,
    is_finite_number,
    parse_json,
    read_bytes,
    read_json,
    write_json,
)


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
    """Another process may have the same process id, in a container: the temporary name does not depend on it."""
    script = """
import os, signal, sys, time
from pathlib import Path
from ncelm.io.files import atomic_folder, atomic_write
with atomic_folder(Path(sys.argv[1], "a")) as folder, atomic_write(Path(sys.argv[1], "b")) as file:
    (folder / "half").write_text("half")
    file.write(b"half")
    file.flush()
    print("ready", flush=True)
    time.sleep(60)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    assert len(os.listdir(tmp_path)) == 4
    (tmp_path / ".new.mine.partial").mkdir()  # of another program
    for process, left in zip(processes, (2, 0), strict=True):
        process.kill()
        process.communicate()
        with atomic_write(tmp_path / "new"):
            pass
        assert len([name for name in os.listdir(tmp_path) if name.endswith(".ncelm-partial")]) == left
    assert sorted(os.listdir(tmp_path)) == [".new.mine.partial", "new"]


def test_files_in_a_temporary_folder(tmp_path):
    """The folder is locked while its files are written."""
    with atomic_folder(tmp_path / "new") as folder:
        write_json(folder / "a.json", {})
        with atomic_folder(folder / "below") as below:
            write_json(below / "b.json", {})
    assert sorted(os.listdir(tmp_path / "new")) == ["a.json", "below"]


def test_a_folder_that_cannot_be_created_is_an_error_of_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NcelmError, match="cannot write"), atomic_folder(tmp_path / "file" / "below"):
        pass


def test_json_files_have_a_checksum(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"format": "thing", "version": 1, "x": [1, 2.5, "é"]})
    assert read_json(path, "thing", "thing", 1) == {"format": "thing", "version": 1, "x": [1, 2.5, "é"]}
    text = path.read_text()
    for changed in (text.replace("2.5", "2.25"), text.replace('"x"', '"y"'), text.replace("checksum", "check")):
        path.write_text(changed)
        with pytest.raises(NcelmError, match="its checksum is wrong"):
            read_json(path, "thing", "thing", 1)
    path.write_text('{"format": "thing", "version": 1, "x": 3}')  # of a version without checksums
    assert read_json(path, "thing", "thing", 2, checksum_since=2)["x"] == 3


@pytest.mark.parametrize("content", ["[" * 100_000, "NaN", '{"a": Infinity}', "1" * 5000, "", "\ud800"])
def test_invalid_json_is_a_value_error(content):
    with pytest.raises(ValueError):  # noqa: PT011
        parse_json(content.encode("utf-8", "surrogatepass"))


def test_numbers_that_no_float_can_hold():
    assert all(map(is_finite_number, (0, -3, 2.5, 10**20)))
    assert not any(map(is_finite_number, (10**400, -(10**400), 1e308, float("inf"), float("nan"), True, None, "1")))


def test_pipes_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NcelmError, match="is a pipe or a device, not a file"):
        read_bytes(tmp_path / "pipe")
    with pytest.raises(NcelmError, match="is a pipe or a device, not a file"):
        read_bytes(Path("/dev/zero"))


def test_files_that_are_refused_are_closed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    before = psutil.Process().num_fds()
    for name in ("pipe", "folder", "nothing") * 10:
        with pytest.raises(NcelmError):
            read_bytes(tmp_path / name)
    assert psutil.Process().num_fds() == before


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
