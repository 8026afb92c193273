"""Lines to ids by a compiled kernel: the same as `str.split` and `Vocabulary.encode`."""

import secrets

import numpy as np
import pytest

from ncelm.models.line_encoder import LineEncoder
from ncelm.text.settings import TextSettings
from ncelm.text.vocabulary import Vocabulary

WORDS = ["<unk>", "</s>", "the", "cat", "é", "naïve", "日本", "ς", "athe", "a", "\0", "x" * 300, "i̇", "ab", "ba"]


def expected(vocabulary, lines, lowercase):
    """Return ids and ends, word by word."""
    settings, ids, ends = TextSettings("whitespace", lowercase), [], []
    for line in lines:
        ids += [*vocabulary.encode(settings.words(line)).tolist(), vocabulary.end_id]
        ends.append(len(ids) - 1)
    return ids, ends


def check(lines, lowercase=False, words=WORDS):
    vocabulary = Vocabulary(words, [0] * len(words))
    ids, ends = LineEncoder(vocabulary, lowercase).encode(lines)
    assert (ids.tolist(), ends.tolist()) == expected(vocabulary, lines, lowercase)
    assert ids.dtype == np.uint32


@pytest.mark.parametrize("lowercase", [False, True])
def test_lines(lowercase):
    lines = ["the cat", "", " ", "  the\tcat  ", "THE Cat", "</s> <s> <unk>", "é e\u0301 É", "日本 日", "x" * 300]
    lines += ["ΑΣ ΣΑ Σ ας", "İ i̇", "\0 \0a", "the\ncat\r\nthe", "the\x1ccat\x85the\u3000cat", "\ud800 the", "naïve"]
    check(lines, lowercase)
    check([], lowercase)
    check([""], lowercase)
    check(["a"] * 3, lowercase)


def test_every_character_between_words():
    """All code points: those that are white space separate words, all others belong to them."""
    check([f"a{chr(code)}the" for code in range(0x3100)])
    check(["".join(f"{chr(code)}a" for code in range(first, first + 0x1000)) for first in range(0, 0x110000, 0x1000)])


@pytest.mark.parametrize("seed", range(3))
def test_random_text(seed):
    random = np.random.default_rng(seed)
    alphabet = list("ab  \t\u00a0\u2003é日")
    lines = ["".join(random.choice(alphabet, random.integers(40))) for _ in range(300)]
    found = sorted({word for line in lines[:50] for word in line.split()} - {"a"})
    check(lines, words=["<unk>", "</s>", *found])


def test_words_whose_hashes_are_equal(monkeypatch):
    """Collisions are resolved: with all tags and first slots equal, words are compared byte by byte."""
    words = ["<unk>", "</s>", *(f"{a}{b}" for a in "abcdefgh" for b in "abcdefgh")]
    for seed in (0, 1, 2**64 - 1):
        monkeypatch.setattr(secrets, "randbits", lambda bits, seed=seed: seed)
        check([" ".join(words), "zz aa", "aa"], words=words)
