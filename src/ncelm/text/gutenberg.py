"""Works of Project Gutenberg: what is not the work, at the head and at the foot of a file, is taken off.

Headers have changed over the years. The oldest files, of the nineties, begin with a letter to the reader and a "small
print" in legal language, which ends with a line "*END*THE SMALL PRINT! …"; newer ones have "*** START OF THE PROJECT
GUTENBERG EBOOK …". After either there may be a paragraph of thanks to whoever typed the text. At the foot stands "End
of the Project Gutenberg Etext of …", in many spellings, or "*** END OF …" with a licence behind it, or nothing at all.
"""

import re
from typing import NamedTuple

HEADER_SHARE, FOOTER_SHARE = 0.3, 0.2  # of a file, where its header and its footer are looked for …
LEAST_CHARACTERS = 30_000  # … or so much, for a short one

_END_OF_HEADER = re.compile(
    r"""^.*?(?:
        END\W{0,4}THE\ SMALL\ PRINT.*(?:\n.*\*END\*.*)?  # the mark itself may run on into a second line
      | \*{2,}\s*(?:START|BEGIN\w*)\ OF\ (?:THE\ |THIS\ )?PROJECT\ GUTENBERG.*(?:\n.*\*{3}\s*$)?
    )$""",
    re.VERBOSE | re.MULTILINE | re.IGNORECASE,
)
_FOOTER = re.compile(
    r"""^[^\w\n]*(?:
        (?:this\s+is\s+|you\s+have\s+reached\s+)?(?:the\s+)?end\s+of\s+(?:the\s+|this\s+)?(?:wiretap/)?project\s+gutenberg
      | \*{2,}\s*END\ OF\ (?:THE\ |THIS\ )?PROJECT\ GUTENBERG
      | \*{2,}\s*START\*{2,}\s*THE\ SMALL\ PRINT  # where it stands at the foot
    ).*$""",
    re.VERBOSE | re.MULTILINE | re.IGNORECASE,
)
_LAST_WORDS = re.compile(
    r"^[^\w\n]*(?:The )?Project Gutenberg(?:'s)? E-?(?:text|book) of .*$", re.MULTILINE | re.IGNORECASE
)
_LAST_WORDS_CHARACTERS = 1_000
_THANKS = re.compile(
    r"\b(?:e-?texts?|e-?books?|transcri\w+|scann\w+|typed|keyed|digiti[sz]ed|proof\w*|prepared|produced|OCR\w*)\b.*"
    r"\b(?:by|for|from|with)\b|^\W*E-?text\b|@\w+\.\w",
    re.IGNORECASE | re.DOTALL,
)
_PARAGRAPH = re.compile(r"\s*(\S(?:.|\n(?!\s*\n))*)")
_MOST_THANKS, _LONGEST_THANKS = 4, 600  # paragraphs, characters


class Work(NamedTuple):
    """A file without its header and footer, and what these were."""

    text: str
    header_lines: int  # taken off
    footer_lines: int
    header_mark: str  # the line by which the header was known; empty if there was none
    footer_mark: str


def strip(text: str) -> Work:
    r"""Take the header and the footer off a file whose lines end with \n.

    >>> strip("Legal words\n*END*THE SMALL PRINT!*END*\nIt was a dark night.\nEnd of Project Gutenberg's Etext").text
    'It was a dark night.\n'
    """
    head = max(int(len(text) * HEADER_SHARE), LEAST_CHARACTERS)
    begin, header_mark = 0, ""
    for mark in _END_OF_HEADER.finditer(text, 0, min(head, len(text))):
        begin, header_mark = min(mark.end() + 1, len(text)), mark[0].strip()
    if header_mark:
        begin = _after_thanks(text, begin)
    foot = max(begin, len(text) - max(int(len(text) * FOOTER_SHARE), LEAST_CHARACTERS))
    footer = _FOOTER.search(text, _line_start(text, foot)) or _LAST_WORDS.search(
        text, _line_start(text, max(begin, len(text) - _LAST_WORDS_CHARACTERS))
    )
    end = footer.start() if footer else len(text)
    lines_after = text.count("\n", end) + (end < len(text) and not text.endswith("\n"))
    return Work(
        text[begin:end],
        text.count("\n", 0, begin),
        lines_after,
        header_mark,
        footer[0].strip() if footer else "",
    )


def _line_start(text: str, place: int) -> int:
    return text.rfind("\n", 0, place) + 1


def _after_thanks(text: str, begin: int) -> int:
    """Skip paragraphs right after the header that thank those who made the file."""
    for _ in range(_MOST_THANKS):
        paragraph = _PARAGRAPH.match(text, begin, begin + 10 * _LONGEST_THANKS)
        if not paragraph or len(paragraph[1]) > _LONGEST_THANKS or not _THANKS.search(paragraph[1]):
            break
        begin = min(text.find("\n", paragraph.end()) % (len(text) + 1) + 1, len(text))
    return begin
