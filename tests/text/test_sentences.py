"""Sentence splitting by Punkt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import PROSE, change_json

from ncelm.errors import NcelmError
from ncelm.text.sentences import SentenceSplitter


@pytest.fixture(scope="module")
def splitter():
    return SentenceSplitter.train([PROSE])


def test_trained(splitter):
    assert splitter.sentences("Mr. Smith\nspoke to  Dr. Jones. He said: yes.\n \nA title\n\nThe end") == [
        "Mr. Smith spoke to Dr. Jones.",
        "He said: yes.",
        "A title",
        "The end",
    ]
    assert splitter.sentences("") == []
    assert splitter.sentences(" \n\n \n") == []


def test_round_trip(splitter, tmp_path):
    splitter.sentences("Words not seen in training are not remembered.")
    splitter.save(tmp_path)
    again = SentenceSplitter.load(tmp_path)
    assert again.sentences(PROSE) == splitter.sentences(PROSE)
    first = (tmp_path / "punkt.json").read_bytes()
    again.save(tmp_path)
    assert (tmp_path / "punkt.json").read_bytes() == first
    assert b"remembered" not in first


def test_a_real_text(small_text):
    text = small_text.read_text()
    splitter = SentenceSplitter.train([text])
    sentences = splitter.sentences(text)
    assert sentences[3].startswith("Dorothy lived in the midst of the great Kansas prairies, with Uncle Henry,")
    assert sentences[3].endswith("who was the farmer's wife.")
    assert " ".join(sentences).split() == text.split()
    assert 2200 < len(sentences) < 2400
    assert sum(s[-1] in ".!?\"'" for s in sentences) > 0.95 * len(sentences)


def test_damaged(splitter, tmp_path):
    splitter.save(tmp_path)
    path = tmp_path / "punkt.json"
    good = path.read_text()
    for name, bad in (
        ("abbreviations", None),
        ("abbreviations", [3]),
        ("collocations", [3]),
        ("collocations", [["a", 3]]),
        ("orthographic_contexts", {"a": "b"}),
        ("sentence_starters", [[1]]),
    ):
        path.write_text(good)
        change_json(path, {name: bad})
        with pytest.raises(NcelmError, match=r"damaged: prepare the store again"):
            SentenceSplitter.load(tmp_path)
    for bad in (good[:-20], good.replace('"version": 2', '"version": 1')):
        path.write_text(bad)
        with pytest.raises(NcelmError, match="damaged"):
            SentenceSplitter.load(tmp_path)
    path.write_text(good)
    change_json(path, {"version": 3})
    with pytest.raises(NcelmError, match="newer"):
        SentenceSplitter.load(tmp_path)


@given(st.lists(st.text(alphabet="abA. \n?!1-\"'"), max_size=5))
def test_trains_on_anything(chunks):
    splitter = SentenceSplitter.train(chunks)
    for chunk in chunks:
        assert "".join("".join(splitter.sentences(chunk)).split()) == "".join(chunk.split())


@pytest.mark.parametrize("junk", [". ", ".) ", "a", "word ", "Word. "])
def test_long_paragraphs(splitter, junk):
    paragraph = junk * (100_000 // len(junk))
    sentences = splitter.sentences(paragraph)
    assert "".join(" ".join(sentences).split()) == "".join(paragraph.split())
    if junk == "Word. ":
        assert set(sentences) == {"Word."}


def test_missing_model(tmp_path, monkeypatch):
    import nltk.data

    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    with pytest.raises(NcelmError, match=r"python -m nltk.downloader punkt_tab.* `punkt` train") as caught:
        SentenceSplitter.english()
    assert "\n" not in str(caught.value)


def test_english(shared_data, monkeypatch, tmp_path):
    import nltk.data

    monkeypatch.setattr(nltk.data, "path", [str(shared_data / "nltk_data")])
    splitter = SentenceSplitter.english()
    splitter.save(tmp_path)
    for one in (splitter, SentenceSplitter.load(tmp_path)):
        assert one.sentences("It was 5 p.m. on Oct. 3. Prof. Moriarty came. Why?") == [
            "It was 5 p.m. on Oct. 3.",
            "Prof. Moriarty came.",
            "Why?",
        ]
