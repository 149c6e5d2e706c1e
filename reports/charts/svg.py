"""Elements of SVG and HTML as text. Whatever comes in as text or as a value of an attribute is escaped."""

from __future__ import annotations

from html import escape
from math import isfinite

from ledgers.printable import printable

Value = str | float | None


def number(value: float) -> str:
    """At most two decimals, the same on every machine."""
    if not isfinite(value):
        raise ValueError(f"{value} has no place in a picture")
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def words(text: str) -> str:
    """Text of any origin as markup."""
    return escape(printable(text))


def element(name: str, *children: str, **attributes: Value) -> str:
    """`class_` is the attribute class, and `stroke_width` is stroke-width. None leaves one out."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{said}>{''.join(children)}</{name}>"


def label(x: float, y: float, text: str, **attributes: Value) -> str:
    return element("text", words(text), x=x, y=y, **attributes)


def picture(title: str, description: str, width: float, height: float, *children: str) -> str:
    """An image with its name and its text alternative, as wide as there is room."""
    return element(
        "svg",
        element("title", words(title)),
        element("desc", words(description)),
        *children,
        role="img",
        viewBox=f"0 0 {number(width)} {number(height)}",
        class_="plot",
    )


def _attribute(value: str | float) -> str:
    return words(value) if isinstance(value, str) else number(value)
