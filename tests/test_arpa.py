"""Runs from ARPA files and ARPA files from runs; KenLM's scores of our files."""

import gzip

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.helpers import random_lines, store_of

from ncelm import load
from ncelm.arpa import export_arpa, import_arpa
from ncelm.errors import NcelmError
from ncelm.language_model import Tokens
from ncelm.models.ngram.estimate import train_ngram
from ncelm.text.prepare import prepare
from ncelm.text.store import TokenStore

NO_KENLM = "kenlm is not installed: `make test` builds it where there is a C++ compiler"
UNIGRAMS = "\\data\\\nngram 1=3\n\n\\1-grams:\n-0.47712\t</s>\n-0.47712\ta\n-0.47712\t<unk>\n\n\\end\\\n"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arpa")
    store = store_of(folder, random_lines(4, sentences=800, words=40), min_count=2)
    train_ngram(store, folder / "run", order=4)
    return folder


def test_a_run_from_an_exported_file_is_the_same(small, tmp_path):
    export_arpa(small / "run", tmp_path / "a.arpa")
    import_arpa(tmp_path / "a.arpa", tmp_path / "like", like=small / "store")
    for name, array in load_file(small / "run/model.safetensors").items():
        np.testing.assert_array_equal(load_file(tmp_path / "like/model.safetensors")[name], array)
    store = TokenStore.open(small / "store")
    perplexity = load(small / "run").evaluate_split(store, "test").perplexity
    assert load(tmp_path / "like").evaluate_split(store, "test").perplexity == perplexity
    alone = import_arpa(tmp_path / "a.arpa", tmp_path / "alone")
    assert alone.store_path is None
    assert alone.score("w1 w2 zebra") == load(small / "run").score("w1 w2 zebra")
    assert load(tmp_path / "alone").score("w1 w2 zebra") == alone.score("w1 w2 zebra")


def test_lower_case(tmp_path):
    (tmp_path / "a.arpa").write_text(UNIGRAMS)
    lm = import_arpa(tmp_path / "a.arpa", tmp_path / "run", lowercase=True)
    assert lm.full_scores("A")[0].log_probability == pytest.approx(-0.47712 * np.log(10))
    assert not lm.full_scores("A")[0].unknown


def test_kenlm_has_the_same_scores(small, tmp_path):
    check_kenlm(small / "run", tmp_path, random_lines(9, sentences=50, words=45))


def test_kenlm_has_the_same_scores_of_a_real_text(small_store, tmp_path):
    assert small_store.boundary == "sentence"
    train_ngram(small_store, tmp_path / "run", order=5)
    split, words = small_store.split("test"), small_store.vocabulary.words
    sentences = np.split(split.ids, split.sentences[1:-1].astype(np.int64))
    check_kenlm(tmp_path / "run", tmp_path, [" ".join(words[i] for i in ids[:-1]) for ids in sentences])


def check_kenlm(run_folder, tmp_path, lines):
    kenlm = pytest.importorskip("kenlm", reason=NO_KENLM)
    export_arpa(run_folder, tmp_path / "ours.arpa")
    theirs, ours = kenlm.Model(str(tmp_path / "ours.arpa")), load(run_folder)
    for line, words in zip(lines, ours.full_scores_of(Tokens(line.split()) for line in lines), strict=True):
        full = list(theirs.full_scores(line, bos=True, eos=True))
        base_10 = [word.log_probability / np.log(10) for word in words]
        np.testing.assert_allclose(base_10, [score for score, _, _ in full], atol=1e-4)
        assert [word.unknown and word.word != "<unk>" for word in words[:-1]] == [
            unknown and word.word != "<unk>" for word, (_, _, unknown) in zip(words, full[:-1], strict=False)
        ]


# -- errors ----------------------------------------------------------------------------------------------------------


def test_an_invalid_file_leaves_no_run(tmp_path):
    (tmp_path / "a.arpa").write_text(UNIGRAMS.replace("ngram 1=3", "ngram 1=4"))
    with pytest.raises(NcelmError, match="but the header says 4"):
        import_arpa(tmp_path / "a.arpa", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_only_ngram_models_can_be_exported(small, tmp_path):
    from ncelm.combine import mix

    mix([small / "run", small / "run"], tmp_path / "mixed", weights=[0.5, 0.5])
    with pytest.raises(NcelmError, match="is not an n-gram model"):
        export_arpa(tmp_path / "mixed", tmp_path / "a.arpa")


def test_like_needs_the_same_words(small, tmp_path):
    (tmp_path / "a.arpa").write_text(UNIGRAMS)
    with pytest.raises(NcelmError, match="does not have the words of `like`: 1 are additional, such as 'a'"):
        import_arpa(tmp_path / "a.arpa", tmp_path / "run", like=small / "store")
    (tmp_path / "b.arpa").write_text(UNIGRAMS.replace("-0.47712\ta\n", "").replace("1=3", "1=2"))
    with pytest.raises(NcelmError, match=r"does not have the words of `like`: \d+ are missing"):
        import_arpa(tmp_path / "b.arpa", tmp_path / "run", like=small / "store")
    with pytest.raises(NcelmError, match="leave `lowercase` out"):
        import_arpa(tmp_path / "a.arpa", tmp_path / "run", like=small / "run", lowercase=True)
    assert not (tmp_path / "run").exists()


def test_like_needs_the_same_boundary(small, tmp_path):
    """A file with n-grams that start with <s> is a model of sentences, not of a stream."""
    lines = random_lines(4, sentences=800, words=40)
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    stream = prepare(train=tmp_path / "text", out=tmp_path / "stream", boundary="stream", min_count=2)
    train_ngram(stream, tmp_path / "run", order=3)
    export_arpa(small / "run", tmp_path / "sentence.arpa")
    export_arpa(tmp_path / "run", tmp_path / "stream.arpa")
    with pytest.raises(NcelmError, match="has n-grams that start with <s>: give a store or run as `like`"):
        import_arpa(tmp_path / "sentence.arpa", tmp_path / "out", like=tmp_path / "stream")
    with pytest.raises(NcelmError, match="has no n-gram that starts with <s>"):
        import_arpa(tmp_path / "stream.arpa", tmp_path / "out", like=small / "store")
    alone = import_arpa(tmp_path / "stream.arpa", tmp_path / "out")
    assert alone.score("w1 w2") == load(tmp_path / "run").score("w1 w2")


# -- probabilities -----------------------------------------------------------------------------------------------------

# after "a", "b" has 0.9 and the rest backs off: 0.1 / 0.75 of the probabilities of single words
BIGRAMS = """\\data\\
ngram 1=4
ngram 2=1

\\1-grams:
-0.60206	</s>
-0.60206	a	{backoff}
-0.60206	b
-0.60206	<unk>

\\2-grams:
{b}	a b

\\end\\
"""


def test_a_normalized_model_with_a_back_off_weight_above_one(tmp_path):
    """P(b) = 0.25 and P(b|a) = 0.1: the others get 1.2 times their probability."""
    (tmp_path / "a.arpa").write_text(BIGRAMS.format(backoff=f"{np.log10(0.9 / 0.75):.6f}", b="-1"))
    lm = import_arpa(tmp_path / "a.arpa", tmp_path / "run")
    assert np.exp(lm.full_scores("a a")[1].log_probability) == pytest.approx(0.3, rel=1e-4)


@pytest.mark.parametrize(
    ("backoff", "b", "message"),
    [
        ("2.5", "-0.05", r"'<unk>' after 'a' has a probability above 1: the back-off weight of 'a' is wrong"),
        ("9000", "-0.05", "has a probability above 1"),
        ("0.3", "-0.05", r"the probabilities after 'a' add up to 2.388: the model is not normalized"),
    ],
)
def test_wrong_back_off_weights(tmp_path, backoff, b, message):
    (tmp_path / "a.arpa").write_text(BIGRAMS.format(backoff=backoff, b=b))
    with pytest.raises(NcelmError, match=message):
        import_arpa(tmp_path / "a.arpa", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_probabilities_that_add_up_to_less_than_one_are_a_warning(tmp_path):
    (tmp_path / "a.arpa").write_text(BIGRAMS.format(backoff="-2", b="-1"))
    with pytest.warns(UserWarning, match="after 'a' add up to only 0.1075: perplexities will be too high"):
        import_arpa(tmp_path / "a.arpa", tmp_path / "run")


@pytest.mark.parametrize("seed", range(20))
def test_excess_is_found_where_it_is(small, tmp_path, seed):
    """The back-off weight of a random n-gram is too large: some word has a probability above 1, or none has."""
    from ncelm.models.ngram import validate
    from ncelm.models.ngram.query import NGramModel

    model, vocabulary = load(small / "run").model, load(small / "run").vocabulary
    rng = np.random.default_rng(seed)
    position, weight = int(rng.integers(model.log_backoffs.size)), float(rng.uniform(0.2, 2.0))
    backoffs = np.array(model.log_backoffs)
    backoffs[position] = weight
    changed = NGramModel(model.counts, model.words, model.children, model.log_probabilities, backoffs)
    out = np.empty(len(vocabulary))
    kernels = __import__("ncelm.kernels.ngram", fromlist=["distribution"])
    kernels.distribution(changed.view(), np.array(validate.words_of(changed, position)), out)
    if out.max() > validate.MAX_EXCESS:
        with pytest.raises(NcelmError, match="has a probability above 1"):
            validate._check_backoffs(tmp_path, changed, (*vocabulary.words, "<s>"))
    else:
        validate._check_backoffs(tmp_path, changed, (*vocabulary.words, "<s>"))


# -- bombs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (UNIGRAMS.replace("\n\n\\end", "\n" + "-1\tx\n" * 100_000 + "\n\\end"), "more 1-grams than the header says, 3"),
        (BIGRAMS.format(backoff="0", b="-1\ta b\n-1"), "more 2-grams than the header says, 1"),
        ("\n" * 10_000_000, "more than 1,000 blank lines"),
        (UNIGRAMS.replace("\n\n\\1", "\n" * 5000 + "\\1"), "more than 1,000 blank lines"),
        (BIGRAMS.format(backoff="0", b="-1\t" + "x" * 20_000_000), "not a text file"),
    ],
    ids=["unigrams", "bigrams", "newlines", "newlines inside", "long line"],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_counts_and_sizes_are_enforced_while_reading(tmp_path, content, message, compressed):
    data = content.encode()
    (tmp_path / "a.arpa").write_bytes(gzip.compress(data, 1) if compressed else data)
    with pytest.raises(NcelmError, match=message):
        import_arpa(tmp_path / "a.arpa", tmp_path / "run")
