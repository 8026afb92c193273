"""Text normalisation of CCNet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ncelm
from ncelm.errors import NcelmError
from ncelm.text.normalize import ccnet_normalized


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Cat, 1234!", "the cat, 0000!"),
        ("Élève ÀÉÎ õ", "eleve aei o"),
        ("“a” „b” «c» ‘d’ e…", '"a" "b" "c" \'d\' e...'),
        ("a\u200bb\u00adc\x07", "abc"),
        ("a–b c—d", "a-b c - d"),
        ("（１２）：！", "(00):!"),
        ("٣४", "00"),
        ("漢字、かな。", "漢字,かな."),
        ("a\tb\u00a0c", "a b c"),
    ],
)
def test_examples(text, expected):
    assert ccnet_normalized(text) == expected


@given(st.text(max_size=30))
def test_twice_is_once(text):
    once = ccnet_normalized(text)
    assert ccnet_normalized(once) == once


def test_stores_and_models_keep_it(tmp_path):
    lines = ["The cat has 9 lives", "THE DOG has 1 life"] * 20
    store = ncelm.prepare(train_lines=lines, out=tmp_path / "store", normalize="ccnet", progress=False)
    assert {"0", "the", "cat"} <= set(store.vocabulary.words)
    ncelm.train_ngram(store, tmp_path / "run", order=2, progress=False)
    lm = ncelm.load(tmp_path / "run")
    assert lm.text.normalization == "ccnet"
    assert lm.score("the CAT has 7 lives") == lm.score("the cat has 0 lives")
    with pytest.raises(NcelmError, match="`normalize`"):
        ncelm.prepare(train_lines=lines, out=tmp_path / "other", normalize="nfc", progress=False)
