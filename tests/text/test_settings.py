"""Tokenizers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.tokenize import TreebankWordTokenizer

from ncelm.text import settings as settings_module
from ncelm.text.settings import TextSettings


def test_whitespace():
    assert TextSettings().words(" The cat\tsat .\u2028now ") == ["The", "cat", "sat", ".", "now"]
    assert TextSettings(lowercase=True).words("The Cat") == ["the", "cat"]


def test_treebank():
    settings = TextSettings("treebank")
    assert settings.words('He said,  "I can\'t."') == [
        "He", "said", ",", "``", "I", "ca", "n't", ".", "''",
    ]  # fmt: skip
    assert TextSettings("treebank", lowercase=True).words("They'll GO.") == ["they", "'ll", "go", "."]


def test_treebank_equals_nltk():
    from nltk.tokenize import TreebankWordTokenizer

    for sentence in (
        "\"Cannot you (or d'ye) wanna pay $3.88, i.e. 5%?\" he asked -- 'tis so...",
        "The dogs' bowl; it's [sic] John's: e-mail a@b.c & go!",
        "I'M SURE THEY'LL SAY \"N'T\".",
    ):
        assert TextSettings("treebank").words(sentence) == TreebankWordTokenizer().tokenize(sentence)


@given(st.text(), st.sampled_from(["whitespace", "treebank"]), st.booleans())
def test_no_word_has_white_space(sentence, tokenizer, lowercase):
    words = TextSettings(tokenizer, lowercase).words(sentence)
    assert " ".join(words).split() == words


@pytest.mark.parametrize("junk", ["'", ". ", ".) ", '"', " ", "( ", "canno", "x.'"])
def test_treebank_takes_linear_time(junk):
    TextSettings("treebank").words("a" + junk * (200_000 // len(junk)) + "b")


PARTS = ["a", "can", "cannot", "gonna", '"', "''", "'", "``", ".", "..", "...", ",", ":", ";", "?", "!", "(", ")", "[",
         "<", "--", "'s", "n't", "'ll", "'tis", "d'ye", "more'n", "1", " ", " ", "@", "$", "%", "é"]  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PARTS), max_size=14).map("".join))
def test_words_that_are_remembered_are_those_of_the_treebank_tokenizer(sentence):
    expected = TreebankWordTokenizer().tokenize(" ".join(sentence.split()))
    assert TextSettings("treebank").words(sentence) == expected


def test_long_words_are_not_remembered():
    settings_module._inner_part.cache_clear()
    sentence = f"He said {'x' * 200}, and left."
    assert TextSettings("treebank").words(sentence) == TreebankWordTokenizer().tokenize(sentence)
    assert settings_module._inner_part.cache_info().currsize == 0
