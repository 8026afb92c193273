"""Fixtures that several test files share."""

from pathlib import Path

import pytest


@pytest.fixture
def shared_data() -> Path:
    """The folder of corpora kept beside the project; a test that needs it is skipped where it is absent."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the corpora in shared/data, beside the project's folder")
    return folder
