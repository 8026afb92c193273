"""Stores that the tests of the kernels train on."""

import numpy as np
import pytest

from ncelm.text.prepare import prepare


@pytest.fixture(scope="session")
def stores(tmp_path_factory):
    """Texts of 12 words, as one stream and in sentences; one with rare words only; one with a large vocabulary."""
    folder, random = tmp_path_factory.mktemp("kernels"), np.random.default_rng(5)
    zipf = 1.0 / np.arange(3.0, 3003.0)
    texts = {
        "stream": [random.integers(12, size=random.integers(1, 7)) for _ in range(40)],
        "rare words": [random.integers(5000, size=6) for _ in range(40)],
        "many words": [random.choice(3000, 20, p=zipf / zipf.sum()) for _ in range(400)],
    }
    texts["sentence"] = texts["stream"]
    stores = {}
    for name, text in texts.items():
        file = folder / f"{name}.txt"
        file.write_text("".join(" ".join(f"w{i}" for i in line) + "\n" for line in text))
        boundary = "stream" if name == "stream" else "sentence"
        stores[name] = prepare(train=file, out=folder / name, boundary=boundary, workers=1)
    assert len(stores["many words"].vocabulary) > 1100  # two blocks of the vocabulary
    return stores
