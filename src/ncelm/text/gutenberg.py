"""Project Gutenberg: removal of headers and footers.

Headers have several forms. Files of the 1990s begin with a letter to the reader and legal text, which ends with a line
"*END*THE SMALL PRINT! …". Newer files have a line "*** START OF THE PROJECT GUTENBERG EBOOK …". After the header there
may be paragraphs of credits to the people who made the file. The footer begins with a line "End of the Project
Gutenberg Etext of …", in many spellings, or "*** END OF …"; some files have no footer.
"""

import re
from typing import NamedTuple

# The header is searched in the first part of a file and the footer in the last: a share of the characters, or
# MIN_CHARACTERS if that is more.
HEADER_SHARE, FOOTER_SHARE = 0.3, 0.2
MIN_CHARACTERS = 30_000

_END_OF_HEADER = re.compile(
    r"""^.*?(?:
        END\W{0,4}THE\ SMALL\ PRINT.*(?:\n.*\*END\*.*)?  # the mark may continue on the next line
      | \*{2,}\s*(?:START|BEGIN\w*)\ OF\ (?:THE\ |THIS\ )?PROJECT\ GUTENBERG.*(?:\n.*\*{3}\s*$)?
    )$""",
    re.VERBOSE | re.MULTILINE | re.IGNORECASE,
)
_FOOTER = re.compile(
    r"""^[^\w\n]*(?:
        (?:this\s+is\s+|you\s+have\s+reached\s+)?(?:the\s+)?end\s+of\s+(?:the\s+|this\s+)?(?:wiretap/)?project\s+gutenberg
      | \*{2,}\s*END\ OF\ (?:THE\ |THIS\ )?PROJECT\ GUTENBERG
      | \*{2,}\s*START\*{2,}\s*THE\ SMALL\ PRINT  # legal text at the end of a file
    ).*$""",
    re.VERBOSE | re.MULTILINE | re.IGNORECASE,
)
_TITLE = re.compile(r"^[^\w\n]*(?:The )?Project Gutenberg(?:'s)? E-?(?:text|book) of .*$", re.MULTILINE | re.IGNORECASE)
_TITLE_CHARACTERS = 1_000  # at the end of a file, where its title is a footer
_CREDITS = re.compile(
    r"\b(?:e-?texts?|e-?books?|transcri\w+|scann\w+|typed|keyed|digiti[sz]ed|proof\w*|prepared|produced|OCR\w*)\b.*"
    r"\b(?:by|for|from|with)\b|^\W*E-?text\b|@\w+\.\w",
    re.IGNORECASE | re.DOTALL,
)
_PARAGRAPH = re.compile(r"\s*(\S(?:.|\n(?!\s*\n))*)")
_MAX_CREDITS, _MAX_CREDIT_CHARACTERS = 4, 600  # paragraphs, characters


class Work(NamedTuple):
    """The text of a work, and what was removed from its file."""

    text: str
    header_lines: int  # removed
    footer_lines: int
    header_mark: str  # the last line of the header; empty if no header was found
    footer_mark: str  # the first line of the footer


def strip_boilerplate(text: str) -> Work:
    r"""Return the work in a file without header and footer. Lines end with \n.

    >>> work = strip_boilerplate("Legal text\n*END*THE SMALL PRINT!*END*\nIt was late.\nEnd of Project Gutenberg Etext")
    >>> work.text
    'It was late.\n'
    """
    head = max(int(len(text) * HEADER_SHARE), MIN_CHARACTERS)
    begin, header_mark = 0, ""
    for mark in _END_OF_HEADER.finditer(text, 0, min(head, len(text))):
        begin, header_mark = min(mark.end() + 1, len(text)), mark[0].strip()
    if header_mark:
        begin = _after_credits(text, begin)
    foot = max(begin, len(text) - max(int(len(text) * FOOTER_SHARE), MIN_CHARACTERS))
    footer = _FOOTER.search(text, _line_start(text, foot)) or _TITLE.search(
        text, _line_start(text, max(begin, len(text) - _TITLE_CHARACTERS))
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


def _line_start(text: str, offset: int) -> int:
    return text.rfind("\n", 0, offset) + 1


def _after_credits(text: str, begin: int) -> int:
    """Return the offset of the work after paragraphs of credits at `begin`."""
    for _ in range(_MAX_CREDITS):
        paragraph = _PARAGRAPH.match(text, begin, begin + 10 * _MAX_CREDIT_CHARACTERS)
        if not paragraph or len(paragraph[1]) > _MAX_CREDIT_CHARACTERS or not _CREDITS.search(paragraph[1]):
            break
        begin = min(text.find("\n", paragraph.end()) % (len(text) + 1) + 1, len(text))
    return begin
