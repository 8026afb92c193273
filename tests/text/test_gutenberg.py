"""Project Gutenberg: headers and footers of all forms."""

import pytest
from tests.helpers import GUTENBERG_HEADER, GUTENBERG_LEGAL, GUTENBERG_LETTER

from ncelm.text.gutenberg import strip_boilerplate

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
    work = strip_boilerplate(header + WORK)
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
    work = strip_boilerplate(GUTENBERG_HEADER + WORK + "\n" + footer)
    assert work.text.rstrip() == WORK.rstrip()
    assert work.footer_mark
    assert work.footer_lines == len(footer.splitlines())


@pytest.mark.parametrize(
    "credits",
    [
        "\n\nThis etext was prepared by Somebody, somewhere@example.org\n\n\n",
        "\nScanned and proofread by Somebody.\n\nTyped by Somebody else\nfor a friend.\n\n",
        "\nE-text prepared from the 1898 edition\n\n",
    ],
)
def test_credits_are_removed(credits):
    assert strip_boilerplate(GUTENBERG_HEADER + credits + WORK).text.lstrip() == WORK


def test_the_work_is_kept():
    letters = "\nThe letter was written by the Count, for his wife.\n\n" + WORK
    assert strip_boilerplate(GUTENBERG_HEADER + letters).text == letters
    assert strip_boilerplate(WORK).text == WORK  # no header, no footer
    assert strip_boilerplate("").text == ""
    talk = WORK * 400 + "He had reached the end of his tether.\n" + WORK
    assert strip_boilerplate(GUTENBERG_HEADER + talk).text == talk


def test_a_real_text(small_text):
    text = small_text.read_text()
    footer = "End of The Project Gutenberg Etext of The Wonderful Wizard of Oz\n"
    work = strip_boilerplate(GUTENBERG_HEADER + text + footer)
    assert work.text == text
    assert (work.header_lines, work.footer_lines) == (GUTENBERG_HEADER.count("\n"), 1)
    assert strip_boilerplate(text).text == text
