"""Blocks of lines: all lines once and in order, positions from which reading continues, samples."""

import gzip
import json
import lzma

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncelm.errors import NcelmError
from ncelm.filtering import blocks
from ncelm.filtering.blocks import find_sources, read_blocks, sample_blocks

ROWS = [{"n": i, "text": "x" * (i * 7 % 301)} for i in range(200)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def rows_of(found):
    return [json.loads(line) for block in found for line in block.data.split(b"\n") if line]


@pytest.fixture
def files(tmp_path):
    """The same rows in five kinds of files."""
    pyarrow = pytest.importorskip("pyarrow")
    zstandard = pytest.importorskip("zstandard")
    from pyarrow import parquet

    (tmp_path / "a.jsonl").write_bytes(LINES)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(LINES))
    (tmp_path / "c.jsonl.xz").write_bytes(lzma.compress(LINES))
    (tmp_path / "d.jsonl.zst").write_bytes(zstandard.compress(LINES))
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "e.parquet", row_group_size=60)
    return sorted(tmp_path.iterdir())


def test_all_kinds_of_files_have_the_same_rows(files):
    for path in files:
        found = list(read_blocks(find_sources([path]), "text"))
        assert rows_of(found) == ROWS
        assert len(found) > 3
        assert found[-1].lines == len(ROWS)
        assert found[-1].read == path.stat().st_size or path.suffix != ".jsonl"


def test_reading_continues_after_every_block(files):
    for path in files:
        sources = find_sources([path])
        all_blocks = list(read_blocks(sources, "text"))
        for i, block in enumerate(all_blocks):
            rest = list(read_blocks(sources, "text", 0, block.position, block.lines))
            assert [(each.first, each.data) for each in rest] == [
                (each.first, each.data) for each in all_blocks[i + 1 :]
            ]


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), max_size=30), end=st.booleans())
def test_lines_are_never_cut(tmp_path_factory, lines, end):
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    content = b"\n".join(lines) + (b"\n" if end else b"")
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", 16)
        found = list(read_blocks(find_sources([path]), "text"))
    bom = 3 if content.startswith(b"\xef\xbb\xbf") else 0
    assert b"".join(block.data for block in found) == content[bom:]
    number = 1
    for block in found:
        assert block.first == number
        assert block.data.endswith(b"\n") or block is found[-1]
        number += block.data.count(b"\n")


def test_a_long_line_is_reported_and_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "MAX_LINE_BYTES", 5000)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": 1}\n' + b"x" * 30_000 + b'\n{"n": 3}\n{"n": 4}\n')
    found = list(read_blocks(find_sources([path]), "text"))
    assert [(block.first, block.broken is not None) for block in found if block.broken or block.data] == [
        (1, False),
        (2, True),
        (3, False),
    ]
    assert rows_of(found) == [{"n": 1}, {"n": 3}, {"n": 4}]
    (position, lines), *_ = [(block.position, block.lines) for block in found if block.broken]
    assert lines == 2
    assert rows_of(read_blocks(find_sources([path]), "text", 0, position, lines)) == [{"n": 3}, {"n": 4}]


def test_folders_patterns_and_kinds(files, tmp_path):
    assert [source.path for source in find_sources([tmp_path])] == files
    assert [source.path.name for source in find_sources([tmp_path / "*.jsonl*"])] == [path.name for path in files[:4]]
    assert find_sources([files[4]])[0].kind == "parquet"
    for wrong, message in (
        (["no such file"], "there is no file"),
        ([tmp_path / "*.none"], "no file matches"),
        (["-", files[0]], "does not go with other files"),
    ):
        with pytest.raises(NcelmError, match=message):
            find_sources(wrong)


def test_a_sample_is_evenly_spaced_and_not_biased_by_length(tmp_path):
    """Half of the documents are ten times as long as the others, and in another part of the file."""
    path = tmp_path / "a.jsonl"
    texts = ["x" * 1000] * 5000 + ["y" * 100] * 5000
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    sample = rows_of(sample_blocks(find_sources([path]), "text", 1000))
    share = sum(row["text"][0] == "y" for row in sample) / len(sample)
    assert 700 <= len(sample) <= 1400
    assert 0.4 <= share <= 0.6


def test_a_sample_of_compressed_files_is_their_beginning(files):
    sample = rows_of(sample_blocks(find_sources([files[1]]), "text", 50))
    assert sample == ROWS[:50]


def test_values_that_json_does_not_have(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    import datetime

    from pyarrow import parquet

    row = {"text": "a", "raw": b"\xff", "time": datetime.date(2020, 1, 2), "x": float("nan"), "deep": [{"y": 1.5}]}
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "a.parquet")
    (found,) = rows_of(read_blocks(find_sources([tmp_path / "a.parquet"]), "text"))
    assert found == {"text": "a", "raw": "/w==", "time": "2020-01-02", "x": None, "deep": [{"y": 1.5}]}
