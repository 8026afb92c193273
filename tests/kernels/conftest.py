"""Stores that the tests of the kernels train on."""

import numpy as np
import pytest

from ncelm.text.prepare import prepare


@pytest.fixture(scope="session")
def stores(tmp_path_factory):
    """Texts of 12 words, as one stream and in sentences, and one with rare words only."""
    folder, random = tmp_path_factory.mktemp("kernels"), np.random.default_rng(5)
    words = [f"w{i}" for i in range(12)]
    (folder / "text").write_text(
        "\n".join(" ".join(random.choice(words, random.integers(1, 7))) for _ in range(40)) + "\n"
    )
    (folder / "rare").write_text("\n".join(" ".join(f"w{i}" for i in random.integers(5000, size=6)) for _ in range(40)))
    stores = {
        boundary: prepare(train=folder / "text", out=folder / boundary, boundary=boundary)
        for boundary in ("stream", "sentence")
    }
    stores["rare words"] = prepare(train=folder / "rare", out=folder / "rare words", boundary="sentence")
    return stores
