"""Files that are written whole or not at all."""

import os
import subprocess
import sys

import pytest

from ncelm.errors import NcelmError
from ncelm.io.files import atomic_folder, atomic_write, read_json


def test_a_file_keeps_its_content_when_writing_fails(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(RuntimeError), atomic_write(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
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


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_makes_is_not(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / f".new.{ended.pid}.partial").mkdir()
    living = tmp_path / f".new.{os.getppid()}.partial"
    living.mkdir()
    (tmp_path / ".new.mine.partial").mkdir()
    with atomic_folder(tmp_path / "new"):
        pass
    assert sorted(os.listdir(tmp_path)) == sorted([".new.mine.partial", living.name, "new"])


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NcelmError, match="cannot write"), atomic_folder(tmp_path / "file" / "below"):
        pass


def test_json_of_another_kind_is_refused(tmp_path):
    for content, message in (("[]", "not a thing"), ('{"format": "thing"}', "no version"), ("{", "not JSON")):
        (tmp_path / "a.json").write_text(content)
        with pytest.raises(NcelmError, match=message):
            read_json(tmp_path / "a.json", "thing", "thing", 1)
