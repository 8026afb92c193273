"""Tables: columns of JSON lines, Parquet, CSV and TSV files; damaged files; tables that are passed as plain text."""

import csv
import gzip
import io
import json
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncelm.errors import MissingExtraError, NcelmError
from ncelm.io import compressed
from ncelm.text import readers, tables
from ncelm.text.tables import (
    check_plain_text,
    column_names,
    read_document_lines,
    read_documents,
    table_ranges,
)

DOCUMENTS = ['It was late.\n\nThe "cat" slept, and woke.', "", "Élan été, 10\u20ac\u2028🙂", "a\tb\r\nc"] * 25
READ = [document.replace("\r\n", "\n") for document in DOCUMENTS]


def json_lines(documents: list[str], **others: object) -> bytes:
    rows = ({"id": n, "text": document, **others} for n, document in enumerate(documents))
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def csv_bytes(documents: list[str], delimiter: str = ",") -> bytes:
    with io.StringIO(newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["id", "text"])
        writer.writerows(enumerate(documents))
        return file.getvalue().encode()


def parquet_bytes(columns: dict[str, object], **options: object) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    with io.BytesIO() as file:
        parquet.write_table(pyarrow.table(columns), file, **options)
        return file.getvalue()


def zstd_bytes(content: bytes) -> bytes:
    return pytest.importorskip("zstandard").compress(content)


CONTENT = {
    "a.jsonl": lambda: json_lines(DOCUMENTS, score=float("nan")),
    "a.ndjson": lambda: json_lines(DOCUMENTS).replace(b"\n", b"\r\n \r\n"),
    "a.JSON": lambda: b"\xef\xbb\xbf" + json_lines(DOCUMENTS),
    "a.jsonl.gz": lambda: gzip.compress(json_lines(DOCUMENTS)),
    "a.jsonl.zst": lambda: zstd_bytes(json_lines(DOCUMENTS)),
    "a.csv": lambda: csv_bytes(DOCUMENTS),
    "a.csv.gz": lambda: gzip.compress(csv_bytes(DOCUMENTS)),
    "a.tsv": lambda: csv_bytes(DOCUMENTS, "\t"),
    "a.parquet": lambda: parquet_bytes({"id": list(range(100)), "text": DOCUMENTS}, row_group_size=7),
    "json lines": lambda: json_lines(DOCUMENTS),
    "parquet": lambda: parquet_bytes({"id": list(range(100)), "text": DOCUMENTS}),
}


@pytest.fixture(params=CONTENT)
def table(request, tmp_path) -> Path:
    """A file with the columns `id` and `text`, in each format; two are recognized by their content."""
    path = tmp_path / request.param
    path.write_bytes(CONTENT[request.param]())
    return path


@pytest.fixture
def write(tmp_path):
    def write(name: str, content: bytes | str) -> Path:
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return tmp_path / name

    return write


def documents(path: Path, column: str = "text") -> list[str]:
    return list(read_documents(path, column))


class TestRead:
    def test_documents(self, table):
        assert documents(table) == READ
        assert column_names(table, "utf-8")[:2] == ["id", "text"]

    @pytest.mark.parametrize("size", [1, 300, 10**9])
    def test_ranges(self, table, size):
        ranges = table_ranges(table, "text", "utf-8", size)
        assert (len(ranges) > 1) == (
            size < 1000 and table.name in ("a.jsonl", "a.ndjson", "a.JSON", "a.parquet", "json lines")
        )
        assert sum(each.bytes for each in ranges) == table.stat().st_size
        seen: list[int] = []
        read = [
            document
            for start, stop, _ in ranges
            for document in read_documents(table, "text", start=start, stop=stop, on_bytes=seen.append)
        ]
        assert read == READ
        assert sum(seen) == pytest.approx(table.stat().st_size, abs=len(ranges))

    def test_missing_column(self, table):
        with pytest.raises(NcelmError, match=r"there is no column 'body': pass `column` with one of id, text"):
            documents(table, "body")

    def test_lines(self, write):
        path = write("a.jsonl", json_lines(["the cat\nsat\r\n", "", "\n", "x\n\ny", " "]))
        assert list(read_document_lines(path, "text")) == ["the cat", "sat", "", "", "x", "", "y", " "]

    def test_long_lines(self, write, monkeypatch):
        path = write("a.jsonl", json_lines(["a", "a " * 1_000_001]))
        with pytest.raises(NcelmError, match=r"a\.jsonl, line 2: has more than 1,000,000 words"):
            list(read_document_lines(path, "text"))
        monkeypatch.setattr(tables, "MAX_DOCUMENT_CHARACTERS", 1000)
        monkeypatch.setattr(readers, "BLOCK_BYTES", 100)
        with pytest.raises(
            NcelmError, match=r"line 2, has more than 1,000 characters: split the text into several rows"
        ):
            documents(path)
        with pytest.raises(NcelmError, match=r"line \d+: not valid CSV \(field larger than field limit \(1000\)"):
            documents(write("a.csv", 'text\na\n"' + "b\n" * 600))
        with pytest.raises(NcelmError, match=r"row 2: the text has more than 1,000 characters"):
            documents(write("a.parquet", parquet_bytes({"text": ["a", "b" * 1001]})))
        assert csv.field_size_limit() > 1000

    def test_other_encodings(self, write):
        row = '{"text": "café"}\n'
        assert list(read_documents(write("a.jsonl", row.encode("latin-1")), "text", "latin-1")) == ["café"]
        path = write("a.jsonl", (row * 99).encode("utf-16"))
        assert list(read_documents(path, "text", "utf-16")) == ["café"] * 99
        assert len(table_ranges(path, "text", "utf-16", 10)) == 1
        with pytest.raises(NcelmError, match=r"not UTF-8 \(byte 0xe9 at line 1\)"):
            documents(write("a.jsonl", row.encode("latin-1")))

    def test_empty_files(self, write):
        for name in ("a.jsonl", "a.csv"):
            assert documents(write(name, b"")) == []
            assert len(table_ranges(write(name, b""), "text", "utf-8", 10)) == 1
        path = write("a.parquet", parquet_bytes({"text": []}))
        with pytest.raises(NcelmError, match="has values of type null"):
            documents(path)
        pyarrow = pytest.importorskip("pyarrow")
        path = write("a.parquet", parquet_bytes({"text": pyarrow.array([], pyarrow.string())}))
        assert documents(path) == []
        assert sum(each.bytes for each in table_ranges(path, "text", "utf-8", 10)) == path.stat().st_size

    @given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\x1a\r")), max_size=9))
    def test_any_text(self, tmp_path_factory, texts):
        folder = tmp_path_factory.mktemp("any")
        (folder / "a.jsonl").write_bytes(json_lines(texts))
        (folder / "a.csv").write_bytes(csv_bytes(texts))
        assert documents(folder / "a.jsonl") == documents(folder / "a.csv") == texts


class TestJsonLines:
    @pytest.mark.parametrize(
        ("line", "fault"),
        [
            ('{"text": "c"', r"not a JSON object \(Expecting ',' delimiter at column 13\): write one object per line"),
            ("plain text", "not a JSON object"),
            ("[" * 100_000, r"not a JSON object \(nested too deeply\)"),
            ('{"n": ' + "9" * 9999 + "}", "too many digits"),
            ('["text"]', r"\['text'\] is not a JSON object"),
            ('"text"', "is not a JSON object"),
            ('{"body": "x"}', "there is no column 'text': pass `column` with one of body"),
            ('{"text": null}', "the value of 'text' is None, not a string: correct or remove it"),
            ('{"text": 3}', "the value of 'text' is 3, not a string"),
            ('{"text": ["a", "b"]}', "the value of 'text' is .*, not a string"),
            ('{"text": NaN}', "is nan, not a string"),
            (r'{"text": "a\u0000"}', "has a NUL character"),
            (r'{"text": "a\ud800"}', "has half of a surrogate pair"),
        ],
    )
    def test_bad_lines(self, write, line, fault):
        good = '{"text": "a b"}\n'
        path = write("a.jsonl", good * 20 + line + "\n" + good)
        with pytest.raises(NcelmError, match=rf"a\.jsonl, line 21: .*{fault}") as caught:
            documents(path)
        assert "\n" not in str(caught.value)
        start = table_ranges(path, "text", "utf-8", 160)[1].start
        assert 0 < start < len(good) * 20
        with pytest.raises(NcelmError, match="line 21: "):  # counted from the beginning of the file
            list(read_documents(path, "text", start=start))

    @pytest.mark.parametrize("content", ['[{"text": "a"},\n {"text": "b"}]', '{\n  "text": "a"\n}', '[{"text": "a"}]'])
    def test_one_document(self, write, content):
        with pytest.raises(NcelmError, match=r"a\.json, line 1: .*not a JSON object.*: write one object per line"):
            documents(write("a.json", content))

    def test_truncated(self, write):
        packed = gzip.compress(json_lines(DOCUMENTS))
        with pytest.raises(NcelmError, match=r"a\.jsonl\.gz is truncated"):
            documents(write("a.jsonl.gz", packed[:-9]))
        with pytest.raises(NcelmError, match=r"a\.jsonl\.zst is truncated"):
            documents(write("a.jsonl.zst", zstd_bytes(json_lines(DOCUMENTS))[:-9]))
        with pytest.raises(NcelmError, match="line 100: not a JSON object"):
            documents(write("a.jsonl", json_lines(DOCUMENTS)[:-9]))


class TestCsv:
    @pytest.mark.parametrize(
        ("content", "fault"),
        [
            ('id,text\n1,"a\n2,b\n', r"line 3: not valid CSV \(unexpected end of data\)"),
            ('id,text\n1,"a" b\n', r"line 2: not valid CSV \(',' expected after '\"'\)"),
            ("id,text\n1,a,b\n", "line 2: the row has 3 fields and the first line has 2"),
            ("id,text\n\n1\n", "line 3: the row has 1 fields"),
            ("text,text\na,b\n", "line 1: two columns have the name 'text': rename one of them"),
            ("a\tb\n1\t2\n", "line 1: there is no column 'text'"),
        ],
    )
    def test_bad_files(self, write, content, fault):
        with pytest.raises(NcelmError, match=fault):
            documents(write("a.csv", content))


class TestParquet:
    @pytest.fixture(autouse=True)
    def _pyarrow(self):
        pytest.importorskip("pyarrow")

    @pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
    @pytest.mark.parametrize("options", [{}, {"use_dictionary": False}, {"compression": "zstd", "data_page_size": 100}])
    def test_types(self, write, kind, options):
        import pyarrow as pa

        array = (
            pa.array(DOCUMENTS).dictionary_encode()
            if kind == "dictionary"
            else pa.array(DOCUMENTS, getattr(pa, kind)())
        )
        path = write("a.parquet", parquet_bytes({"other": [None] * 100, "text": array}, **options))
        assert documents(path) == READ

    def test_other_types(self, write):
        columns = {"n": [1], "list": [["a"]], "struct": [{"text": "b"}], "binary": [b"x"], "a.b": ["dot"]}
        path = write("a.parquet", parquet_bytes(columns))
        for name in ("n", "list", "struct", "binary"):
            with pytest.raises(NcelmError, match=rf"the column '{name}' has values of type .*, not strings"):
                documents(path, name)
        with pytest.raises(NcelmError, match=r"no column 'struct.text': pass `column` with one of n, list, struct"):
            documents(path, "struct.text")
        assert documents(path, "a.b") == ["dot"]

    def test_null(self, write):
        path = write("a.parquet", parquet_bytes({"text": ["a"] * 10 + [None]}, row_group_size=3))
        for start in (0, 2):
            with pytest.raises(NcelmError, match=r"a\.parquet, row 11: the value of 'text' is None, not a string"):
                list(read_documents(path, "text", start=start))

    def test_two_columns_of_one_name(self, write):
        import pyarrow as pa

        with io.BytesIO() as file:
            from pyarrow import parquet

            parquet.write_table(pa.table([["a"], ["b"]], names=["text", "text"]), file)
            path = write("a.parquet", file.getvalue())
        with pytest.raises(NcelmError, match="two columns have the name 'text'"):
            documents(path)

    def test_expansion_is_limited(self, write, monkeypatch):
        """A text that is repeated takes no space in a file, and no memory."""
        monkeypatch.setattr(compressed, "FREE_BYTES", 1 << 20)
        path = write("a.parquet", parquet_bytes({"text": ["word " * 10_000] * 1000}))
        assert path.stat().st_size < 100_000
        with pytest.raises(NcelmError, match="expands to more than 250 times its size"):
            documents(path)

    def test_damaged(self, write):
        content = parquet_bytes({"id": list(range(100)), "text": DOCUMENTS}, row_group_size=30)
        for bad in (
            b"",
            b"PAR1",
            b"PAR1" + bytes(99) + b"PAR1",
            content[:-1],
            content[4:],
            content[:300] + content[350:],
        ):
            with pytest.raises(NcelmError, match=r"a\.parquet is not a Parquet file, or is damaged"):
                documents(write("a.parquet", bad))
        with pytest.raises(NcelmError, match="is a compressed Parquet file: decompress it first"):
            documents(write("a.parquet.gz", gzip.compress(content)))

    def test_without_the_package(self, write, monkeypatch):
        path = write("a.parquet", parquet_bytes({"text": DOCUMENTS}))
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(MissingExtraError, match=r"pyarrow is needed .*: pip install 'ncelm\[parquet\]'"):
            documents(path)
        with pytest.raises(NcelmError, match=r"is a Parquet file, not plain text: pass `column` NAME$"):
            check_plain_text(path, "utf-8")


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.csv", "a.parquet"])
def test_random_damage(write, name):
    """A damaged file is read or refused, and never anything else."""
    content = CONTENT[name]()
    generator = random.Random(name)
    errors = []
    for _ in range(300):
        damaged = bytearray(content)
        match generator.randrange(3):
            case 0:
                del damaged[generator.randrange(len(damaged)) :]
            case 1:
                for _ in range(generator.randrange(1, 4)):
                    damaged[generator.randrange(len(damaged))] = generator.randrange(256)
            case 2:
                start = generator.randrange(len(damaged))
                del damaged[start : start + generator.randrange(1, 50)]
        path = write(name, bytes(damaged))
        try:
            for start, stop, _ in table_ranges(path, "text", "utf-8", 500):
                assert all(isinstance(text, str) for text in read_documents(path, "text", start=start, stop=stop))
        except NcelmError as error:
            errors.append(str(error))
    assert len(errors) > 100
    assert all(name in error and "\n" not in error for error in errors)


class TestPlainText:
    def test_tables_are_refused(self, table):
        with pytest.raises(
            NcelmError, match=r"not plain text: pass `column` text \(its columns are id, text"
        ) as caught:
            check_plain_text(table, "utf-8")
        rename = "or rename it to .txt if it is plain text" in str(caught.value)
        assert rename == ("csv" in table.name or "tsv" in table.name)

    @pytest.mark.parametrize(
        "content",
        [
            '{"text": "a"}',
            '\n\n  {"text": "a"}\n\n{"text": "b"}\n',
            '{"text": "' + "long " * 100_000 + '"}\n',
            '{"a": 1}\n{"text": "' + "long " * 100_000 + '"}\n',
        ],
    )
    def test_json_lines_of_any_name(self, write, content):
        with pytest.raises(NcelmError, match="is JSON, not plain text: pass `column`"):
            check_plain_text(write("a.txt", content), "utf-8")
        with pytest.raises(NcelmError, match="is JSON, not plain text: pass `column`"):
            check_plain_text(write("a.txt", content.encode("utf-16")), "utf-16")

    @pytest.mark.parametrize(
        "content",
        [
            "",
            "{}",
            "{braces} in a text. {More} of them.",
            '{"a": 1} is a JSON object.',
            '{"title": "Emma"}\nEmma Woodhouse, handsome, clever, and rich.\n',
            '{"title": "Emma"}\n' + "Emma Woodhouse, handsome, clever, and rich. " * 5000,
            '{"a": 1}\n' * 4 + "This was an example.",
            '["a", "b"]\n"c"\n3\n',
            "{ the cat }\n{ the dog }\n",
            '{"' + "a" * 100_000,
            "PAR 1 of the text.",
        ],
    )
    def test_ordinary_text_is_not_refused(self, write, content):
        check_plain_text(write("a.txt", content), "utf-8")
        check_plain_text(write("a.txt.gz", gzip.compress(content.encode())), "utf-8")

    @pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.tsv", "a.json", "a.parquet"])
    def test_names_of_tables(self, write, name):
        content = gzip.compress(b"Some text.") if name.endswith(".gz") else b"Some text."
        with pytest.raises(NcelmError, match=r"not plain text: pass `column` NAME"):
            check_plain_text(write(name, content), "utf-8")

    def test_plain_text_is_no_table(self, write):
        path = write("a.txt", "Some text.\n")
        for use in (documents, lambda path: table_ranges(path, "text", "utf-8", 10)):
            with pytest.raises(
                NcelmError, match=r"a\.txt is not JSON lines, Parquet, CSV or TSV: `column` is for these"
            ):
                use(path)

    def test_many_columns(self, write):
        path = write("a.jsonl", json.dumps({f"column {n}\n": n for n in range(100)}))
        with pytest.raises(NcelmError, match=r"column 0\\n, .* column 19\\n, …\)") as caught:
            check_plain_text(path, "utf-8")
        assert "column 20" not in str(caught.value)
