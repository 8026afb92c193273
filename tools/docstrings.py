"""An extension of mkdocstrings: comments after fields are their descriptions, and doctests are code blocks.

The code has `tokens: int  # number of words` in dataclasses, and doctests without the title of a section.
"""

import re
import tokenize
from functools import cache
from pathlib import Path
from typing import Any

import griffe

DOCTEST = re.compile(r"(?:^|(?<=\n\n))(>>> .*?)(?=\n\n|\Z)", re.DOTALL)
SECTION = re.compile(r"^Examples:$", re.MULTILINE)


@cache
def comments_of(path: Path) -> dict[int, str]:
    """Return the comments of a file by line number."""
    with tokenize.open(path) as file:
        tokens = list(tokenize.generate_tokens(file.readline))
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}


class Docstrings(griffe.Extension):
    """The extension."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Describe a field of a class by the comment in its last line."""
        if attr.docstring or not attr.parent or not attr.parent.is_class or not isinstance(attr.filepath, Path):
            return
        comment = comments_of(attr.filepath).get(attr.endlineno or 0, "")
        if comment and not comment.startswith(("type:", "noqa")):
            attr.docstring = griffe.Docstring(re.sub(r"<[^>]*>", r"`\g<0>`", comment), parent=attr)

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Turn doctests outside of a section of examples into code blocks."""
        if obj.docstring and not SECTION.search(obj.docstring.value):
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\1\n```", obj.docstring.value)
