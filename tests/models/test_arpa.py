"""ARPA files: there and back without loss, KenLM's opinion of ours, ours of others', and all that can be wrong."""

import gzip

import numpy as np
import pytest
from tests.helpers import random_lines, store_of, word_distribution

from ncelm import load
from ncelm.arpa import export_arpa, import_arpa
from ncelm.errors import NcelmError
from ncelm.models.ngram import arpa
from ncelm.models.ngram.arpa import read_arpa, write_arpa
from ncelm.models.ngram.model import ARRAYS, NGramModel, estimate, train_ngram
from ncelm.text.prepare import prepare
from ncelm.text.store import TokenStore

NO_KENLM = "kenlm is not installed: `make test` builds it where there is a C++ compiler"

# as SRILM writes them: no back-off where nothing follows, -99 for <s>, columns between tabs
ELSEWHERE = """
made by hand

\\data\\
ngram 1=6
ngram 2=5
ngram 3=2

\\1-grams:
-0.8	</s>
-99	<s>	-0.5
-1.2	<unk>
-0.7	the	-0.25
-0.9	cat	-0.125
-1e+00	sat

\\2-grams:
-0.3	<s> the	-0.0625
-0.2	the cat	-0.03125
-0.6	the sat
-0.4	cat sat
-0.1	cat </s>

\\3-grams:
-0.05	<s> the cat
-0.15	the cat sat

\\end\\
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arpa")
    store = store_of(folder, random_lines(4, sentences=800, words=40), min_count=2)
    train_ngram(store, folder / "run", order=4)
    return folder


def same(a: NGramModel, b: NGramModel) -> bool:
    return a.counts == b.counts and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ARRAYS)


# -- there and back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.arpa", "model.arpa.gz"])
@pytest.mark.parametrize("batch", [3, 1 << 17])
def test_what_is_written_is_read(small, tmp_path, name, batch, monkeypatch):
    monkeypatch.setattr(arpa, "BATCH", batch)
    monkeypatch.setattr(arpa, "BLOCK_BYTES", 1000)
    lm = load(small / "run")
    seen = []
    write_arpa(tmp_path / name, lm.model, lm.vocabulary, lambda done, total: seen.append(done / total))
    assert seen[-1] == 1.0
    model, vocabulary = read_arpa(tmp_path / name)
    assert vocabulary.words == lm.vocabulary.words
    assert same(model, lm.model)
    packed = (tmp_path / name).read_bytes()[:2] == b"\x1f\x8b"
    assert packed == name.endswith("gz")


def test_a_run_of_the_file_is_the_run(small, tmp_path):
    export_arpa(small / "run", tmp_path / "a.arpa")
    import_arpa(tmp_path / "a.arpa", tmp_path / "like", like=small / "store")
    assert (tmp_path / "like/model.safetensors").read_bytes() == (small / "run/model.safetensors").read_bytes()
    store = TokenStore.open(small / "store")
    perplexity = load(small / "run").evaluate_split(store, "test").perplexity
    assert load(tmp_path / "like").evaluate_split(store, "test").perplexity == perplexity
    alone = import_arpa(tmp_path / "a.arpa", tmp_path / "alone")
    assert alone.store_path is None
    assert alone.score("w1 w2 zebra") == load(small / "run").score("w1 w2 zebra")


def test_all_floats_survive(tmp_path):
    """Numbers of every size come back as the same float32."""
    rng = np.random.default_rng(0)
    values = -(10.0 ** rng.uniform(-20, 1.99, 5000)).astype(np.float32)
    values[:4] = [0.0, -99.0, -1.0, np.float32(-1e-44)]
    vocabulary = arpa.Vocabulary(["<unk>", "</s>", *(f"w{i}" for i in range(4998))], np.zeros(5000, np.int64))
    words = np.arange(5001, dtype=np.int32)
    logs = np.append(values, np.float32(-99))
    model = NGramModel((5001,), words, np.array([5001]), logs, np.zeros(0, np.float32))
    write_arpa(tmp_path / "a", model, vocabulary)
    back, _ = read_arpa(tmp_path / "a")
    np.testing.assert_array_equal(back.log_probabilities, logs)
    assert max(map(len, (tmp_path / "a").read_text().splitlines())) < 30


def test_kenlm_reads_ours_and_agrees(small, tmp_path):
    kenlm = pytest.importorskip("kenlm", reason=NO_KENLM)
    _agrees(kenlm, small / "run", tmp_path, random_lines(9, sentences=50, words=45))


def test_kenlm_agrees_on_the_penn_treebank(shared_data, tmp_path):
    kenlm = pytest.importorskip("kenlm", reason=NO_KENLM)
    lines = (shared_data / "ptb/ptb.test.txt").read_text().splitlines()
    texts = {name: shared_data / f"ptb/ptb.{name}.txt" for name in ("train", "valid", "test")}
    store = prepare(**texts, out=tmp_path / "store", boundary="sentence")
    train_ngram(store, tmp_path / "run", order=5)
    _agrees(kenlm, tmp_path / "run", tmp_path, lines[:1000])


def _agrees(kenlm, run_folder, tmp_path, lines):
    export_arpa(run_folder, tmp_path / "ours.arpa")
    theirs, ours = kenlm.Model(str(tmp_path / "ours.arpa")), load(run_folder)
    for line, words in zip(lines, ours.full_scores_of(lines), strict=True):
        base_10 = [word.log_probability / np.log(10) for word in words]
        full = list(theirs.full_scores(line, bos=True, eos=True))
        np.testing.assert_allclose(base_10, [score for score, _, _ in full], atol=1e-4)
        assert [word.unknown and word.word != "<unk>" for word in words[:-1]] == [
            unknown and word.word != "<unk>" for word, (_, _, unknown) in zip(words, full[:-1], strict=False)
        ]


# -- files made elsewhere -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\t", "   "),
        lambda text: text.replace("<unk>", "<UNK>"),
        lambda text: text.replace("\n\n", "\n"),
        lambda text: text.rstrip("\n"),
        lambda text: text.replace("-0.3\t", "-3e-1\t"),
    ],
    ids=["plain", "crlf", "blanks", "UNK", "no blank lines", "no last newline", "exponent"],
)
def test_a_file_made_elsewhere(tmp_path, change):
    (tmp_path / "a.arpa").write_bytes(change(ELSEWHERE).encode())
    lm = import_arpa(tmp_path / "a.arpa", tmp_path / "run")
    base_10 = [word.log_probability / np.log(10) for word in lm.full_scores("the cat sat the zebra cat")]
    expected = [
        -0.3,  # <s> the
        -0.05,  # <s> the cat
        -0.15,  # the cat sat
        -0.7,  # the: neither "cat sat" nor "sat" is a history of anything
        -0.25 - 1.2,  # back off from "the" to <unk>
        -0.9,  # cat
        -0.1,  # cat </s>
    ]
    np.testing.assert_allclose(base_10, expected, atol=1e-6)
    export_arpa(tmp_path / "run", tmp_path / "b.arpa")
    again, vocabulary = read_arpa(tmp_path / "b.arpa")
    assert same(again, lm.model)
    assert vocabulary.words == lm.vocabulary.words


def test_a_file_without_unk_or_begin(tmp_path):
    text = "\\data\\\nngram 1=2\n\n\\1-grams:\n-0.3\t</s>\n-0.3\ta\n\n\\end\\\n"
    (tmp_path / "a.arpa").write_text(text)
    lm = import_arpa(tmp_path / "a.arpa", tmp_path / "run", lowercase=True)
    assert lm.full_scores("A")[0].log_probability == pytest.approx(-0.3 * np.log(10))
    assert lm.full_scores("zebra")[0].log_probability == pytest.approx(-99 * np.log(10))


def test_words_of_any_script(tmp_path):
    words = ["café", "日本", "ß", "a\u0301", "<s>x", "-1.5", "\\x"]
    lines = [" ".join(np.random.default_rng(i).permutation(words)) for i in range(50)]
    store = store_of(tmp_path, lines)
    train_ngram(store, tmp_path / "run", order=3)
    export_arpa(tmp_path / "run", tmp_path / "a.arpa")
    model, vocabulary = read_arpa(tmp_path / "a.arpa")
    assert vocabulary.words == store.vocabulary.words
    assert same(model, load(tmp_path / "run").model)


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ngram 2=5", "ngram 2=6", "line 24: there are 5 2-grams, but the header says 6"),
        ("ngram 1=6", "ngram 1=5", "there are 6 1-grams, but the header says 5"),
        ("ngram 1=6\n", "", "'ngram 2=5' stands where 'ngram 1=…' should"),
        ("ngram 2=5", "ngram 2=99999999999999999999", "stands where 'ngram 2=…' should"),
        ("ngram 2=5\nngram 3=2", "", "stands where"),
        ("\\2-grams:", "\\3-grams:", "stands where \\2-grams: should"),
        ("\\data\\", "\\dat\\", "before \\end\\"),
        ("\\end\\\n", "", "ends before \\end\\"),
        ("\\3-grams:\n-0.05\t<s> the cat\n-0.15\tthe cat sat\n", "", "stands where \\3-grams: should"),
        ("-0.2\tthe cat\t-0.03125", "-0.2\tthe cat", "1 2-grams have no back-off weight, though longer"),
        ("the\t-0.25", "the", "1 1-grams have no back-off weight"),
        ("-0.2\tthe cat\t", "-0.2\tcat cat\t", "is there, but its first 2 words are not among the 2-grams"),
        ("-0.4\tcat sat", "-0.4\tcat dog", "the word 'dog' is not among the 1-grams"),
        ("-0.4\tcat sat", "-0.4\tthe sat", "the 2-gram 'the sat' is there twice"),
        ("-0.9\tcat", "-0.9\tthe", "the word 'the' is there twice"),
        ("-0.4\tcat sat", "0.4\tcat sat", "is not the logarithm of a probability"),
        ("-0.4\tcat sat", "nan\tcat sat", "is not the logarithm of a probability"),
        ("-0.4\tcat sat", "x\tcat sat", "is not a number"),
        ("-0.4\tcat sat", "-0.4\tcat sat\tinf", "is not the logarithm of a back-off weight"),
        ("-0.4\tcat sat", "-0.4\tcat sat on the mat", "here should be a number, 2 words"),
        ("-0.4\tcat sat", "-0.4\tcat", "here should be a number, 2 words"),
        ("-0.9\tcat\t", "-0.9\tnew york\t", "here should be a number, 1 word"),
        ("-0.9\tcat\t", "-0.9\tnew\u00a0york\t", "has a blank in it"),
        ("-0.8\t</s>", "-0.8\t</S>", "the word '</s>' is not among the 1-grams"),
        ("-0.4\tcat sat", "-0.4\tcat \0sat", "this is no text"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path, old, new, message):
    assert old in ELSEWHERE
    (tmp_path / "a.arpa").write_text(ELSEWHERE.replace(old, new))
    with pytest.raises(NcelmError) as error:
        import_arpa(tmp_path / "a.arpa", tmp_path / "run")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "ends before"),
        (b"\x00\x01\x02" * 1000, "no text"),
        (b"hello\n" * 2000, "no \\data\\"),
        (b"x" * 3_000_000, "no text"),
        (ELSEWHERE.replace("cat", "caf\u00e9").encode("latin-1"), "not UTF-8"),
        (gzip.compress(ELSEWHERE.encode())[:-30], "damaged or cut short"),
        (gzip.compress(ELSEWHERE.encode())[:20] + b"\xff" * 50, "damaged or cut short"),
        (b"\\data\\\n" + b"".join(b"ngram %d=1\n" % n for n in range(1, 12)) + b"\n\\1-grams:\n", "11 orders"),
        (b"\\data\\\nngram 1=0\n\n\\1-grams:\n\\end\\\n", "there are no 1-grams"),
        (b"\\data\\\nngram 1=1\n\n\\1-grams:\n-0.1\ta\n\\end\\\n", "no model of sentences"),
    ],
    ids=["empty", "junk", "no header", "one line", "latin-1", "cut", "broken gzip", "11 orders", "none", "no end"],
)
def test_files_that_are_none(tmp_path, content, message):
    (tmp_path / "a.arpa").write_bytes(content)
    with pytest.raises(NcelmError) as error:
        read_arpa(tmp_path / "a.arpa")
    assert message in str(error.value)


def test_missing_file_and_existing_output(small, tmp_path):
    with pytest.raises(NcelmError, match="there is no file"):
        read_arpa(tmp_path / "nothing")
    with pytest.raises(NcelmError, match="cannot read"):
        read_arpa(tmp_path)
    (tmp_path / "there").write_text("mine")
    with pytest.raises(NcelmError, match="exists already"):
        export_arpa(small / "run", tmp_path / "there")
    assert (tmp_path / "there").read_text() == "mine"


def test_like_needs_the_same_words(small, tmp_path):
    (tmp_path / "a.arpa").write_text(ELSEWHERE)
    with pytest.raises(NcelmError, match="has not the words of --like: it has 3 others, such as 'cat'"):
        import_arpa(tmp_path / "a.arpa", tmp_path / "run", like=small / "store")
    with pytest.raises(NcelmError, match="leave --lowercase out"):
        import_arpa(tmp_path / "a.arpa", tmp_path / "run", like=small / "run", lowercase=True)


def test_like_needs_the_same_boundary(small, tmp_path):
    """A file that knows how sentences begin is no model of a stream, nor the other way round."""
    lines = random_lines(4, sentences=800, words=40)
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    stream = prepare(train=tmp_path / "text", out=tmp_path / "stream", boundary="stream", min_count=2)
    train_ngram(stream, tmp_path / "run", order=3)
    export_arpa(small / "run", tmp_path / "sentence.arpa")
    export_arpa(tmp_path / "run", tmp_path / "stream.arpa")
    with pytest.raises(NcelmError, match="has n-grams that begin with <s>, so it goes with text that was prepared"):
        import_arpa(tmp_path / "sentence.arpa", tmp_path / "out", like=tmp_path / "stream")
    with pytest.raises(NcelmError, match="has no n-gram that begins with <s>"):
        import_arpa(tmp_path / "stream.arpa", tmp_path / "out", like=small / "store")
    alone = import_arpa(tmp_path / "stream.arpa", tmp_path / "out")
    assert alone.score("w1 w2") == load(tmp_path / "run").score("w1 w2")


def test_numbers_stay_what_they_are(tmp_path):
    (tmp_path / "a.arpa").write_text(
        "\ufeff" + ELSEWHERE.lstrip().replace("-0.15\t", "-150\t").replace("-1.2\t", "-inf\t")
    )
    lm = import_arpa(tmp_path / "a.arpa", tmp_path / "run")
    assert lm.full_scores("the cat sat")[2].log_probability == pytest.approx(-150 * np.log(10), rel=1e-6)
    assert lm.full_scores("zebra")[0].log_probability < -99 * np.log(10)  # log10 0, as such files have it, is -99
    for wrong in ("-0.15\t", "-0.2\tthe cat\t-0.03125"):
        (tmp_path / "b.arpa").write_text(
            ELSEWHERE.replace(wrong, wrong.replace("-0.15", "-1e5").replace("-0.03125", "-99999"))
        )
        with pytest.raises(NcelmError, match="is not the logarithm of a"):
            import_arpa(tmp_path / "b.arpa", tmp_path / "other")
        assert not (tmp_path / "other").exists()


def test_mutated_files_are_refused_or_read(small, tmp_path):
    """Bytes changed at random: one clear line, or a model that answers with numbers."""
    rng = np.random.default_rng(0)
    whole = ELSEWHERE.encode()
    for _ in range(300):
        broken = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            broken[int(rng.integers(len(broken)))] = int(rng.integers(256))
        (tmp_path / "a.arpa").write_bytes(bytes(broken))
        try:
            model, _ = read_arpa(tmp_path / "a.arpa")
            assert np.isfinite(word_distribution(model, [3, 4])).all()
        except NcelmError as error:
            lines = str(error).splitlines()
            assert len(lines) == 1, lines


def test_estimates_do_not_depend_on_the_order_of_ids(small):
    """The same store estimated again gives the same arrays."""
    store = TokenStore.open(small / "store")
    assert same(estimate(store, 4)[0], load(small / "run").model)
