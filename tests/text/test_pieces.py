"""Subword tokenizers: training, files, unknown text, and the commands that apply them."""

import io
import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncelm
from ncelm.completion import parse_gap
from ncelm.errors import NcelmError
from ncelm.text.pieces import Pieces, Training, train_pieces
from ncelm.text.settings import TextSettings, TextSize

pytest.importorskip("tokenizers")

LINES = ["the cat sat on the mat", "Größe und Maß", "the dog sat on the log .", "你好 世界"] * 30


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def pieces(request):
    pytest.importorskip("sentencepiece" if request.param == "unigram" else "tokenizers")
    return train_pieces(Training(request.param, 300), LINES)


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory):
    """A SentencePiece model with byte fallback, and one without."""
    sentencepiece = pytest.importorskip("sentencepiece")
    found = {}
    for fallback in (True, False):
        file = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES * 5), model_writer=file, vocab_size=320 if fallback else 60,
            byte_fallback=fallback, character_coverage=0.999, minloglevel=2, hard_vocab_limit=False,
        )  # fmt: skip
        path = tmp_path_factory.mktemp("sp") / "pieces.model"
        path.write_bytes(file.getvalue())
        found[fallback] = path
    return found


# -- pieces ----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40))
def test_no_text_is_unknown_and_pieces_give_the_text_again(text):
    trained = Pieces("huggingface", _trained())
    words = TextSettings.of(trained).words(text)
    assert set(words) <= set(trained.names)
    assert all(word.split() == [word] for word in words)
    assert trained.join(words) == " ".join(text.split())


_CONTENT = {}


def _trained() -> bytes:
    if not _CONTENT:
        _CONTENT[""] = train_pieces(Training("bpe", 300), LINES).content
    return _CONTENT[""]


def test_training_gives_the_same_bytes_and_the_size(pieces):
    algorithm = "bpe" if pieces.kind == "huggingface" else "unigram"
    again = train_pieces(Training(algorithm, 300), LINES)
    assert again.content == pieces.content
    assert again == pieces
    assert 256 <= len(list(pieces.names)) <= 300
    if algorithm == "bpe":
        assert pieces.words("the cat") == ["Ġthe", "Ġcat"]


def test_special_tokens_in_a_text_are_text(pieces):
    assert pieces.join(pieces.words("a </s> <unk> <s> b")) == "a </s> <unk> <s> b"
    assert not {"</s>", "<s>", "<unk>"} & set(pieces.names)


def test_pickling_keeps_the_tokenizer(pieces):
    assert pickle.loads(pickle.dumps(pieces)).words("the cat") == pieces.words("the cat")


@pytest.mark.parametrize(
    "text", ["train:bpe", "train:bpe:", "train:words:300", "train:bpe:256", "train:bpe:-5", "train:"]
)
def test_wrong_specifications(text):
    with pytest.raises(NcelmError, match="give train:bpe:SIZE"):
        Training.parse(text)


def test_a_name_is_no_specification():
    assert Training.parse("tokenizer.json") is None


def test_text_is_spelled_piece_by_piece(pieces):
    text = TextSettings.of(pieces)
    words = text.words("the cat 你好 sat")
    parts = list(text.spelled(words[2:], words[:2]))
    assert text.join(words[:2]) + "".join(parts) == "the cat 你好 sat"
    assert "\ufffd" not in "".join(parts)


# -- files -----------------------------------------------------------------------------------------------------------


def test_sentencepiece(sentencepiece_model):
    pieces = Pieces.read(sentencepiece_model[True])
    assert pieces.kind == "sentencepiece"
    for text in ("the cat", "ω Ω unseen ☃"):
        words = pieces.words(text)
        assert "<unk>" not in words
        assert pieces.join(words) == text
    # of a model without byte fallback, other characters are unknown
    assert "<unk>" in Pieces.read(sentencepiece_model[False]).words("the ☃ cat")


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"{", b"[1]", b'{"model": 5}', b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}', b"\0" * 100,
     b"plain text", b'{"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}}', b"\n\xff\xff\xff\xff\x0f"],
)  # fmt: skip
def test_damaged_files_are_errors_of_one_line(tmp_path, content, capfd):
    pytest.importorskip("sentencepiece")
    path = tmp_path / "tokenizer"
    path.write_bytes(content)
    with pytest.raises(NcelmError, match="give another file") as caught:
        Pieces.read(path)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_pieces_with_white_space_or_reserved_names_get_other_names(tmp_path):
    vocabulary = {"[UNK]": 0, "a b": 1, "</s>": 2, "x": 3, "\u3000": 4}
    content = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }  # fmt: skip
    (tmp_path / "t.json").write_text(json.dumps(content))
    pieces = Pieces.read(tmp_path / "t.json")
    assert set(pieces.names) == {"<piece-1>", "<piece-2>", "x", "<piece-4>"}
    assert pieces.words("x </s> y") == ["x", "<piece-2>", "<unk>"]


# -- stores and models -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory, small_text):
    """A store of subwords with an n-gram model, a neural model and their mixture."""
    folder = tmp_path_factory.mktemp("pieces")
    store = ncelm.prepare(
        [small_text], out=folder / "store", tokenizer="train:bpe:600", punkt="train", workers=1, progress=False
    )
    ncelm.train_ngram(store, folder / "ngram", order=3, progress=False)
    ncelm.train(store, folder / "neural", dim=8, epochs=1, progress=False)
    ncelm.mix([folder / "ngram", folder / "neural"], folder / "mixed", progress=False)
    return folder


def test_all_pieces_are_in_the_vocabulary(model):
    store = ncelm.TokenStore.open(model / "store")
    assert len(store.vocabulary) == 602
    assert set(store.text.pieces.names) <= set(store.vocabulary.words)
    assert all(split.unknown == 0 for split in store.splits.values())
    assert (model / "store" / "tokenizer.json").read_bytes() == (model / "mixed" / "tokenizer.json").read_bytes()


def test_the_size_of_the_text_does_not_depend_on_the_tokenizer(model, small_store):
    pieces = ncelm.TokenStore.open(model / "store")
    total = [sum(np.array(split.size) for split in store.splits.values()) for store in (pieces, small_store)]
    np.testing.assert_array_equal(*total)


@pytest.mark.parametrize("run", ["ngram", "neural", "mixed"])
def test_every_model_applies_the_tokenizer(model, run):
    lm = ncelm.load(model / run)
    scores = lm.full_scores("Dorothy ☃ said")
    assert scores[0].word == "ĠDorothy"
    assert not any(score.unknown for score in scores)
    generated = lm.generate("Dorothy", 3, max_words=20)
    assert all("Ġ" not in each.text and each.text.startswith("Dorothy") for each in generated)


def test_measures_per_word_and_byte(model):
    lm = ncelm.load(model / "ngram")
    sentences = ["Dorothy lived in the midst of the prairies.", "Größe"]
    result = lm.evaluate(sentences)
    total = sum(lm.score(sentence) for sentence in sentences)
    assert (result.words, result.bytes) == (9, 44 + 8)
    assert result.word_perplexity == pytest.approx(np.exp(-total / (9 + 2)))
    assert result.bits_per_byte == pytest.approx(-total / np.log(2) / 52)
    assert lm.evaluate([ncelm.Tokens(lm.text.words(each)) for each in sentences]) == result
    on_split = lm.evaluate_split(model / "store", "test")
    assert on_split.bits_per_byte == pytest.approx(-on_split.log_probability / np.log(2) / on_split.bytes)


def test_a_word_model_has_the_same_perplexity_per_token_and_word(small_store):
    sizes = TextSize.of("the cat  sat")
    assert sizes == (3, 12)
    assert small_store.split("test").size.words > 0


def test_gaps_are_pieces(model):
    text = ncelm.load(model / "ngram").text
    gap = parse_gap("Dorothy _____, and the Lion.", ["laughed", "sat down"], text, "x")
    whole = text.words("Dorothy sat down, and the Lion.")
    assert gap.filled([gap.choices[1]])[0] == whole
    two = parse_gap("The _____ saw the _____ again.", ["Lion; Witch", "old man; road"], text, "x")
    assert two.filled(two.choices[1])[0] == text.words("The old man saw the road again.")


def test_neighbors_of_a_word_that_is_one_piece(model):
    lm = ncelm.load(model / "neural")
    assert lm.neighbors("Dorothy", 2) == lm.neighbors("ĠDorothy", 2)
    with pytest.raises(NcelmError, match="pieces"):
        lm.neighbors("incomprehensible", 2)


def test_another_tokenizer_is_an_error(model, tmp_path):
    import shutil

    run = shutil.copytree(model / "ngram", tmp_path / "run")
    (run / "tokenizer.json").write_bytes(_trained())
    with pytest.raises(NcelmError, match=r"not the tokenizer of this model .*checksum"):
        ncelm.load(run)
    (run / "tokenizer.json").unlink()
    with pytest.raises(NcelmError, match=r"there is no tokenizer .*tokenizer\.json"):
        ncelm.load(run)


def test_a_tokenizer_of_an_arpa_file(model, tmp_path):
    ncelm.export_arpa(model / "ngram", tmp_path / "a.arpa", progress=False)
    tokenizer = model / "store" / "tokenizer.json"
    lm = ncelm.import_arpa(tmp_path / "a.arpa", tmp_path / "run", tokenizer=tokenizer, progress=False)
    assert lm.score("Dorothy said") == pytest.approx(ncelm.load(model / "ngram").score("Dorothy said"), abs=1e-4)
    (tmp_path / "other.json").write_bytes(_words_tokenizer())
    with pytest.raises(NcelmError, match="does not match the model"):
        ncelm.import_arpa(tmp_path / "a.arpa", tmp_path / "b", tokenizer=tmp_path / "other.json", progress=False)
    assert not (tmp_path / "b").exists()


def _words_tokenizer() -> bytes:
    model = {"type": "WordLevel", "vocab": {"[UNK]": 0, "some": 1, "words": 2}, "unk_token": "[UNK]"}
    rest = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder", "pre_tokenizer"))
    return json.dumps({"version": "1.0", **rest, "added_tokens": [], "model": model}).encode()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_count": 2}, "`min_count` is for words"),
        ({"vocabulary_size": 500}, "`vocabulary_size` is for words"),
        ({"tokenizer": "no such file"}, "there is no tokenizer no such file"),
        ({"parts": 2}, "parts of a text need one `tokenizer`"),
        ({"tokenizer": "train:bpe:10"}, "give train:bpe:SIZE"),
    ],
)
def test_wrong_arguments(tmp_path, options, message):
    (tmp_path / "text").write_text("\n".join(LINES))
    arguments = {"train": tmp_path / "text", "out": tmp_path / "store", "tokenizer": "train:bpe:300"}
    with pytest.raises(NcelmError, match=message):
        ncelm.prepare(**arguments | options, progress=False)
    assert not (tmp_path / "store").exists()


def test_the_number_of_workers_does_not_matter(tmp_path):
    (tmp_path / "text").write_text("\n".join(LINES))
    stores = [
        ncelm.prepare(
            train=[tmp_path / "text"] * 2, out=tmp_path / f"store{workers}", tokenizer="train:bpe:300",
            valid_sentences=9, workers=workers, progress=False,
        )
        for workers in (1, 2)
    ]  # fmt: skip
    assert stores[0].fingerprint == stores[1].fingerprint
