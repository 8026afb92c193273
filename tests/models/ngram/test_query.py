"""N-gram queries and model files: probabilities of positions, mapping into memory, damaged files."""

import struct
from contextlib import suppress

import numpy as np
import pytest
from tests.helpers import random_lines, store_of, word_distribution

from ncelm import load
from ncelm.errors import NcelmError
from ncelm.kernels.ngram import BLOCK
from ncelm.kernels.threads import Team
from ncelm.models.base import corpus_view
from ncelm.models.ngram import query
from ncelm.models.ngram.estimate import estimate, train_ngram
from ncelm.text.store import TokenStore


@pytest.mark.parametrize("boundary", ["sentence", "stream"])
def test_scores_of_positions_are_probabilities_given_the_previous_words(tmp_path, boundary):
    """In a text of several blocks, which threads score separately."""
    store = store_of(tmp_path, random_lines(7, sentences=2500), boundary)
    model, _ = estimate(store, 4)
    split = store.split("test")
    assert split.tokens > 2 * BLOCK
    corpus = corpus_view(split, store)
    with Team(1) as one, Team(3) as three:
        scores, log_z = model.score_positions(corpus, 0, split.tokens, one)
        middle, _ = model.score_positions(corpus, 100, BLOCK + 200, three)
        again, _ = model.score_positions(corpus, 0, split.tokens, three)
    np.testing.assert_array_equal(scores, again)
    np.testing.assert_array_equal(scores[100 : BLOCK + 200], middle)
    assert not log_z.any()
    ids, starts = split.ids.tolist(), split.sentences.astype(np.int64)
    around_blocks = [at for block in (BLOCK, 2 * BLOCK) for at in range(block - 5, block + 5)]
    for position in [*range(0, split.tokens, 111), *around_blocks]:
        start = 0 if boundary == "stream" else int(starts[np.searchsorted(starts, position, side="right") - 1])
        history = [store.pad_id, *ids[start:position]]
        expected = np.log(word_distribution(model, history[-4:])[ids[position]])
        assert scores[position] == pytest.approx(expected, abs=1e-5)


def test_a_sentence_of_a_stream_is_scored_after_a_sentence_end(tmp_path):
    store_of(tmp_path, random_lines(2), "stream")
    train_ngram(tmp_path / "store", tmp_path / "run", order=2)
    lm = load(tmp_path / "run")
    after_end = word_distribution(lm.model, [lm.vocabulary.end_id])[lm.vocabulary.id("w1")]
    assert lm.full_scores("w1")[0].log_probability == pytest.approx(np.log(after_end), abs=1e-5)


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def run_folder(tmp_path):
    store_of(tmp_path, random_lines(2))
    train_ngram(tmp_path / "store", tmp_path / "run", order=3)
    return tmp_path / "run"


def test_a_file_is_mapped_into_memory(run_folder):
    model = load(run_folder).model
    estimated, _ = estimate(TokenStore.open(run_folder.parent / "store"), 3)
    for name in query.ARRAYS:
        assert isinstance(getattr(model, name), np.memmap)
        np.testing.assert_array_equal(getattr(model, name), getattr(estimated, name))


def test_damaged_files(run_folder):
    path = run_folder / "model.safetensors"
    whole = path.read_bytes()
    header_length = struct.unpack("<Q", whole[:8])[0]
    for at in (0, 5, 8 + header_length // 2, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:at])
        with pytest.raises(NcelmError, match="damaged"):
            load(run_folder)
    first = 8 + header_length
    children = np.frombuffer(whole, np.int64, count=20, offset=first)
    for place, value in ((0, -1), (3, 10**15), (4, int(children[2]) - 1)):
        broken = bytearray(whole)
        struct.pack_into("<q", broken, first + 8 * place, value)
        path.write_bytes(bytes(broken))
        with pytest.raises(NcelmError, match="damaged"):
            load(run_folder)
    path.write_bytes(whole[:-4] + struct.pack("<f", float("nan")))
    with pytest.raises(NcelmError, match="damaged"):
        load(run_folder)
    path.write_bytes(b"\xff" * 8 + whole[8:])  # an impossible length
    with pytest.raises(NcelmError, match="damaged"):
        load(run_folder)
    path.write_bytes(whole)
    assert load(run_folder)


def test_random_damage_never_crashes(run_folder):
    """A file with random bytes is rejected, or gives finite scores."""
    path = run_folder / "model.safetensors"
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            broken[int(rng.integers(len(broken)))] = int(rng.integers(256))
        path.write_bytes(bytes(broken))
        with suppress(NcelmError):
            assert np.isfinite(load(run_folder).score("w1 w2 w3 w4"))


def test_a_missing_file(run_folder):
    (run_folder / "model.safetensors").unlink()
    with pytest.raises(NcelmError, match=r"has no model\.safetensors: restore it"):
        load(run_folder)


def test_another_vocabulary(run_folder):
    vocabulary = (run_folder / "vocab.txt").read_text().splitlines(keepends=True)
    (run_folder / "vocab.txt").write_text("".join(vocabulary[:-1]))
    with pytest.raises(NcelmError, match="not the vocabulary of this model"):
        load(run_folder)
