"""N-gram queries and model files: probabilities of positions, mapping into memory, damaged files."""

import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tests.helpers import random_lines, store_of, word_distribution

from ncelm import load
from ncelm.errors import NcelmError
from ncelm.io import array_files
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


HOSTILE = st.sampled_from([-(2**63), -(2**31), -1, 0, 1, 2, 5, 1000, 2**31 - 1, 2**40, 2**63 - 1])


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_crafted_files_never_crash(run_folder, data):
    """The checksum is right, the indices are not: the file is rejected, or all scores are log-probabilities."""
    intact = run_folder.parent / "intact"
    path = run_folder / "model.safetensors"
    if not intact.exists():
        intact.write_bytes(path.read_bytes())
    arrays, header = load_file(intact), array_files.read_header(intact)
    name = data.draw(st.sampled_from(list(query.ARRAYS)))
    array = arrays[name]
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, array.size - 1))
        if array.dtype.kind == "i":
            limits = np.iinfo(array.dtype)
            array[place] = np.clip(data.draw(HOSTILE | st.integers(0, 200)), limits.min, limits.max)
        else:
            array[place] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf, 5.0, 1e30, -1e4, -0.5]))
    if data.draw(st.booleans()):
        header["counts"] = data.draw(st.lists(st.integers(-1, 300) | st.just(10**400), max_size=4))
    counts = {"kind": "ngram", "counts": header["counts"]}
    array_files.write_mapped(path, {each: arrays[each] for each in query.ARRAYS}, counts)
    with suppress(NcelmError):
        scores = load(run_folder).full_scores("w1 w2 w3 w4 w5 w1")
        assert all(np.isfinite(word.log_probability) and word.log_probability <= 0 for word in scores)
