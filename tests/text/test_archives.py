"""Extraction of texts from archives and compressed files, and the report on Project Gutenberg works."""

import gzip
import io
import os
import re
import tarfile
from itertools import islice
from tarfile import TarInfo

import pytest
from tests.helpers import GUTENBERG_HEADER, GUTENBERG_HEADER_END, make_tar

from ncelm.errors import NcelmError
from ncelm.text.archives import extract_texts, summary
from ncelm.text.prepare import prepare
from ncelm.text.readers import read_prose

WORK = "CHAPTER I\n\nIt was a dark and stormy night. The rain fell in torrents.\n\nNobody slept.\n"


def works(n=3):
    """Return Project Gutenberg files like those of the 1990s: DOS line ends, Ctrl-Z, latin-1."""
    made = {}
    for i in range(n):
        text = (
            GUTENBERG_HEADER
            + WORK * 5
            + f"The café number{i} was closed. It was late.\n\nEnd of Project Gutenberg's Etext\n"
        )
        made[f"gutenberg/W{i}.TXT"] = text.replace("\n", "\r\n" if i % 2 else "\n").encode("latin-1") + b"\x1a"
    return made


def words_of(store):
    return [store.vocabulary.word(int(i)) for i in store.split("train").ids]


OPTIONS = {"gutenberg": True, "lowercase": True, "punkt": "train", "valid_sentences": 0, "test_sentences": 0}


@pytest.mark.parametrize(
    ("name", "mode"), [("w.tar.xz", "w:xz"), ("w.tar.gz", "w:gz"), ("w.tar", "w"), ("w.tbz2", "w:bz2")]
)
def test_an_archive_and_its_folder_give_the_same_store(tmp_path, name, mode):
    files = works()
    packed = make_tar(tmp_path / name, files, mode)
    for path, content in files.items():
        (tmp_path / "folder" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / path).write_bytes(content)
    stores = [
        prepare(source, out=tmp_path / f"store{i}", **OPTIONS) for i, source in enumerate((packed, tmp_path / "folder"))
    ]
    assert stores[0].fingerprint == stores[1].fingerprint
    words = words_of(stores[0])
    assert words.count("café") == 3
    assert not {"gutenberg", "etext", "lawyers", "\x1a"} & set(words)


def test_the_report_names_every_work(tmp_path):
    files = works(2) | {"gutenberg/PLAIN.TXT": WORK.encode()}
    store = prepare(make_tar(tmp_path / "w.tar", files, "w"), out=tmp_path / "store", **OPTIONS)
    lines = (tmp_path / "store/works.tsv").read_text().splitlines()
    rows = [dict(zip(lines[0].split("\t"), line.split("\t"), strict=True)) for line in lines[1:]]
    assert [row["file"] for row in rows] == [f"w.tar/gutenberg/{name}.TXT" for name in ("PLAIN", "W0", "W1")]
    assert [row["encoding"] for row in rows] == ["utf-8", "latin-1", "latin-1"]
    assert rows[1]["header_lines"] == "5"
    assert rows[1]["header_mark"] == GUTENBERG_HEADER_END.strip()
    assert rows[1]["first_line"] == "CHAPTER I"
    assert rows[1]["footer_lines"] == "2"  # the footer and the line of Ctrl-Z
    assert summary(store.path) == {"works": 3, "without_header": 1, "without_footer": 1, "skipped": 0}


def test_archives_of_other_prose(tmp_path):
    packed = make_tar(
        tmp_path / "w.tar.gz", {"a.txt": WORK.encode(), "sub/b.txt": WORK.encode(), ".hidden": b"\0"}, "w:gz"
    )
    store = prepare(packed, out=tmp_path / "store", punkt="train", valid_sentences=0, test_sentences=0)
    assert words_of(store).count("torrents") == 2
    assert not (tmp_path / "store/works.tsv").exists()


def test_compressed_files(tmp_path):
    work = works(1)["gutenberg/W0.TXT"]
    (tmp_path / "work.txt.gz").write_bytes(gzip.compress(work))
    store = prepare(tmp_path / "work.txt.gz", out=tmp_path / "store", **OPTIONS)
    assert words_of(store).count("café") == 1
    packed = make_tar(tmp_path / "w.tar", {"a.txt.gz": gzip.compress(WORK.encode() * 3)}, "w")
    store = prepare(packed, out=tmp_path / "other", punkt="train", valid_sentences=0, test_sentences=0)
    assert words_of(store).count("torrents") == 3
    for content in (gzip.compress(work)[:-20], b"no gzip"):
        (tmp_path / "broken.txt.gz").write_bytes(content)
        with pytest.raises(NcelmError, match=r"broken.txt.gz is damaged"):
            prepare(tmp_path / "broken.txt.gz", out=tmp_path / "third", **OPTIONS)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"\0\1\2" * 50, "is binary"), (GUTENBERG_HEADER.encode(), "nothing is left")],
)
def test_a_broken_work_is_an_error_or_skipped(tmp_path, content, message):
    packed = make_tar(tmp_path / "w.tar", works() | {"gutenberg/BROKEN.TXT": content}, "w")
    with pytest.raises(NcelmError, match=rf"w.tar/gutenberg/BROKEN.TXT: .*{message}.*`skip_broken`"):
        prepare(packed, out=tmp_path / "store", **OPTIONS)
    assert not (tmp_path / "store").exists()
    store = prepare(packed, out=tmp_path / "store", skip_broken=True, **OPTIONS)
    assert summary(store.path)["skipped"] == 1
    assert message in (tmp_path / "store/works.tsv").read_text()


def test_damaged_archives(tmp_path):
    for name, content in (
        ("a.tar", b"hello"),
        ("b.tar.xz", b"\xfd7zXZ\0junk"),
        ("c.tar.gz", b"\x1f\x8bjunk"),
        ("d.tar", b""),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(NcelmError, match=r"damaged or not a tar archive|no texts|cannot read"):
            prepare(tmp_path / name, out=tmp_path / "store", **OPTIONS)
    whole = make_tar(tmp_path / "w.tar.xz", works(30)).read_bytes()
    (tmp_path / "cut.tar.xz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(NcelmError, match="damaged"):
        prepare(tmp_path / "cut.tar.xz", out=tmp_path / "store", **OPTIONS)
    assert not (tmp_path / "store").exists()


def test_names_in_an_archive_are_never_paths(tmp_path):
    packed = make_tar(
        tmp_path / "w.tar", {"../../escape.txt": works(1)["gutenberg/W0.TXT"], "ok.txt": WORK.encode()}, "w"
    )
    prepare(packed, out=tmp_path / "store", **OPTIONS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "w.tar"]


def test_invalid_options(tmp_path):
    (tmp_path / "text").write_text("a b\n")
    with pytest.raises(NcelmError, match="`gutenberg` goes with prose"):
        prepare(train=tmp_path / "text", out=tmp_path / "store", gutenberg=True)
    with pytest.raises(NcelmError, match="`skip_broken` with `gutenberg`"):
        prepare(tmp_path / "text", out=tmp_path / "store", skip_broken=True)


def test_a_real_text_in_an_archive(small_text, tmp_path):
    """Chapters as works: all that is left of each file is the chapter."""
    chapters = [part for part in re.split(r"(?m)^(?= *\d+\.  )", small_text.read_text()) if part.strip()]
    assert len(chapters) == 25  # with the title
    files = {
        f"{number:02}.txt": f"{GUTENBERG_HEADER}{chapter}End of Project Gutenberg's Etext\n".encode()
        for number, chapter in enumerate(chapters)
    }
    packed = make_tar(tmp_path / "works.tar.gz", files, "w:gz")
    texts, reports = extract_texts([packed], tmp_path, gutenberg=True, encoding="utf-8", skip_broken=False)
    assert [each.path.read_text() for each in texts] == chapters
    assert all(report.header_mark and report.footer_mark for report in reports)


def test_works_of_the_challenge(shared_data, tmp_path):
    """40 of the 522 works of the MSR Sentence Completion Challenge, in their original form."""
    with tarfile.open(shared_data / "holmes/holmes_training.tar.xz") as tar:
        files = {member.name: tar.extractfile(member).read() for member in islice(filter(TarInfo.isfile, tar), 40)}
    packed = make_tar(tmp_path / "some.tar", files, "w")
    texts, reports = extract_texts([packed], tmp_path, gutenberg=True, encoding="utf-8", skip_broken=False)
    assert len(texts) == len(reports) == 40
    assert all(report.header_mark for report in reports)
    assert sum(not report.footer_mark for report in reports) <= 5
    for each in texts:
        text = each.path.read_text()
        assert "PUBLIC DOMAIN ETEXTS" not in text
        assert len(text) > 10_000


# -- names, damage -----------------------------------------------------------------------------------------------------


def numbered(n):
    return f"The text number{n} is here. It was a dark and stormy night.\n".encode() * 3


PROSE_OPTIONS = {"punkt": "train", "valid_sentences": 0, "test_sentences": 0}


@pytest.mark.parametrize("gutenberg", [False, True])
def test_archives_of_the_same_name_are_not_mixed(tmp_path, gutenberg):
    packed = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        files = {f"{i}.txt": numbered(f"{folder}{i}") for i in range(3)}
        packed.append(make_tar(tmp_path / folder / "w.tar", files, "w"))
    store = prepare(packed, out=tmp_path / "store", gutenberg=gutenberg, **PROSE_OPTIONS)
    words = words_of(store)
    assert [words.count(f"number{folder}{i}") for folder in "ab" for i in range(3)] == [3] * 6
    if gutenberg:
        names = [line.split("\t")[0] for line in (tmp_path / "store/works.tsv").read_text().splitlines()[1:]]
        assert len(set(names)) == 6


def test_an_archive_with_two_files_of_the_same_name_is_an_error(tmp_path):
    """Files that were appended to an archive replace earlier ones only when it is unpacked."""
    with tarfile.open(tmp_path / "w.tar", "w") as tar:
        for content in (numbered(1), numbered(2)):
            member = TarInfo("same.txt")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    with pytest.raises(NcelmError, match=r"w.tar has two files named 'same.txt': unpack it"):
        prepare(tmp_path / "w.tar", out=tmp_path / "store", **PROSE_OPTIONS)


def test_a_damaged_tar_is_not_a_shorter_one(tmp_path):
    whole = make_tar(tmp_path / "w.tar", {f"{i}.txt": numbered(i) for i in range(4)}, "w").read_bytes()
    headers = [m.start() - 257 for m in re.finditer(rb"ustar", whole)]
    assert len(headers) == 4
    flipped = bytearray(whole)
    flipped[headers[1] + 130] ^= 1
    for name, content in {
        "a flipped bit": bytes(flipped),
        "truncated before the third": whole[: headers[2]],
        "truncated in the third header": whole[: headers[2] + 100],
        "truncated in the third file": whole[: headers[2] + 600],
        "zeros instead of a header": whole[: headers[2]] + bytes(512) + whole[headers[2] + 512 :],
        "two archives": whole + whole,
    }.items():
        (tmp_path / "bad.tar").write_bytes(content)
        with pytest.raises(NcelmError, match=r"bad.tar is (damaged|truncated)"):
            prepare(tmp_path / "bad.tar", out=tmp_path / "store", **PROSE_OPTIONS)
        assert not (tmp_path / "store").exists(), name


def test_faults_name_the_file_in_the_archive(tmp_path):
    for content, message in (
        (gzip.compress(b"A text. " * 500)[:-12], "is damaged or not a gzip file"),
        (b"no gzip", "is damaged or not a gzip file"),
        (gzip.compress(b"caf\xe9 " * 500), "is not UTF-8"),
    ):
        packed = make_tar(tmp_path / "w.tar", {"good.txt": numbered(1), "bad.txt.gz": content}, "w")
        with pytest.raises(NcelmError, match=f"^w.tar/bad.txt.gz {message}"):
            prepare(packed, out=tmp_path / "store", **PROSE_OPTIONS)


def test_names_that_are_not_unicode(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / os.fsdecode(b"caf\xe9.txt")).write_bytes(numbered(1))
    prepare(tmp_path / "texts", out=tmp_path / "store", gutenberg=True, **PROSE_OPTIONS)
    assert r"caf\udce9.txt" in (tmp_path / "store/works.tsv").read_text()


@pytest.mark.parametrize("name", ["bomb.txt.gz", "bomb.tar.gz"])
def test_a_file_that_expands_too_much_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr("ncelm.io.compressed.FREE_BYTES", 1 << 20)
    text = b"a b c. \n\n" * 1_000_000
    if name == "bomb.tar.gz":
        make_tar(tmp_path / name, {f"{i}.txt": text[:2_000_000] for i in range(5)}, "w:gz")
    else:
        (tmp_path / name).write_bytes(gzip.compress(text))
    with pytest.raises(NcelmError, match=f"{name} expands to more than 250 times its size"):
        extract_texts([tmp_path / name], tmp_path, gutenberg=False, encoding="utf-8", skip_broken=False)
    if name == "bomb.txt.gz":
        with pytest.raises(NcelmError, match=f"{name} expands to more than 250 times its size"):
            list(read_prose(tmp_path / name))


def test_a_pipe_in_a_folder_is_an_error(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_bytes(numbered(1))
    os.mkfifo(tmp_path / "texts/pipe")
    with pytest.raises(NcelmError, match="pipe is a pipe or a device, not a file"):
        prepare(tmp_path / "texts", out=tmp_path / "store", **PROSE_OPTIONS)
