"""Crafted and damaged tar archives."""

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from functools import cache
from pathlib import Path
from random import Random

from tests.hostile.answers import Answer, answer_of, difference
from tests.hostile.corpus import TAR_TEXTS, Corpus, prose
from tests.hostile.mutations import damage
from tests.hostile.outcome import HARMLESS, Family, Place, Violation, without_attack

from ncelm.text.prepare import prepare

BOMB_BYTES = 1600 << 20  # of blanks, which take 1.6 MB
BOMB_PROBABILITY = 0.0005
OPTIONS = {"punkt": "train", "valid_sentences": 20, "test_sentences": 10, "workers": 1}
PACKED = {
    ".tar": lambda content: content,
    ".tar.gz": lambda content: gzip.compress(content, 1, mtime=0),
    ".tgz": lambda content: gzip.compress(content, 1, mtime=0),
    ".tar.xz": lambda content: lzma.compress(content, preset=0),
    ".tar.bz2": bz2.compress,
}
NAMES = (
    *(
        "../evil.txt",
        "/evil.txt",
        "a/../../evil.txt",
        "x" * 300 + ".txt",
        "a\nb.txt",
        "é.txt",
        "\udcff.txt",
        "",
        ".",
        "/",
    ),
    *(".hidden", "a/.b/c.txt", "__MACOSX/x", "1.txt", "zzz.txt", "0.txt/1.txt", "~/x", "C:\\x", "a\0b"),
)


def member(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    """Return an entry of an archive."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(content)
    return info, content


def pack(members: list[tuple[tarfile.TarInfo, bytes]], format: int = tarfile.PAX_FORMAT) -> bytes:
    """Return an uncompressed archive."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format, errors="surrogateescape") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def texts() -> list[tuple[tarfile.TarInfo, bytes]]:
    """Return the entries of a valid archive."""
    return [member(f"texts/{number}.txt", prose(40 + number).encode()) for number in range(TAR_TEXTS)]


@cache
def expected(corpus: Corpus) -> Answer:
    """Return the answer of the store of the valid archive."""
    folder = corpus.folder.parent / "archive"
    if not (folder / "store").exists():
        folder.mkdir()
        (folder / "a.tar").write_bytes(pack(texts()))
        with without_attack():
            prepare([folder / "a.tar"], out=folder / "store", **OPTIONS)
    return answer_of(folder / "store")


def neutral(random: Random) -> tuple[tarfile.TarInfo, bytes]:
    """Return an entry that ncelm skips."""
    name = random.choice(NAMES)
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
    if random.random() < 0.2:
        return member(random.choice((".hidden", "a/.b/c.txt", "__MACOSX/x")), random.randbytes(100))
    link = random.choice(("/etc/passwd", "../../x", "texts/0.txt", "", name, "/dev/zero"))
    return member(name, kind=random.choice(kinds), link=link)


def crafted_archive(random: Random, place: Place) -> str:
    """Prepare an archive with unusual or hostile entries."""
    reference = expected(place.corpus)
    members = texts()
    same = True  # whether the store must be that of the valid archive
    if random.random() < BOMB_PROBABILITY:
        return _bomb(random, place)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(members) + 1)
        match random.randrange(8):
            case 0 | 1 | 2:
                members.insert(at, neutral(random))
                continue
            case 3:  # a duplicate
                info, content = random.choice(members)
                members.insert(at, member(info.name, content if random.random() < 0.5 else b"Other text. " * 9))
            case 4:
                members.insert(
                    at, member(random.choice(NAMES), random.choice((b"", b"Some text here. " * 5, bytes(50))))
                )
            case 5:
                inner = gzip.compress(b"Mr. Inner text is here. " * 20, mtime=0)
                members.insert(
                    at, member("inner.txt.gz", random.choice((inner, inner[:-5], damage(random, inner), b"no")))
                )
            case 6:
                info, content = member("odd.txt", b"Some odd text. " * 20)
                info.pax_headers = {
                    random.choice(("size", "path", "GNU.sparse.major", "GNU.sparse.map", "mtime", "linkpath", "x", "uid")):  # noqa: E501
                    random.choice(("", "-1", "99999999999999999999", "1", "1,2,3", "../../x", "é", "nan", "0"))
                }  # fmt: skip
                members.insert(at, (info, content))
            case _:
                info, content = members[at % len(members)]
                info.mtime = random.choice((0, 1, 2**33, 2**40))
                info.uid = random.choice((0, 2**40))
                continue
        same = False
    content = pack(members, random.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)))
    return _prepare(random, place, content, reference if same else None)


def damaged_archive(random: Random, place: Place) -> str:
    """Prepare an archive with a damaged header, damaged content, or a missing end."""
    reference = expected(place.corpus)
    content = bytearray(pack(texts()))
    if random.random() < 0.5:  # the compressed archive: all formats have checksums
        suffix = random.choice(sorted(set(PACKED) - {".tar"}))
        path = place.folder / f"a{suffix}"
        path.write_bytes(damage(random, PACKED[suffix](bytes(content))))
        return _check(place, path, reference)
    with tarfile.open(fileobj=io.BytesIO(bytes(content))) as tar:
        headers = [info.offset for info in tar]
    at = random.choice(headers)
    match random.randrange(5):
        case 0 | 1:  # a field of a header, without its checksum
            content[at + random.randrange(512)] ^= 1 << random.randrange(8)
        case 2:  # a size with a correct checksum
            size = random.choice(
                (b"77777777777\0", b"00000000000\0", b"-0000000001\0", b"\x80" + b"\xff" * 11, b"\xff" * 12)
            )
            content[at + 124 : at + 136] = size
            content[at + 148 : at + 156] = b" " * 8
            content[at + 148 : at + 156] = b"%06o\0 " % sum(content[at : at + 512])
        case 3:
            del content[random.randrange(len(content)) :]
        case _:
            content = bytearray(damage(random, bytes(content)))
    return _prepare(random, place, bytes(content), None)


def _prepare(random: Random, place: Place, content: bytes, reference: Answer | None) -> str:
    suffix = random.choice(sorted(PACKED))
    path = place.folder / f"a{suffix}"
    path.write_bytes(PACKED[suffix](content))
    return _check(place, path, reference)


def _check(place: Place, path: Path, reference: Answer | None) -> str:
    before = {"tmp", "files"}
    prepare([path], out=place.folder / "out", **OPTIONS)
    if unexpected := sorted({each.name for each in place.folder.iterdir()} - {path.name, "out"}):
        raise Violation(f"files outside of the store: {unexpected}")
    if unexpected := sorted({each.name for each in place.folder.parent.iterdir()} - before):
        raise Violation(f"files outside of the folder: {unexpected}")
    answer = answer_of(place.folder / "out")
    if reference and (changed := difference(answer, reference)):
        raise Violation(f"another store from {path.name}: {changed}")
    return HARMLESS


def _bomb(random: Random, place: Place) -> str:
    """Prepare a small file that expands to more than any text."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = b" " * (1 << 20)
    content = b"".join(packer.compress(block) for _ in range(BOMB_BYTES >> 20)) + packer.flush()
    path = place.folder / random.choice(("a.gz", "a.tar"))
    path.write_bytes(content if path.suffix == ".gz" else pack([member("a.gz", content)]))
    prepare([path], out=place.folder / "out", **OPTIONS)
    raise Violation("a file that expands a thousand times was accepted")


FAMILIES = [
    Family("archives-crafted", crafted_archive, share=2, timeout=120),
    Family("archives-damaged", damaged_archive, share=2, timeout=120),
]
