"""Readers: line ends, encodings, damaged files, ranges and shards."""

import gzip
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncelm.errors import NcelmError
from ncelm.text import readers
from ncelm.text.readers import byte_ranges, read_lines, read_prose, shard_range
from ncelm.text.sentences import BLANK_LINE


def written(path, content: bytes):
    path.write_bytes(content)
    return path


class TestReadLines:
    def test_line_ends(self, tmp_path):
        content = "\ufeffone 1\r\ntwo\u0085\u2028\x0b2\rthree\n\n  \nlast".encode()
        lines = list(read_lines(written(tmp_path / "a", content)))
        assert lines == ["one 1", "two\u0085\u2028\x0b2", "three", "last"]

    @given(st.lists(st.text(alphabet="ab é\r\n\U0001f600"), max_size=20), st.integers(1, 7))
    def test_blocks_do_not_matter(self, tmp_path_factory, pieces, block):
        path = tmp_path_factory.mktemp("blocks") / "a"
        content = "".join(pieces)
        path.write_bytes(content.encode())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(readers, "BLOCK_BYTES", block)
            lines = list(read_lines(path))
        whole = content.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        assert lines == [line for line in whole if line.strip()]

    def test_gz(self, tmp_path):
        packed = gzip.compress(b"a b\nc\n" * 100_000)
        assert list(read_lines(written(tmp_path / "a.gz", packed))) == ["a b", "c"] * 100_000
        with pytest.raises(NcelmError, match=r"a\.gz is truncated"):
            list(read_lines(written(tmp_path / "a.gz", packed[:-30])))
        with pytest.raises(NcelmError, match="not a gzip file"):
            list(read_lines(written(tmp_path / "a.gz", b"a b\n")))
        with pytest.raises(NcelmError, match="damaged"):
            list(read_lines(written(tmp_path / "a.gz", packed[:40] + b"xxxxxxxxxx" + packed[50:])))

    def test_missing_folder_unreadable(self, tmp_path):
        with pytest.raises(NcelmError, match=r"there is no file .*nothing"):
            list(read_lines(tmp_path / "nothing"))
        with pytest.raises(NcelmError, match="is a folder"):
            list(read_lines(tmp_path))
        with pytest.raises(NcelmError, match="there is no file"):
            list(read_lines(written(tmp_path / "file", b"x") / "below"))

    def test_unreadable(self, tmp_path, monkeypatch):
        path = written(tmp_path / "a", b"x")

        def refuse(*_, **__):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("os.open", refuse)
        with pytest.raises(NcelmError, match=r"cannot read .*: Permission denied"):
            list(read_lines(path))

    def test_binary(self, tmp_path):
        for content in (b"abc\0def", random.Random(0).randbytes(5000)):
            with pytest.raises(NcelmError, match="looks like a binary file"):
                list(read_lines(written(tmp_path / "a", content)))

    def test_not_utf8(self, tmp_path):
        path = written(tmp_path / "a", b"one\r\ntwo\rcaf\xe9 x\n")
        with pytest.raises(NcelmError, match=r"a is not UTF-8 \(byte 0xe9 at line 3\).* `encoding` latin-1$"):
            list(read_lines(path))
        assert list(read_lines(path, "latin-1"))[-1] == "café x"
        with pytest.raises(NcelmError, match=r"is not ascii \(byte 0xe9 at line 3\)"):
            list(read_lines(path, "ascii"))
        with pytest.raises(NcelmError, match=r"not UTF-8 \(byte 0xc3 at line 2\)"):
            list(read_lines(written(tmp_path / "b", b"one\ntw\xc3")))

    def test_not_utf8_far_into_the_file(self, tmp_path):
        path = written(tmp_path / "a", b"a line of words\n" * 200_000 + b"\xff\n")
        with pytest.raises(NcelmError, match="byte 0xff at line 200,001"):
            list(read_lines(path))
        start, stop = byte_ranges(path, "utf-8", 2_000_000, at_blank_lines=False)[-1]
        with pytest.raises(NcelmError, match="byte 0xff at line 200,001"):
            list(read_lines(path, start=start, stop=stop))

    def test_utf16(self, tmp_path):
        path = written(tmp_path / "a", "é one\ntwo\n".encode("utf-16"))
        assert list(read_lines(path, "utf-16")) == ["é one", "two"]
        assert byte_ranges(path, "utf-16", 2, at_blank_lines=False) == [(0, None)]
        with pytest.raises(NcelmError, match="binary"):
            list(read_lines(path))

    @pytest.mark.parametrize("encoding", ["klingon", "hex", "utf-8\0"])
    def test_unknown_encoding(self, tmp_path, encoding):
        with pytest.raises(NcelmError, match="there is no text encoding"):
            list(read_lines(written(tmp_path / "a", b"x"), encoding))

    def test_long_lines(self, tmp_path):
        ten_million_words = b"a " * 10_000_000
        path = written(tmp_path / "a", b"first\n" + ten_million_words)
        with pytest.raises(NcelmError, match=r"a, line 2, has more than .*: split it into sentences"):
            list(read_lines(path))
        path = written(tmp_path / "a", b"first\n" + ten_million_words[:2_000_002] + b"\nlast")
        with pytest.raises(NcelmError, match=r"line 2, has more than 1,000,000 words"):
            list(read_lines(path))
        path = written(tmp_path / "a", ten_million_words[:2_000_000] + b"\nlast")
        assert [len(line.split()) for line in read_lines(path)] == [1_000_000, 1]


class TestByteRanges:
    @given(st.lists(st.text(alphabet="ab \r\n\n"), max_size=30), st.integers(1, 40), st.booleans())
    def test_ranges_read_like_the_whole(self, tmp_path_factory, pieces, size, prose):
        path = tmp_path_factory.mktemp("ranges") / "a"
        path.write_bytes("".join(pieces).encode())
        ranges = byte_ranges(path, "utf-8", size, at_blank_lines=prose)
        assert ranges[0][0] == 0
        assert ranges[-1][1] is None
        assert [stop for _, stop in ranges[:-1]] == [start for start, _ in ranges[1:]]
        if prose:
            read = ["".join(read_prose(path, start=start, stop=stop)) for start, stop in ranges]
            paragraphs = [p.split() for part in read for p in BLANK_LINE.split(part) if p.strip()]
            whole = path.read_text()
            assert paragraphs == [p.split() for p in BLANK_LINE.split(whole) if p.strip()]
        else:
            parts = [line for start, stop in ranges for line in read_lines(path, start=start, stop=stop)]
            assert parts == list(read_lines(path))

    @pytest.mark.parametrize("prose", [False, True])
    def test_a_real_text(self, small_text, prose):
        ranges = byte_ranges(small_text, "utf-8", 10_000, at_blank_lines=prose)
        assert len(ranges) > 15
        read = read_prose if prose else read_lines
        parts = [" ".join(read(small_text, start=start, stop=stop)) for start, stop in ranges]
        assert " ".join(parts).split() == small_text.read_text().split()

    def test_on_bytes_adds_up(self, tmp_path):
        path = written(tmp_path / "a", b"some words\n" * 300_000)
        seen = []
        for start, stop in byte_ranges(path, "utf-8", 1_000_000, at_blank_lines=False):
            list(read_lines(path, start=start, stop=stop, on_bytes=seen.append))
        assert sum(seen) == path.stat().st_size


class TestReadProse:
    def test_chunks_end_at_blank_lines(self, tmp_path):
        paragraphs = [f"This is paragraph {n}.\nIt has\r\ntwo lines." for n in range(60_000)]
        path = written(tmp_path / "a", "\r\n \r\n".join(paragraphs).encode())
        chunks = list(read_prose(path))
        assert len(chunks) > 2
        assert max(map(len, chunks)) < 3_000_000
        again = [p.split() for chunk in chunks for p in BLANK_LINE.split(chunk) if p.strip()]
        assert again == [p.split() for p in paragraphs]

    def test_no_blank_lines_at_all(self, tmp_path):
        words = [f"word{n}" for n in range(1_000_000)]
        chunks = list(read_prose(written(tmp_path / "a", " ".join(words).encode())))
        assert max(map(len, chunks)) < 6_000_000
        assert [word for chunk in chunks for word in chunk.split()] == words

    def test_control_z(self, tmp_path):
        assert "".join(read_prose(written(tmp_path / "a", b"The end.\r\n\x1a"))).split() == ["The", "end."]


def test_shards_of_a_file_are_the_file(tmp_path):
    lines = [f"line {i}" * (i % 7) for i in range(100)]
    (tmp_path / "text").write_text("\n".join(lines))
    for shards in (1, 3, 8, 500):
        read = []
        for number in range(1, shards + 1):
            start, stop = shard_range(tmp_path / "text", "utf-8", number, shards)
            read += read_lines(tmp_path / "text", start=start, stop=stop, keep_blank=True)
        assert read == lines
    for path in ("-", "text.gz"):
        with pytest.raises(NcelmError, match="cannot be read in shards"):
            shard_range(path, "utf-8", 1, 2)
