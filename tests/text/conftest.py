"""Fixtures of the tests of ncelm.text."""

import pytest


@pytest.fixture
def three(tmp_path):
    """A folder with the files train, valid and test of a few sentences."""
    (tmp_path / "train").write_text("the cat sat\nthe dog sat down\n\n<unk> the </s> <s> end\n")
    (tmp_path / "valid").write_text("the bird sat\n")
    (tmp_path / "test").write_text("a dog\n\n")
    return tmp_path
