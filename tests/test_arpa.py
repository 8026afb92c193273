"""Runs from ARPA files and ARPA files from runs; KenLM's scores of our files."""

import numpy as np
import pytest
from tests.helpers import random_lines, store_of

from ncelm import load
from ncelm.arpa import export_arpa, import_arpa
from ncelm.errors import NcelmError
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
    assert (tmp_path / "like/model.safetensors").read_bytes() == (small / "run/model.safetensors").read_bytes()
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
    for line, words in zip(lines, ours.full_scores_of(line.split() for line in lines), strict=True):
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
