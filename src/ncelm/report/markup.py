"""HTML and SVG elements. Text and attributes are always escaped: words come from texts that were not checked."""

import html
import re
from typing import Any

# characters that HTML does not allow, and surrogates
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Markup(str):
    """HTML that is complete: it is not escaped again."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Return a value as HTML: escaped, unless it is `Markup`; nothing for None."""
    if isinstance(value, Markup):
        return value
    return Markup("" if value is None else html.escape(_FORBIDDEN.sub("\ufffd", str(value))))


def element(name: str, *children: object, **attributes: Any) -> Markup:
    """Return an element with its children. Attributes that are None are left out; `class_` is `class`.

    >>> element("p", "a < b ", element("b", "c"), class_="x")
    '<p class="x">a &lt; b <b>c</b></p>'
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{join(children)}</{name}>")


def join(children: Any) -> Markup:
    """Return several values, one after another, as HTML."""
    return Markup("".join(map(text, children)))


def table(
    header: list[object], rows: list[list[object]], caption: str = "", numeric: frozenset[int] = frozenset()
) -> Markup:
    """Return a table. The first cell of each row is its header; columns in `numeric` are aligned to the right."""

    def cells(name: str, row: list[object]) -> list[Markup]:
        return [
            element(
                "th" if name == "th" or i == 0 else "td",
                cell,
                scope="col" if name == "th" else "row" if i == 0 else None,
                class_="number" if i in numeric else None,
            )
            for i, cell in enumerate(row)
        ]

    head = element("thead", element("tr", *cells("th", header)))
    body = element("tbody", *(element("tr", *cells("td", row)) for row in rows))
    title = element("caption", caption) if caption else ""
    # a wide table scrolls by itself; it must be reachable by the keyboard then
    return element("div", element("table", title, head, body), class_="scroll", tabindex="0", role="group",
                   aria_label=caption or "table")  # fmt: skip
