"""`ncelm export`."""

from typing import get_args

from ncelm.cli.export import FORMATS
from ncelm.models.vectors import VectorFormat


def test_export(answer, output, folder, tmp_path):
    assert answer(["export", folder / "run", "--to", "word2vec", tmp_path / "vectors"])["dim"] == 8
    assert "11 vectors of 8 dimensions" in output(["export", folder / "run", tmp_path / "glove", "--to", "glove"])
    assert (tmp_path / "vectors").read_text() == "11 8\n" + (tmp_path / "glove").read_text()


def test_all_formats_of_the_library():
    assert get_args(VectorFormat) == FORMATS


def test_existing_output(fails, folder, tmp_path):
    (tmp_path / "vectors").write_text("")
    fails(["export", folder / "run", tmp_path / "vectors"], "exists already")
