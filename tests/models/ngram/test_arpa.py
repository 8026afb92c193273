"""ARPA files: round trips without loss, files of other tools, invalid files."""

import gzip

import numpy as np
import pytest
from tests.helpers import random_lines, store_of, word_distribution

from ncelm.errors import NcelmError
from ncelm.models.ngram import arpa
from ncelm.models.ngram.arpa import read_arpa, write_arpa
from ncelm.models.ngram.estimate import estimate
from ncelm.models.ngram.query import ARRAYS, NGramModel
from ncelm.text.vocabulary import Vocabulary

# as SRILM writes them: no back-off weight where nothing follows, -99 for <s>, columns separated by tabs
ELSEWHERE = """
a comment

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


def is_same(a: NGramModel, b: NGramModel) -> bool:
    return a.counts == b.counts and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ARRAYS)


def log10_probabilities(model: NGramModel, vocabulary: Vocabulary, sentence: str) -> list[float]:
    """Return log10 P of each word of a sentence and of its end."""
    ids = [len(vocabulary), *vocabulary.encode(sentence.split()), vocabulary.end_id]
    return [float(model.log_probabilities_after(ids[:i])[ids[i]] / np.log(10)) for i in range(1, len(ids))]


# -- round trips -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.arpa", "model.arpa.gz"])
@pytest.mark.parametrize("batch", [3, 1 << 17])
def test_what_is_written_is_read(tmp_path, name, batch, monkeypatch):
    store = store_of(tmp_path, random_lines(4, sentences=800, words=40), min_count=2)
    expected, _ = estimate(store, 4)
    monkeypatch.setattr(arpa, "BATCH", batch)
    monkeypatch.setattr(arpa, "BLOCK_BYTES", 1000)
    progress = []
    write_arpa(tmp_path / name, expected, store.vocabulary, lambda done, total: progress.append(done / total))
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    model, vocabulary = read_arpa(tmp_path / name)
    assert vocabulary.words == store.vocabulary.words
    assert is_same(model, expected)
    is_gzip = (tmp_path / name).read_bytes()[:2] == b"\x1f\x8b"
    assert is_gzip == name.endswith("gz")


def test_all_floats_are_preserved(tmp_path):
    """float32 of every magnitude."""
    rng = np.random.default_rng(0)
    values = -(10.0 ** rng.uniform(-20, 1.99, 5000)).astype(np.float32)
    values[:4] = [0.0, -99.0, -1.0, np.float32(-1e-44)]
    vocabulary = Vocabulary(["<unk>", "</s>", *(f"w{i}" for i in range(4998))], np.zeros(5000, np.int64))
    logs = np.append(values, np.float32(-99))
    words = np.arange(5001, dtype=np.int32)
    model = NGramModel((5001,), words, np.array([5001]), logs, np.zeros(0, np.float32))
    write_arpa(tmp_path / "a", model, vocabulary)
    back, _ = read_arpa(tmp_path / "a")
    np.testing.assert_array_equal(back.log_probabilities, logs)
    assert max(map(len, (tmp_path / "a").read_text().splitlines())) < 30


def test_words_of_any_script(tmp_path):
    words = ["café", "日本", "ß", "a\u0301", "<s>x", "-1.5", "\\x"]
    store = store_of(tmp_path, [" ".join(np.random.default_rng(i).permutation(words)) for i in range(50)])
    expected, _ = estimate(store, 3)
    write_arpa(tmp_path / "a.arpa", expected, store.vocabulary)
    model, vocabulary = read_arpa(tmp_path / "a.arpa")
    assert vocabulary.words == store.vocabulary.words
    assert is_same(model, expected)


# -- files of other tools --------------------------------------------------------------------------------------------


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
def test_a_file_of_another_tool(tmp_path, change):
    (tmp_path / "a.arpa").write_bytes(change(ELSEWHERE).encode())
    model, vocabulary = read_arpa(tmp_path / "a.arpa")
    expected = [
        -0.3,  # <s> the
        -0.05,  # <s> the cat
        -0.15,  # the cat sat
        -0.7,  # the: neither "cat sat" nor "sat" is a history
        -0.25 - 1.2,  # back-off from "the" to <unk>
        -0.9,  # cat
        -0.1,  # cat </s>
    ]
    found = log10_probabilities(model, vocabulary, "the cat sat the zebra cat")
    np.testing.assert_allclose(found, expected, atol=1e-6)
    write_arpa(tmp_path / "b.arpa", model, vocabulary)
    again, same_vocabulary = read_arpa(tmp_path / "b.arpa")
    assert is_same(again, model)
    assert same_vocabulary.words == vocabulary.words


def test_a_file_without_unk_or_begin(tmp_path):
    (tmp_path / "a.arpa").write_text("\\data\\\nngram 1=2\n\n\\1-grams:\n-0.3\t</s>\n-0.3\ta\n\n\\end\\\n")
    model, vocabulary = read_arpa(tmp_path / "a.arpa")
    assert log10_probabilities(model, vocabulary, "a zebra") == pytest.approx([-0.3, -100, -0.3])  # -100: as in KenLM


def test_numbers_of_any_size(tmp_path):
    text = ELSEWHERE.lstrip().replace("-0.15\t", "-150\t").replace("-1.2\t", "-inf\t")
    (tmp_path / "a.arpa").write_text("\ufeff" + text)
    model, vocabulary = read_arpa(tmp_path / "a.arpa")
    assert log10_probabilities(model, vocabulary, "the cat sat")[2] == pytest.approx(-150, rel=1e-6)
    assert log10_probabilities(model, vocabulary, "zebra")[0] == pytest.approx(-99 - 0.5)  # -inf is read as -99
    for old, new in (("-0.15\t", "-1e5\t"), ("-0.2\tthe cat\t-0.03125", "-0.2\tthe cat\t-99999")):
        (tmp_path / "b.arpa").write_text(ELSEWHERE.replace(old, new))
        with pytest.raises(NcelmError, match="is not the logarithm of a"):
            read_arpa(tmp_path / "b.arpa")


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ngram 2=5", "ngram 2=6", "line 24: there are 5 2-grams, but the header says 6"),
        ("ngram 1=6", "ngram 1=5", "there are more 1-grams than the header says, 5"),
        ("ngram 1=6\n", "", "expected 'ngram 1=…', found 'ngram 2=5'"),
        ("ngram 2=5", "ngram 2=99999999999999999999", "expected 'ngram 2=…', found 'ngram 2=99"),
        ("ngram 2=5\nngram 3=2", "", "expected \\end\\, found"),
        ("\\2-grams:", "\\3-grams:", "expected \\2-grams:, found"),
        ("\\data\\", "\\dat\\", "before \\end\\"),
        ("\\end\\\n", "", "ends before \\end\\"),
        ("\\3-grams:\n-0.05\t<s> the cat\n-0.15\tthe cat sat\n", "", "expected \\3-grams:, found"),
        ("-0.2\tthe cat\t-0.03125", "-0.2\tthe cat", "1 2-grams have no back-off weight, but longer"),
        ("the\t-0.25", "the", "1 1-grams have no back-off weight"),
        ("-0.2\tthe cat\t", "-0.2\tcat cat\t", "the first 2 words of the 3-gram 'the cat sat' are not among"),
        ("-0.4\tcat sat", "-0.4\tcat dog", "the word 'dog' is not among the 1-grams"),
        ("-0.4\tcat sat", "-0.4\tthe sat", "the 2-gram 'the sat' is a duplicate"),
        ("-0.9\tcat", "-0.9\tthe", "the word 'the' is a duplicate"),
        ("-0.4\tcat sat", "0.4\tcat sat", "is not the logarithm of a probability"),
        ("-0.4\tcat sat", "nan\tcat sat", "is not the logarithm of a probability"),
        ("-0.4\tcat sat", "x\tcat sat", "is not a number"),
        ("-0.4\tcat sat", "-0.4\tcat sat\tinf", "is not the logarithm of a back-off weight"),
        ("-0.4\tcat sat", "-0.4\tcat sat on the mat", "expected a number, 2 words"),
        ("-0.4\tcat sat", "-0.4\tcat", "expected a number, 2 words"),
        ("-0.9\tcat\t", "-0.9\tnew york\t", "expected a number, 1 word"),
        ("-0.9\tcat\t", "-0.9\tnew\u00a0york\t", "contains a blank"),
        ("-0.8\t</s>", "-0.8\t</S>", "the word '</s>' is not among the 1-grams"),
        ("-0.4\tcat sat", "-0.4\tcat \0sat", "this is not a text file"),
    ],
)
def test_invalid_files(tmp_path, old, new, message):
    assert old in ELSEWHERE
    (tmp_path / "a.arpa").write_text(ELSEWHERE.replace(old, new))
    with pytest.raises(NcelmError) as error:
        read_arpa(tmp_path / "a.arpa")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "ends before"),
        (b"\x00\x01\x02" * 1000, "not a text file"),
        (b"hello\n" * 2000, "no \\data\\"),
        (b"x" * 3_000_000, "not a text file"),
        (ELSEWHERE.replace("cat", "caf\u00e9").encode("latin-1"), "not UTF-8"),
        (gzip.compress(ELSEWHERE.encode())[:-30], "damaged or truncated"),
        (gzip.compress(ELSEWHERE.encode())[:20] + b"\xff" * 50, "damaged or truncated"),
        (b"\\data\\\n" + b"".join(b"ngram %d=1\n" % n for n in range(1, 12)) + b"\n\\1-grams:\n", "11 orders"),
        (b"\\data\\\nngram 1=0\n\n\\1-grams:\n\\end\\\n", "there are no 1-grams"),
        (b"\\data\\\nngram 1=1\n\n\\1-grams:\n-0.1\ta\n\\end\\\n", "has no </s> among its 1-grams"),
    ],
    ids=["empty", "junk", "no header", "one line", "latin-1", "cut", "broken gzip", "11 orders", "none", "no end"],
)
def test_files_of_another_format(tmp_path, content, message):
    (tmp_path / "a.arpa").write_bytes(content)
    with pytest.raises(NcelmError) as error:
        read_arpa(tmp_path / "a.arpa")
    assert message in str(error.value)


def test_a_missing_file_and_an_existing_output(tmp_path):
    with pytest.raises(NcelmError, match="there is no file"):
        read_arpa(tmp_path / "nothing")
    with pytest.raises(NcelmError, match="cannot read"):
        read_arpa(tmp_path)
    (tmp_path / "a.arpa").write_text(ELSEWHERE)
    model, vocabulary = read_arpa(tmp_path / "a.arpa")
    with pytest.raises(NcelmError, match="exists already"):
        write_arpa(tmp_path / "a.arpa", model, vocabulary)
    assert (tmp_path / "a.arpa").read_text() == ELSEWHERE


def test_mutated_files_are_rejected_or_read(tmp_path):
    """Random changes of bytes give an error of one line, or a model with finite probabilities."""
    rng = np.random.default_rng(0)
    whole, messages = ELSEWHERE.encode(), []
    for _ in range(300):
        broken = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            broken[int(rng.integers(len(broken)))] = int(rng.integers(256))
        (tmp_path / "a.arpa").write_bytes(bytes(broken))
        try:
            model, _ = read_arpa(tmp_path / "a.arpa")
        except NcelmError as error:
            messages.append(str(error))
        else:
            assert np.isfinite(word_distribution(model, [3, 4])).all()
    assert 100 < len(messages) < 300
    assert not any("\n" in message for message in messages)
