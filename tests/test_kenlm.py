"""`ncelm.kenlm`: every number of KenLM's module, models of other kinds, errors."""

import copy
import importlib
import math
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from tests import kenlm_calls
from tests.helpers import random_lines, save_model, store_of

import ncelm
from ncelm import kenlm
from ncelm.errors import ArgumentError, ArgumentTypeError, NcelmError
from ncelm.kenlm.queries import BINARY_MAGIC
from ncelm.models.log_bilinear import LogBilinear, ModelConfig
from ncelm.models.ngram import index
from ncelm.models.ngram.arpa import write_arpa
from ncelm.models.ngram.estimate import estimate, train_ngram
from ncelm.text.prepare import prepare

LN_10 = math.log(10.0)


def compare(path: Path, lines: list[str]) -> float:
    """Compare every result of both modules; return the largest difference per word."""
    original = pytest.importorskip("kenlm", reason="needs KenLM: pip install kenlm, with a C++ compiler")
    worst = 0.0
    both = zip(
        kenlm_calls.all_calls(original, str(path), lines), kenlm_calls.all_calls(kenlm, str(path), lines), strict=True
    )
    for (name, words, expected), (ours_name, _, found) in both:
        assert name == ours_name
        for a, b in zip(_flat(expected), _flat(found), strict=True):
            if name.endswith(": states"):  # KenLM distinguishes some states after which all scores are equal
                assert b or not a, name
            elif isinstance(a, float):
                worst = max(worst, abs(a - b) / words)
                assert abs(a - b) / words <= 1e-5, f"{name}: KenLM {a}, ncelm {b}"
            else:
                assert a == b, f"{name}: KenLM {a}, ncelm {b}"
    return worst


def _flat(value):
    return [each for part in value for each in _flat(part)] if isinstance(value, tuple | list) else [value]


@pytest.fixture(scope="module")
def arpa(small_store, tmp_path_factory) -> Path:
    """A 4-gram model of the small text."""
    path = tmp_path_factory.mktemp("arpa") / "model.arpa"
    write_arpa(path, estimate(small_store, 4)[0], small_store.vocabulary)
    return path


@pytest.fixture(scope="module")
def lines(small_store) -> list[str]:
    """Sentences of the test split, with `<unk>`."""
    split = small_store.split("test")
    words = [small_store.vocabulary.word(i) for i in split.ids.tolist()]
    return " ".join(words).replace("</s> ", "\n").removesuffix("</s>").splitlines()


# -- against KenLM ---------------------------------------------------------------------------------------------------


def test_every_number_is_that_of_kenlm(arpa, lines):
    assert compare(arpa, lines[:60]) <= 1e-5


@pytest.mark.parametrize("order", [2, 3, 5, 6])
def test_other_orders(tmp_path, order):
    texts = random_lines(order, sentences=200)
    store = store_of(tmp_path, texts)
    write_arpa(tmp_path / "arpa", estimate(store, order)[0], store.vocabulary)
    compare(tmp_path / "arpa", texts[:20])


def test_order_1(tmp_path):
    """KenLM has no models of single words."""
    store = store_of(tmp_path, random_lines(0))
    train_ngram(store, tmp_path / "run", order=1)
    model, lm = kenlm.Model(tmp_path / "run"), ncelm.load(tmp_path / "run")
    assert model.score("w1 w2 x") * LN_10 == pytest.approx(lm.score("w1 w2 x"))
    state = kenlm.State()
    model.BeginSentenceWrite(state)
    assert model.BaseFullScore(state, "w1", state).ngram_length == 1


@pytest.mark.slow
def test_the_penn_treebank(shared_data, tmp_path):
    """All calls on the whole test text, with a 5-gram model of the training text."""
    parts = {name: shared_data / "ptb" / f"ptb.{name}.txt" for name in ("train", "valid", "test")}
    store = prepare(out=tmp_path / "store", boundary="sentence", **parts)
    write_arpa(tmp_path / "arpa", estimate(store, 5)[0], store.vocabulary)
    assert compare(tmp_path / "arpa", parts["test"].read_text().splitlines()) <= 1e-5


ARPA = """\\data\\
ngram 1=4
ngram 2=3
ngram 3=1

\\1-grams:
-1.0\t<s>\t-0.5
-0.7\ta\t-0.3
-0.9\tb\t-0.25
-1.2\t</s>

\\2-grams:
-0.4\t<s> a\t-0.2
-0.3\ta b\t-0.1
-0.6\tb </s>

\\3-grams:
-0.2\t<s> a b

\\end\\
"""


def test_a_file_of_another_tool(tmp_path):
    """There is no <unk>, back-off weights of n-grams that nothing extends, and none where they are 0."""
    (tmp_path / "arpa").write_text(ARPA)
    compare(tmp_path / "arpa", ["a b", "b a", "a a b b", "c a b"])


def test_a_long_line(arpa, lines):
    """Words are read in blocks; the state continues from one to the next."""
    compare(arpa, [" ".join(lines)])


# -- many sentences --------------------------------------------------------------------------------------------------


def test_many_sentences_at_once(arpa, lines, monkeypatch):
    model = kenlm.Model(arpa)
    many = [*lines, "", "a\nb", " a  b ", "naïve \u3000 word", "x" * 1000]
    expected = [model.score(line) for line in many]
    for characters in (10, 500, 1 << 22):  # in one call
        monkeypatch.setattr(index, "CHARACTERS_PER_CALL", characters)
        assert model.scores(many) == expected
    assert model.scores(iter(lines), bos=False, eos=False) == [model.score(line, False, False) for line in lines]
    assert model.perplexities(lines) == pytest.approx([model.perplexity(line) for line in lines], rel=1e-12)
    assert model.scores([]) == []


def test_the_index_gives_the_bits_of_the_model(small_store, tmp_path):
    train_ngram(small_store, tmp_path / "run", order=4)
    model, lm = kenlm.Model(tmp_path / "run"), ncelm.load(tmp_path / "run")
    split = small_store.split("valid")
    words = [small_store.vocabulary.word(i) for i in split.ids.tolist()]
    for line in " ".join(words).split("</s>")[:50]:
        exact = [word.log_probability for word in lm.full_scores(line)]
        assert [log10 * LN_10 for log10, _, _ in model.full_scores(line)] == exact


def test_words_that_share_letters_or_hashes(tmp_path):
    """Words of up to eight bytes are their own keys; longer ones are compared."""
    words = ["a", "aa", "abcdefgh", "xabcdefgh", "yabcdefgh", "abcdefghabcdefgh", "\u00e4\u00f6\u00fc"]
    words += [f"long-word-{i}" for i in range(3000)]
    store = store_of(tmp_path, [" ".join(words[i : i + 7]) for i in range(len(words))])
    train_ngram(store, tmp_path / "run", order=3)
    model = kenlm.Model(tmp_path / "run")
    assert "\x00a" not in model
    lm = ncelm.load(tmp_path / "run")
    for word in words:
        assert word in model
        assert word + "-" not in model
        (log10, _, oov), _ = model.full_scores(word)
        assert not oov
        assert log10 * LN_10 == lm.full_scores(word)[0].log_probability


# -- runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(small_store, tmp_path_factory) -> Path:
    """Runs of several kinds: ngram, stream (without sentence boundaries), neural, mixed, two-sided."""
    folder = tmp_path_factory.mktemp("runs")
    counts = small_store.vocabulary.counts + 1.0
    for name, after in (("neural", 0), ("two-sided", 2)):
        config = ModelConfig(context=3, context_after=after, dim=8)
        save_model(folder / name, small_store, LogBilinear.initialise(config, counts / counts.sum(), 0, 0.5))
    train_ngram(small_store, folder / "ngram", order=3)
    ncelm.mix([folder / "ngram", folder / "neural"], folder / "mixed", weights=[0.6, 0.4])
    store_of(folder, random_lines(1), "stream")
    train_ngram(folder / "store", folder / "stream", order=3)
    return folder


@pytest.mark.parametrize("kind", ["ngram", "stream", "neural", "mixed"])
def test_runs_have_the_scores_of_ncelm(runs, kind):
    model, lm = kenlm.Model(runs / kind), ncelm.load(runs / kind)
    texts = ["w1 w2 w3 w4 unseen w1"] if kind == "stream" else ["The Wizard of Oz can't see Dorothy.", "Toto!", ""]
    for text in texts:
        assert model.score(text) * LN_10 == pytest.approx(lm.score(text), rel=1e-9)
        assert model.score(text, eos=False) * LN_10 == pytest.approx(lm.score(text, end=False), rel=1e-9, abs=1e-12)
        assert model.perplexity(text) == pytest.approx(lm.perplexity(text), rel=1e-9)
        exact, full = lm.full_scores(text), list(model.full_scores(text))
        assert [p * LN_10 for p, _, _ in full] == pytest.approx([word.log_probability for word in exact], rel=1e-9)
        assert [oov for _, _, oov in full] == [word.unknown for word in exact]
        state, following = kenlm.State(), kenlm.State()
        model.BeginSentenceWrite(state)
        for word, (log10, length, oov) in zip([each.word for each in exact], full, strict=True):
            result = model.BaseFullScore(state, word, following)
            assert result.log_prob == pytest.approx(log10, abs=1e-5)
            assert (result.ngram_length, result.oov) == (length, oov)
            state, following = following, state
    assert model.scores(texts) == pytest.approx([model.score(text) for text in texts], rel=1e-9)
    assert model.order == {"ngram": 3, "stream": 3, "neural": 4, "mixed": 4}[kind]


def test_states_of_a_neural_model(runs):
    """States are the last words: they are equal when the context is."""
    model = kenlm.Model(runs / "neural")
    ends = []
    for text in ("dorothy the lion and the tin", "toto lion and the tin", "lion and the wizard"):
        state = kenlm.State()
        model.NullContextWrite(state)
        for word in text.split():
            model.BaseScore(state, word, state)
        ends.append(state)
    first, same, other = ends
    assert first == same
    assert hash(first) == hash(same)
    assert first != other
    assert len({*ends, copy.deepcopy(first)}) == 2
    assert "dorothy" in model
    assert "not-a-word" not in model


def test_a_model_of_both_sides(runs):
    with pytest.raises(NcelmError, match="sees the words on both sides of a word"):
        kenlm.Model(runs / "two-sided")


def test_pickling(runs, arpa):
    for path in (arpa, runs / "neural"):
        model = kenlm.LanguageModel(str(path).encode())
        copied = pickle.loads(pickle.dumps(model))
        assert type(copied) is kenlm.LanguageModel
        assert copied.path == str(path).encode()
        assert copied.score("the wizard") == model.score("the wizard")


# -- other programs --------------------------------------------------------------------------------------------------


def test_a_decoder_that_imports_kenlm(arpa, monkeypatch):
    """pyctcdecode, unchanged, finds the same beams with both modules."""
    pytest.importorskip("pyctcdecode", reason="needs pyctcdecode: pip install pyctcdecode")
    original = pytest.importorskip("kenlm", reason="needs KenLM: pip install kenlm, with a C++ compiler")
    labels = [" ", *"adehinortwz", ""]
    logits = np.log(np.random.default_rng(0).dirichlet(np.full(len(labels), 0.15), size=60) + 1e-9)
    beams = []
    for module in (original, kenlm):
        monkeypatch.setitem(sys.modules, "kenlm", module)
        for name in [name for name in sys.modules if name.partition(".")[0] == "pyctcdecode"]:
            monkeypatch.delitem(sys.modules, name)
        decoder = importlib.import_module("pyctcdecode").build_ctcdecoder(
            labels, str(arpa), unigrams=["the", "wizard", "and", "a", "tin", "dorothy", "in", "it"]
        )
        beams.append([(beam[0], beam[-1]) for beam in decoder.decode_beams(logits, beam_width=30)])
    assert [text for text, _ in beams[0]] == [text for text, _ in beams[1]]
    assert [score for _, score in beams[0]] == pytest.approx([score for _, score in beams[1]], abs=1e-4)


# -- errors ----------------------------------------------------------------------------------------------------------


def test_a_file_that_is_no_model(tmp_path):
    (tmp_path / "binary").write_bytes(BINARY_MAGIC + b" version 5\n\0" + bytes(100))
    (tmp_path / "text").write_text("no model\n")
    (tmp_path / "folder").mkdir()
    for name, message in (
        ("binary", "binary file of KenLM: give the ARPA file"),
        ("text", "it is truncated, or not an ARPA file"),
        ("folder", "folder"),
        ("nothing", "there is no file"),
    ):
        with pytest.raises(OSError, match=message) as error:
            kenlm.Model(tmp_path / name)
        assert isinstance(error.value, NcelmError)
        assert "\n" not in str(error.value)


def test_wrong_arguments(arpa, runs):
    model, state = kenlm.Model(arpa), kenlm.State()
    for call in (
        lambda: kenlm.Model(3),
        lambda: kenlm.Model(arpa, "config"),
        lambda: model.score(["a", "b"]),
        lambda: model.score(None),
        lambda: model.scores("a sentence"),
        lambda: model.scores([b"a"]),
        lambda: list(model.full_scores(1)),
        lambda: model.perplexity(1),
        lambda: 1 in model,
        lambda: model.BeginSentenceWrite(None),
        lambda: model.BaseScore(state, 1, state),
        lambda: model.BaseScore(state, "a", None),
    ):
        with pytest.raises(ArgumentTypeError):
            call()
    with pytest.raises(ArgumentError, match="UTF-8"):
        model.score("\ud800")
    with pytest.raises(ArgumentError, match="UTF-8"):
        model.scores(["\ud800"])
    model.BeginSentenceWrite(state)
    for other in ("ngram", "neural"):  # orders 3 and 4
        with pytest.raises(ArgumentError, match="of another model"):
            kenlm.Model(runs / other).BaseScore(state, "a", kenlm.State())


def test_states_are_values(arpa):
    model, state, following = kenlm.Model(arpa), kenlm.State(), kenlm.State()
    null = kenlm.State()
    model.NullContextWrite(null)
    assert model.BaseScore(state, "the", following) == model.BaseScore(null, "the", following)  # a new state is empty
    kept = copy.copy(following)
    model.BaseScore(following, "wizard", following)  # a state may be replaced
    assert following != kept
    assert sorted([following, kept]) in ([following, kept], [kept, following])
    assert (following < kept) != (kept < following)
    assert following != "a state"


def test_the_index_is_read_only(arpa):
    model = kenlm.Model(arpa)
    with pytest.raises(ValueError, match="read-only"):
        model._queries._index[0] = np.uint64(3)
