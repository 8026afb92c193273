"""Works of Project Gutenberg: headers of several generations, footers of many spellings, archives, broken files."""

import gzip
import tarfile

import pytest
from tests.helpers import GUTENBERG_HEADER, GUTENBERG_HEADER_END, GUTENBERG_LEGAL, GUTENBERG_LETTER, make_tar

from ncelm.errors import NcelmError
from ncelm.text.archives import summary
from ncelm.text.gutenberg import strip
from ncelm.text.prepare import prepare
from ncelm.text.store import TokenStore

WORK = "CHAPTER I\n\nIt was a dark and stormy night. The rain fell in torrents.\n\nNobody slept.\n"


@pytest.mark.parametrize(
    "header",
    [
        GUTENBERG_HEADER,
        GUTENBERG_LEGAL + "ENDTHE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTSVer.03.08.92END\n",
        GUTENBERG_LEGAL + "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN\nETEXTS*Ver.04.29.93*END*\n",
        GUTENBERG_LEGAL + "*END*THE SMALL PRINT!  FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n",
        GUTENBERG_LETTER + "*** START OF THIS PROJECT GUTENBERG EBOOK SOMETHING ***\n",
        GUTENBERG_LETTER + "*** START OF THE PROJECT GUTENBERG EBOOK SOMETHING, OR\nTHE OTHER THING ***\n",
        GUTENBERG_LETTER + "***START OF THE PROJECT GUTENBERG EBOOK SOMETHING***\n",
    ],
)
def test_headers(header):
    work = strip(header + WORK)
    assert work.text == WORK
    assert work.header_lines == header.count("\n")
    assert work.header_mark
    assert (work.footer_lines, work.footer_mark) == (0, "")


@pytest.mark.parametrize(
    "footer",
    [
        "End of the Project Gutenberg Etext of Something\n",
        "End of Project Gutenberg's Etext of Something, by Somebody\n\nmore\n",
        "The end of Project Gutenberg etext of Something",
        "****End of The Project Gutenberg Etext of Something\n",
        "This is the end of the Project Gutenberg edition\n",
        "You have reached the end of Project Gutenberg's Something\n",
        "[End of The Project Gutenberg Etext]\n",
        "End Of\nThe Project Gutenberg Etext of Volume 1:\nof Something\n",
        "*** END OF THE PROJECT GUTENBERG EBOOK SOMETHING ***\n\nA licence.\n",
        "*** END OF THIS PROJECT GUTENBERG EBOOK SOMETHING ***\n",
        "The Project Gutenberg Etext of Something, by Somebody\n",
    ],
)
def test_footers(footer):
    work = strip(GUTENBERG_HEADER + WORK + "\n" + footer)
    assert work.text.rstrip() == WORK.rstrip()
    assert work.footer_mark
    assert work.footer_lines == len(footer.splitlines())


@pytest.mark.parametrize(
    "thanks",
    [
        "\n\nThis etext was prepared by Somebody, somewhere@example.org\n\n\n",
        "\nScanned and proofread by Somebody.\n\nTyped by Somebody else\nfor a friend.\n\n",
        "\nE-text prepared from the 1898 edition\n\n",
    ],
)
def test_thanks_are_no_part_of_the_work(thanks):
    assert strip(GUTENBERG_HEADER + thanks + WORK).text.lstrip() == WORK


def test_what_belongs_to_the_work_stays():
    letters = "\nThe letter was written by the Count, for his wife.\n\n" + WORK
    assert strip(GUTENBERG_HEADER + letters).text == letters
    assert strip(WORK).text == WORK  # no header, no footer
    assert strip("").text == ""
    talk = WORK * 400 + "He had reached the end of his tether.\n" + WORK
    assert strip(GUTENBERG_HEADER + talk).text == talk


# -- archives ---------------------------------------------------------------------------------------------------------


def works(n=3):
    """Files with what old files have: DOS line ends, Ctrl-Z, latin-1."""
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
    assert rows[1]["footer_lines"] == "2"  # and what Ctrl-Z stood for
    assert summary(store.path) == {"works": 3, "without_header": 1, "without_footer": 1, "skipped": 0}


def test_archives_of_other_prose(tmp_path):
    packed = make_tar(
        tmp_path / "w.tar.gz", {"a.txt": WORK.encode(), "sub/b.txt": WORK.encode(), ".hidden": b"\0"}, "w:gz"
    )
    store = prepare(packed, out=tmp_path / "store", punkt="train", valid_sentences=0, test_sentences=0)
    assert words_of(store).count("torrents") == 2
    assert not (tmp_path / "store/works.tsv").exists()


def test_packed_files(tmp_path):
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
    [(b"", "is empty"), (b"\0\1\2" * 50, "is binary"), ((GUTENBERG_HEADER).encode(), "nothing is left")],
)
def test_a_broken_work_is_named_and_skipped_only_if_asked(tmp_path, content, message):
    packed = make_tar(tmp_path / "w.tar", works() | {"gutenberg/BROKEN.TXT": content}, "w")
    with pytest.raises(NcelmError, match=rf"w.tar/gutenberg/BROKEN.TXT: .*{message}.*--skip-broken"):
        prepare(packed, out=tmp_path / "store", **OPTIONS)
    assert not (tmp_path / "store").exists()
    store = prepare(packed, out=tmp_path / "store", skip_broken=True, **OPTIONS)
    assert summary(store.path)["skipped"] == 1
    assert message in (tmp_path / "store/works.tsv").read_text()


def test_archives_that_are_none(tmp_path):
    for name, content in (
        ("a.tar", b"hello"),
        ("b.tar.xz", b"\xfd7zXZ\0junk"),
        ("c.tar.gz", b"\x1f\x8bjunk"),
        ("d.tar", b""),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(NcelmError, match=r"damaged or no tar archive|no texts|cannot read"):
            prepare(tmp_path / name, out=tmp_path / "store", **OPTIONS)
    whole = make_tar(tmp_path / "w.tar.xz", works(30)).read_bytes()
    (tmp_path / "cut.tar.xz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(NcelmError, match="damaged"):
        prepare(tmp_path / "cut.tar.xz", out=tmp_path / "store", **OPTIONS)
    assert not (tmp_path / "store").exists()


def test_names_in_an_archive_are_never_paths(tmp_path):
    """A member cannot write outside: its name is only told."""
    packed = make_tar(
        tmp_path / "w.tar", {"../../escape.txt": works(1)["gutenberg/W0.TXT"], "ok.txt": WORK.encode()}, "w"
    )
    prepare(packed, out=tmp_path / "store", **OPTIONS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "w.tar"]


def test_options_that_make_no_sense(tmp_path):
    (tmp_path / "text").write_text("a b\n")
    with pytest.raises(NcelmError, match="--gutenberg goes with prose"):
        prepare(train=tmp_path / "text", out=tmp_path / "store", gutenberg=True)
    with pytest.raises(NcelmError, match="--skip-broken with --gutenberg"):
        prepare(tmp_path / "text", out=tmp_path / "store", skip_broken=True)


def test_the_works_of_the_challenge(shared_data, tmp_path, monkeypatch):
    """A few of the 522 works, as they are: each has its header, and hardly one no footer."""
    monkeypatch.setenv("NLTK_DATA", str(shared_data / "nltk_data"))
    files = {}
    with tarfile.open(shared_data / "holmes/holmes_training.tar.xz") as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content and len(files) < 12:
                files[member.name] = content.read()
            if len(files) == 12:
                break
    options = {**OPTIONS, "punkt": "train"}
    store = prepare(make_tar(tmp_path / "some.tar", files, "w"), out=tmp_path / "store", **options)
    found = summary(store.path)
    assert found["works"] == 12
    assert found["without_header"] == 0
    assert found["without_footer"] <= 2
    assert "gutenberg" not in words_of(TokenStore.open(tmp_path / "store"))[:5000]
