"""Word vectors: nearest words, files for other tools."""

import numpy as np
import pytest

from ncelm.errors import NcelmError
from ncelm.models.log_bilinear import LogBilinear, ModelConfig
from ncelm.models.lsa import Lsa
from ncelm.models.vectors import export_vectors, nearest_words, word_vectors
from ncelm.text.settings import TextSettings
from ncelm.text.vocabulary import Vocabulary

WORDS = ["<unk>", "</s>", "east", "north", "northeast", "west", "nowhere"]
VOCABULARY = Vocabulary(WORDS, np.zeros(len(WORDS), np.int64))
VECTORS = np.array([[1, -9], [0, -1], [2, 0], [0, 3], [1, 1], [-1, 0], [0, 0]], np.float32)


def test_nearest_words_have_the_largest_cosines():
    nearest = nearest_words(VECTORS, VOCABULARY, TextSettings(), "east", 3)
    assert [word for word, _ in nearest] == ["northeast", "<unk>", "</s>"]
    assert [cosine for _, cosine in nearest] == pytest.approx([0.5**0.5, 82**-0.5, 0.0], abs=1e-6)
    assert len(nearest_words(VECTORS, VOCABULARY, TextSettings(), "east", 1000)) == len(WORDS) - 1
    assert nearest_words(VECTORS, VOCABULARY, TextSettings(lowercase=True), "EAST", 3) == nearest


@pytest.mark.parametrize(
    ("word", "n", "message"),
    [
        ("zebra", 3, "'zebra' is not in the model's vocabulary of 7 words"),
        ("East", 3, "'East' is not in"),
        ("east", 0, "`n` is 0: give a whole number, at least 1"),
        ("nowhere", 3, "'nowhere' has no vector"),
    ],
)
def test_nearest_words_that_do_not_exist(word, n, message):
    with pytest.raises(NcelmError, match=message):
        nearest_words(VECTORS, VOCABULARY, TextSettings(), word, n)


@pytest.mark.parametrize("tied_embeddings", [False, True])
def test_tables_of_a_model(tied_embeddings):
    config = ModelConfig(context=1, dim=3, tied_embeddings=tied_embeddings)
    model = LogBilinear.initialise(config, np.full(5, 0.2), seed=0, init_std=1.0)
    np.testing.assert_array_equal(word_vectors(model), model.context_vectors[:5])
    np.testing.assert_array_equal(word_vectors(model, "target"), model.target_vectors)
    assert np.array_equal(word_vectors(model), word_vectors(model, "target")) == tied_embeddings
    with pytest.raises(NcelmError, match="give one of context, target"):
        word_vectors(model, "both")


@pytest.mark.parametrize("kind", ["word2vec", "glove", "word2vec-binary"])
def test_exported_files_have_all_vectors(tmp_path, kind):
    vectors = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    model, path = Lsa(vectors, VOCABULARY, TextSettings()), tmp_path / "vectors"
    assert export_vectors(model, path, kind) == (7, 5)
    content = path.read_bytes()
    if kind != "glove":
        header, content = content.split(b"\n", 1)
        assert header == b"7 5"
    for word, vector in zip(WORDS, vectors, strict=True):
        name, content = content.split(b" ", 1)
        assert name.decode() == word
        if kind == "word2vec-binary":
            np.testing.assert_array_equal(np.frombuffer(content[:20], "<f4"), vector)
            content = content[21:]
        else:
            line, content = content.split(b"\n", 1)
            np.testing.assert_array_equal(np.array(line.split(), np.float32), vector)
    assert content == b""
    with pytest.raises(NcelmError, match="exists already"):
        export_vectors(model, path, kind)
