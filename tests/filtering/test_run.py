"""`filter_documents`: scores, buckets, order, formats, interruptions, and bad input."""

import gzip
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.filtering.conftest import documents

import ncelm
from ncelm.errors import ArgumentError, NcelmError
from ncelm.filtering import scoring
from ncelm.filtering.run import filter_documents
from ncelm.io.files import write_json


def run(models, files, out, model="ngram", **options):
    return filter_documents(models / model, files, out, **{"workers": 1, "progress": False} | options)


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "filter.json"}


# -- scores ----------------------------------------------------------------------------------------------------------


def test_perplexities_are_those_of_the_sentences(models, corpus, tmp_path):
    result = run(models, corpus, tmp_path / "out", score_only=True)
    lm = ncelm.load(models / "ngram")
    found = rows(tmp_path / "out" / "scored.jsonl")
    assert [row["id"] for row in found] == list(range(300))
    for row, text in zip(found, documents(), strict=True):
        sentences = list(lm.scores_of(text.split("\n")))
        tokens = sum(sentence.tokens for sentence in sentences)
        expected = math.exp(-sum(sentence.log_probability for sentence in sentences) / tokens)
        assert row["perplexity"] == pytest.approx(expected, rel=1e-5)
        assert (row["tokens"], row["unknown"]) == (tokens, sum(sentence.unknown for sentence in sentences))
        assert row["text"] == text
    assert result.total == 300
    assert result.tokens == sum(row["tokens"] for row in found)


def test_unnormalised_scores_have_another_name(models, corpus, tmp_path):
    result = run(models, corpus, tmp_path / "out", model="neural", score_only=True)
    assert (result.measure, result.modes) == ("pseudo_perplexity", ["unnormalised"])
    assert "perplexity" not in rows(tmp_path / "out" / "scored.jsonl")[0]
    exact = run(models, corpus, tmp_path / "exact", model="neural", mode="exact", score_only=True)
    assert exact.measure == "perplexity"
    lm, first = ncelm.load(models / "neural"), rows(tmp_path / "exact" / "scored.jsonl")[0]
    assert first["perplexity"] == pytest.approx(lm.perplexity(documents()[0].split("\n")), rel=1e-5)


def test_the_normalizer_of_a_model_is_used(models, corpus, tmp_path):
    fast = shutil.copytree(models / "neural", tmp_path / "fast")
    ncelm.fit_normalizer(fast, contexts=300, units=8, progress=False)
    result = filter_documents(fast, corpus, tmp_path / "out", score_only=True, workers=1, progress=False)
    assert (result.measure, result.modes) == ("perplexity", ["fast"])
    lm, first = ncelm.load(fast), rows(tmp_path / "out" / "scored.jsonl")[0]
    scores = list(lm.scores_of(documents()[0].split("\n"), mode="fast"))
    expected = math.exp(-sum(s.log_probability for s in scores) / sum(s.tokens for s in scores))
    assert first["perplexity"] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(NcelmError, match="no normalizer"):
        run(models, corpus, tmp_path / "none", model="neural", mode="fast", score_only=True)
    # another mode than that of the interrupted call
    state = tmp_path / "out" / "filter.json"
    content = json.loads(state.read_text())
    write_json(state, {k: v for k, v in content.items() if k != "checksum"} | {"finished": False})
    (fast / "normalizer.safetensors").unlink()
    with pytest.raises(NcelmError, match=r"another mode \(fast\)"):
        filter_documents(fast, corpus, tmp_path / "out", score_only=True, workers=1, progress=False, resume=True)


def test_contrast_of_two_models(models, corpus, tmp_path):
    result = run(models, corpus, tmp_path / "out", contrast=models / "reversed", keep=40, rejected=True)
    assert result.measure == "cross_entropy_difference"
    kept, others = (rows(tmp_path / "out" / f"{name}.jsonl") for name in ("kept", "rejected"))
    assert 120 <= len(kept) <= 200  # documents with equal values are kept together
    assert all(row["id"] % 3 != 1 for row in kept)  # those in the wrong order
    for row in (*kept, *others):
        expected = math.log(row["perplexity"]) - math.log(row["contrast_perplexity"])
        assert row["cross_entropy_difference"] == pytest.approx(expected, abs=1e-4)
        assert (row["cross_entropy_difference"] <= result.thresholds[0]) == (row["bucket"] == "kept")


# -- buckets ---------------------------------------------------------------------------------------------------------


def test_head_middle_and_tail(models, corpus, tmp_path):
    result = run(models, corpus, tmp_path / "out", calibrate=1000)
    found = {name: rows(tmp_path / "out" / f"{name}.jsonl") for name in ("head", "middle", "tail")}
    assert {name: len(some) for name, some in found.items()} == result.documents
    assert 80 <= len(found["head"]) <= 110
    assert 80 <= len(found["middle"]) <= 110
    values = [row["perplexity"] for some in found.values() for row in some]
    expected = np.percentile(values, [30, 60])
    np.testing.assert_allclose(result.thresholds, expected, rtol=0.02)
    for name, some in found.items():
        assert [row["id"] for row in some] == sorted(row["id"] for row in some)
        place = {"head": 0, "middle": 1, "tail": 2}[name]
        assert all(np.searchsorted(result.thresholds, row["perplexity"]) == place for row in some)
        assert all(row["bucket"] == name for row in some)
    np.testing.assert_allclose(result.deciles, np.percentile(values, range(10, 100, 10)), rtol=0.15)
    assert sum(count for *_, count in result.histogram) == 300


def test_a_threshold_and_the_thresholds_of_another_folder(models, corpus, tmp_path):
    first = run(models, corpus, tmp_path / "first", keep=50)
    again = run(models, corpus, tmp_path / "again", keep=50, thresholds_from=tmp_path / "first")
    given = run(models, corpus, tmp_path / "given", threshold=first.thresholds[0])
    assert first.thresholds == again.thresholds == given.thresholds
    assert bytes_of(tmp_path / "first") == bytes_of(tmp_path / "again") == bytes_of(tmp_path / "given")
    assert set(bytes_of(tmp_path / "first")) == {"kept.jsonl"}


def test_many_unknown_words_are_in_the_last_bucket(models, corpus, tmp_path):
    run(models, corpus, tmp_path / "out", threshold=1e9, max_unknown=0.05, rejected=True)
    assert all(row["id"] % 3 == 2 for row in rows(tmp_path / "out" / "rejected.jsonl"))
    assert len(rows(tmp_path / "out" / "kept.jsonl")) == 200


def test_documents_without_words(models, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n\n{"text": " \\n "}\n{"text": "the cat"}\n')
    result = run(models, tmp_path / "a.jsonl", tmp_path / "out", threshold=1e9, rejected=True, html=True)
    assert (result.empty, result.documents) == (2, {"kept": 1, "rejected": 2})
    assert [row["perplexity"] for row in rows(tmp_path / "out" / "rejected.jsonl")] == [None, None]


# -- formats ---------------------------------------------------------------------------------------------------------


def test_text_files(models, tmp_path):
    lines = [text.replace("\n", " ") for text in documents(30)]
    (tmp_path / "a.txt").write_bytes("\r\n".join(lines).encode())
    run(models, tmp_path / "a.txt", tmp_path / "json", score_only=True)
    assert [row["text"] for row in rows(tmp_path / "json" / "scored.jsonl")] == lines
    run(models, tmp_path / "a.txt", tmp_path / "text", score_only=True, format="text")
    assert (tmp_path / "text" / "scored.txt").read_text() == "".join(f"{line}\n" for line in lines)


def test_a_line_keeps_its_bytes(models, tmp_path):
    line = '{ "text" : "the c\\u0061t", "x": 1e2,"é":[ ] }  '
    (tmp_path / "a.jsonl").write_text(line + "\n")
    run(models, tmp_path / "a.jsonl", tmp_path / "out", score_only=True)
    written = (tmp_path / "out" / "scored.jsonl").read_text()
    assert written.startswith(line.rstrip()[:-1] + ', "perplexity": ')
    # a second time, the fields are replaced
    run(models, tmp_path / "out" / "scored.jsonl", tmp_path / "again", score_only=True, prefix="")
    (row,) = rows(tmp_path / "again" / "scored.jsonl")
    assert list(row) == ["text", "x", "é", "perplexity", "tokens", "unknown", "bucket"]
    run(models, tmp_path / "a.jsonl", tmp_path / "prefix", score_only=True, prefix="lm_")
    assert {"lm_perplexity", "lm_bucket"} <= set(rows(tmp_path / "prefix" / "scored.jsonl")[0])


@pytest.mark.parametrize("compression", ["gz", "zst"])
def test_compressed_output(models, corpus, tmp_path, compression):
    zstandard = pytest.importorskip("zstandard")
    run(models, corpus, tmp_path / "plain", score_only=True)
    run(models, corpus, tmp_path / "packed", score_only=True, compress=compression)
    packed = (tmp_path / "packed" / f"scored.jsonl.{compression}").read_bytes()
    if compression == "gz":
        content = gzip.decompress(packed)
    else:
        content = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True).read()
    assert content == (tmp_path / "plain" / "scored.jsonl").read_bytes()


def test_a_table_and_json_lines_have_the_same_result(models, corpus, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist(rows(corpus))
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=37)
    run(models, tmp_path / "a.parquet", tmp_path / "out", calibrate=1000)
    run(models, corpus, tmp_path / "same", calibrate=1000)
    for name in ("head", "middle", "tail"):
        assert rows(tmp_path / "out" / f"{name}.jsonl") == rows(tmp_path / "same" / f"{name}.jsonl")


def test_prose_is_split_into_sentences(small_store, tmp_path):
    ncelm.train_ngram(small_store, tmp_path / "run", order=2, progress=False)
    text = "Dorothy lived in Kansas. She had a dog.\nIt was black."
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}) + "\n")
    options = {"score_only": True, "progress": False, "workers": 1}
    found = filter_documents(tmp_path / "run", tmp_path / "a.jsonl", tmp_path / "out", **options)
    sentences = small_store.sentence_splitter().sentences(text)
    assert found.tokens == sum(score.tokens for score in ncelm.load(tmp_path / "run").scores_of(sentences))
    by_line = filter_documents(tmp_path / "run", tmp_path / "a.jsonl", tmp_path / "l", sentences="lines", **options)
    assert by_line.tokens != found.tokens


# -- processes and interruptions -------------------------------------------------------------------------------------


@pytest.mark.serial
def test_the_number_of_workers_does_not_matter(models, corpus, tmp_path):
    one = run(models, corpus, tmp_path / "one", html=True)
    two = run(models, corpus, tmp_path / "two", html=True, workers=2)
    assert one.as_dict() | {"out": 0, "outputs": 0, "seconds": 0} == two.as_dict() | {
        "out": 0, "outputs": 0, "seconds": 0,
    }  # fmt: skip
    assert bytes_of(tmp_path / "one").keys() == bytes_of(tmp_path / "two").keys()
    for name in ("head.jsonl", "middle.jsonl", "tail.jsonl"):
        assert bytes_of(tmp_path / "one")[name] == bytes_of(tmp_path / "two")[name]


@pytest.mark.parametrize("compression", ["none", "gz"])
def test_an_interrupted_call_is_resumed(models, corpus, tmp_path, monkeypatch, compression):
    options = {"compress": compression, "keep": 50, "rejected": True, "html": True}
    run(models, corpus, tmp_path / "whole", **options)
    monkeypatch.setattr("ncelm.filtering.run.SAVE_SECONDS", 0.0)
    original, calls = scoring.score_block, 0

    def interrupted(kind, first, data, thresholds, skip):
        nonlocal calls
        calls += thresholds is not None
        if thresholds is not None and calls % 5 == 0:
            raise KeyboardInterrupt
        return original(kind, first, data, thresholds, skip)

    monkeypatch.setattr(scoring, "score_block", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt, match="continue with `resume`"):
            run(models, corpus, tmp_path / "out", resume=True, **options)
        names = {path.name for path in (tmp_path / "out").iterdir()}
        assert not any(name.endswith((".jsonl", ".gz")) for name in names)
        with next((tmp_path / "out").glob("kept*")).open("ab") as file:  # written after the state
            file.write(b"half a line")
    monkeypatch.setattr(scoring, "score_block", original)
    run(models, corpus, tmp_path / "out", resume=True, **options)
    whole, resumed = bytes_of(tmp_path / "whole"), bytes_of(tmp_path / "out")
    assert whole.keys() == resumed.keys()
    assert all(whole[name] == resumed[name] for name in whole if name != "filter.html")
    assert run(models, corpus, tmp_path / "out", resume=True, **options).total == 300  # finished: nothing is done


@pytest.mark.serial
def test_killed_and_resumed(models, corpus, tmp_path):
    run(models, corpus, tmp_path / "whole")
    script = (
        "import time, ncelm.filtering.run as r, ncelm.filtering.blocks as b\n"
        "b.BLOCK_BYTES, r.SAVE_SECONDS = 2000, 0.0\n"
        "read = r.read_blocks\n"
        "def slow(*a):\n    for block in read(*a):\n        time.sleep(0.05)\n        yield block\n"
        "r.read_blocks = slow\n"
        f"r.filter_documents({str(models / 'ngram')!r}, [{str(corpus)!r}], {str(tmp_path / 'out')!r}, workers=2, "
        "resume=True, progress=False)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if (tmp_path / "out" / "filter.json").exists():
                break
            time.sleep(0.02)
        time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (tmp_path / "out" / "filter.json").exists()
    run(models, corpus, tmp_path / "out", resume=True)
    assert {k: v for k, v in bytes_of(tmp_path / "out").items() if k != "filter.lock"} == bytes_of(tmp_path / "whole")


def test_resuming_needs_the_same_arguments_files_and_output(models, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("ncelm.filtering.run.SAVE_SECONDS", 0.0)
    lines = corpus.read_text().splitlines()
    corpus.write_text("\n".join([*lines[:200], "{broken", *lines[201:]]))
    with pytest.raises(NcelmError, match=r"line 201: not a JSON object .*`skip_broken` and `resume`"):
        run(models, corpus, tmp_path / "out", threshold=30)
    for options, message in (
        ({"threshold": 31}, "another `given_thresholds`"),
        ({"threshold": 30, "model": "neural"}, "another `run`"),
        ({"threshold": 30, "prefix": "x"}, "another `prefix`"),
    ):
        with pytest.raises(NcelmError, match=message):
            run(models, corpus, tmp_path / "out", resume=True, **options)
    with pytest.raises(NcelmError, match=r"exists already: continue with `resume`"):
        run(models, corpus, tmp_path / "out", threshold=30)
    output = tmp_path / "out" / "kept.jsonl.unfinished"
    content = output.read_bytes()
    output.write_bytes(content[:-1])
    with pytest.raises(NcelmError, match="not what was written before"):
        run(models, corpus, tmp_path / "out", threshold=30, resume=True)
    output.write_bytes(content)
    result = run(models, corpus, tmp_path / "out", threshold=30, resume=True, skip_broken=True)
    assert (result.total, result.broken) == (299, 1)
    whole = run(models, corpus, tmp_path / "whole", threshold=30, skip_broken=True)
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")
    assert whole.named == result.named
    os.utime(corpus, ns=(1, 1))
    with pytest.raises(NcelmError, match="they have changed"):
        run(models, corpus, tmp_path / "out", threshold=30, resume=True)


def test_a_damaged_state_is_an_error(models, corpus, tmp_path):
    run(models, corpus, tmp_path / "out")
    path = tmp_path / "out" / "filter.json"
    content = json.loads(path.read_text())
    for change in ({"position": -1}, {"position": "1"}, {"histogram": {"-1": 2}}, {"outputs": {"../x": {"bytes": 1}}},
                   {"thresholds": [None]}, {"examples": {"1": [[1]]}}, {"more": 1}, {"finished": 1}):  # fmt: skip
        write_json(path, {**content, **change})
        with pytest.raises(NcelmError, match=r"filter\.json is damaged"):
            run(models, corpus, tmp_path / "out", resume=True)
    path.write_text("{}")
    with pytest.raises(NcelmError, match=r"not a filtered corpus"):
        run(models, corpus, tmp_path / "out", resume=True)


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "a"', r"line 31: not a JSON object .*: write one object per line"),
        (b"[1]", r"line 31: \[1\] is not a JSON object"),
        (b'{"body": "a"}', r"line 31: there is no column 'text': pass `column` with one of body"),
        (b'{"text": null}', r"line 31: the value of 'text' is None, not a string"),
        (b'{"text": "a\xff"}', r"line 31: the line is not UTF-8"),
        (b'{"text": "a\\u0000"}', r"line 31: the value of 'text' has a NUL"),
        (b'{"text": "\\ud800"}', r"line 31: the value of 'text' has half of a surrogate pair"),
        (b"x" * 30_000, r"line 31: the line has more than 64,000,000 bytes"),
        (b'{"text": ' + b"[" * 2000 + b"]" * 2000 + b"}", r"line 31: .*(nested too deeply|not a string)"),
    ],
)
def test_broken_rows(models, corpus, tmp_path, monkeypatch, line, message):
    monkeypatch.setattr("ncelm.filtering.blocks.MAX_LINE_BYTES", 8000)
    lines = corpus.read_bytes().splitlines()
    corpus.write_bytes(b"\n".join([*lines[:30], line, *lines[30:]]) + b"\n")
    with pytest.raises(NcelmError, match=message) as caught:
        run(models, corpus, tmp_path / "out", threshold=30)
    assert "\n" not in str(caught.value)
    assert "skip_broken" in str(caught.value)
    result = run(models, corpus, tmp_path / "skipped", threshold=30, rejected=True, skip_broken=True)
    assert (result.total, result.broken) == (300, 1)
    assert "line 31" in result.named[0]


def test_an_error_in_the_first_block_leaves_nothing(models, tmp_path):
    (tmp_path / "a.jsonl").write_text("{}\n")
    with pytest.raises(NcelmError, match="line 1: there is no column 'text'"):
        run(models, tmp_path / "a.jsonl", tmp_path / "out", threshold=30)
    assert not (tmp_path / "out").exists()


def test_null_in_a_table(models, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["the cat", None, "a"]}), tmp_path / "a.parquet")
    with pytest.raises(NcelmError, match=r"row 2: the value of 'text' is None"):
        run(models, tmp_path / "a.parquet", tmp_path / "out", threshold=30)
    assert run(models, tmp_path / "a.parquet", tmp_path / "out", threshold=30, skip_broken=True).broken == 1
    with pytest.raises(NcelmError, match="there is no column 'body'"):
        run(models, tmp_path / "a.parquet", tmp_path / "other", threshold=30, column="body")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"keep": 0}, ArgumentError, "`keep`"),
        ({"keep": 101}, ArgumentError, "`keep`"),
        ({"keep": 10, "threshold": 5}, NcelmError, "either `keep` or `threshold`"),
        ({"split": (60, 30)}, ArgumentError, "`split`"),
        ({"rejected": True}, NcelmError, "`rejected` goes with"),
        ({"mode": "slow"}, ArgumentError, "`mode`"),
        ({"prefix": '"'}, ArgumentError, "`prefix`"),
        ({"max_unknown": 2}, ArgumentError, "`max_unknown`"),
        ({"threshold": 1, "thresholds_from": "x"}, NcelmError, "does not go with"),
        ({"thresholds_from": "no such folder"}, NcelmError, "there is no filtered corpus"),
        ({"calibrate": 1}, ArgumentError, "`calibrate`"),
        ({"model": "nothing"}, NcelmError, "there is no run"),
        ({"contrast": "nothing"}, NcelmError, "there is no run"),
        ({"sentences": "punkt"}, NcelmError, "has no sentence model"),
    ],
)
def test_wrong_arguments(models, corpus, tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        run(models, corpus, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_too_few_documents_for_percentiles(models, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "the cat"}\n' * 5)
    with pytest.raises(NcelmError, match=r"only 5 documents .* give `threshold`"):
        run(models, tmp_path / "a.jsonl", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -- the page --------------------------------------------------------------------------------------------------------


def test_the_page_has_examples_and_escapes_them(models, tmp_path):
    texts = [f"the {word} sees the cat <script>{i}</script>" for i in range(30) for word in ("cat", "dog", "xyz")]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    run(models, tmp_path / "a.jsonl", tmp_path / "out", html=True)
    page = (tmp_path / "out" / "filter.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "Tenth 1" in page
    assert "Tenth 10" in page
