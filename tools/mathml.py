r"""A Markdown extension that turns formulas into MathML when the site is built, so that pages need no script.

`$…$` is a formula in a line. A paragraph `$$ … $$` is an equation of its own; `\tag{13}` gives it a number and the
anchor `eq13`. GitHub shows the same notation.
"""

import re
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor

EQUATION = re.compile(r"^\$\$\n(.*?)\n\$\$$", re.DOTALL | re.MULTILINE)
TAG = re.compile(r"\\tag\{(\w+)\}")
INLINE = r"(?<![\\$\w])\$(?![\s$])([^$\n]*[^$\s\\])\$(?![\w$])"


def mathml(latex: str, display: str = "inline") -> str:
    """Return a formula as MathML, with a thin space after the logarithm."""
    return str(convert(latex, display=display)).replace("<mi>log</mi>", '<mi>log</mi><mspace width="0.17em" />')


class Equations(Preprocessor):
    """Equations of their own. They are replaced before Markdown reads backslashes and underscores in them."""

    def run(self, lines: list[str]) -> list[str]:
        """Return the lines of a page with a placeholder for each equation."""
        return EQUATION.sub(self._html, "\n".join(lines)).split("\n")

    def _html(self, match: re.Match[str]) -> str:
        tag = TAG.search(match[1])
        number = f'<span class="number">({tag[1]})</span>' if tag else ""
        anchor = f' id="eq{tag[1]}"' if tag else ""
        math = mathml(TAG.sub("", match[1]), "block")
        return "\n" + self.md.htmlStash.store(f'<div class="equation"{anchor}>{math}{number}</div>') + "\n"


class Inline(InlineProcessor):
    """Formulas in a line."""

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[Any, int, int]:  # type: ignore[override]  # noqa: N802
        """Return a placeholder for the formula, and its range."""
        return self.md.htmlStash.store(mathml(m[1])), m.start(0), m.end(0)


class MathML(Extension):
    """The extension."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Register both processors: equations after fenced code blocks, inline formulas after code spans."""
        md.preprocessors.register(Equations(md), "mathml", 24)
        md.inlinePatterns.register(Inline(INLINE, md), "mathml", 185)


def makeExtension(**options: Any) -> MathML:  # noqa: N802
    """Return the extension; Markdown calls this function by its name."""
    return MathML(**options)
