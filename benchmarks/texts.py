"""Make the texts on which the adaptive defaults were developed and tested: packages of Debian, and parts of Holmes.

    python benchmarks/texts.py --out DIR [--holmes holmes_training.tar.xz] [--ptb DIR]

Downloads documentation packages with `apt-get download` (Debian 12), extracts their prose, and writes a token store of
each text below DIR. Existing stores are kept. `TEXTS` says which texts were used in development.
"""

import argparse
import gzip
import html.parser
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import ncelm

PARAGRAPH = re.compile(r"\n\s*\n")


@dataclass(frozen=True)
class Text:
    """A text made from the files of a Debian package."""

    package: str
    files: str  # glob pattern
    paragraphs: Callable[[str], Iterable[str]]
    held_out: bool = False  # never used in development


class _Prose(html.parser.HTMLParser):
    """The text of paragraphs, list items and definitions of an HTML page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._open = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("p", "dd") or (tag == "div" and ("class", "para") in attrs):
            self._open += 1
            self.found.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("p", "dd", "div") and self._open:
            self._open -= 1

    def handle_data(self, data: str) -> None:
        if self._open:
            self.found[-1] += data


def html_prose(text: str) -> list[str]:
    """Return the paragraphs of an HTML page."""
    parser = _Prose()
    parser.feed(text)
    return parser.found


def manual_page(text: str) -> Iterator[str]:
    """Yield the paragraphs of a manual page in roff format."""
    for paragraph in re.split(r"(?m)^\.(?:PP|P|LP|SH|SS|TP|IP|RS|RE|Pp|Sh|It)\b.*$", text):
        lines = [re.sub(r"^\.\S+ ?", "", line) for line in paragraph.splitlines() if not line.startswith(('.\\"', "'"))]
        yield re.sub(r"\\(?:f\[?\w*\]?|&|\(\w\w|-)", "", " ".join(lines)).replace('"', "")


def plain(text: str) -> list[str]:
    """Return the paragraphs of a text in reStructuredText."""
    return PARAGRAPH.split(text)


TEXTS = {
    "handbook": Text("debian-handbook", "**/html/en-US/*.html", html_prose),
    "handbook-de": Text("debian-handbook", "**/html/de-DE/*.html", html_prose),
    "python-doc": Text("python3.11-doc", "**/html/**/*.html", html_prose),
    "manual-de": Text("manpages-de", "**/de/man*/*.gz", manual_page),
    "postgresql": Text("postgresql-doc-15", "**/*.html", html_prose),
    "manual-fr": Text("manpages-fr", "**/fr/man*/*.gz", manual_page, held_out=True),
    "handbook-es": Text("debian-handbook", "**/html/es-ES/*.html", html_prose, held_out=True),
    "linux": Text("linux-doc-6.1", "**/*.rst.gz", plain, held_out=True),
}
HOLMES_WORKS = {"holmes-1": 1, "holmes-4": 4, "holmes-25": 25, "holmes-120": 120}  # number of works
SMALLEST_WORK = 300_000  # bytes


def read(path: Path) -> str:
    """Return the content of a file, which may be compressed."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return content.decode("utf-8", "replace")


def write_text(text: Text, folder: Path, out: Path) -> None:
    """Write the prose of a package to a file, without repeated paragraphs."""
    packages = folder / "packages"
    unpacked = packages / text.package
    if not unpacked.exists():
        packages.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "-qq", text.package], cwd=packages, check=True)
        (archive,) = packages.glob(f"{text.package}_*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, unpacked], check=True)
    found: dict[str, None] = {}
    for path in sorted(unpacked.glob(text.files)):
        if not path.is_symlink() and path.is_file():
            for paragraph in text.paragraphs(read(path)):
                line = " ".join(paragraph.split())
                letters = sum(character.isalpha() or character == " " for character in line)
                if len(line) > 40 and letters > 0.8 * len(line):
                    found[line] = None
    out.write_text("\n\n".join(found), encoding="utf-8")


def write_works(archive: Path, works: int, out: Path) -> None:
    """Extract works of the Holmes archive, evenly spaced in the order of their names."""
    with tarfile.open(archive) as file:
        files = (member for member in file.getmembers() if member.isfile() and member.size > SMALLEST_WORK)
        members = sorted(files, key=lambda each: each.name)
        chosen = members[len(members) // (2 * works) :: len(members) // works][:works]
        out.mkdir(exist_ok=True)
        for member in chosen:
            content = file.extractfile(member)
            assert content
            (out / Path(member.name).name).write_bytes(content.read())


def main() -> None:
    """Make all stores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--holmes", type=Path)
    parser.add_argument("--ptb", type=Path)
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    for name, text in TEXTS.items():
        if not (out / name).exists():
            write_text(text, out, out / f"{name}.txt")
            _prepare([out / f"{name}.txt"], out / name)
    for name, works in HOLMES_WORKS.items() if arguments.holmes else ():
        if not (out / name).exists():
            write_works(arguments.holmes, works, out / f"{name}-works")
            _prepare([out / f"{name}-works"], out / name, gutenberg=True)
    if arguments.holmes and not (out / "holmes").exists():
        _prepare([arguments.holmes], out / "holmes", gutenberg=True)
    if arguments.ptb and not (out / "ptb").exists():
        splits = {split: [arguments.ptb / f"ptb.{split}.txt"] for split in ("train", "valid", "test")}
        ncelm.prepare(**splits, out=out / "ptb")


def _prepare(texts: list[Path], out: Path, gutenberg: bool = False) -> None:
    size = sum(path.stat().st_size for text in texts for path in [text, *text.rglob("*")] if path.is_file())
    sentences = min(max(size // 10_000, 500), 5000)
    store = ncelm.prepare(
        texts,
        out=out,
        lowercase=True,
        min_count=2 if size < 10_000_000 else 5,
        punkt="train",
        gutenberg=gutenberg,
        skip_broken=gutenberg,
        valid_sentences=sentences,
        test_sentences=sentences,
    )
    train, valid = store.split("train"), store.split("valid")
    print(f"{out.name}: {train.tokens:,} words, vocabulary {len(store.vocabulary):,}, validation {valid.tokens:,}")


if __name__ == "__main__":
    main()
