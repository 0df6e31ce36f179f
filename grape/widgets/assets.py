"""The view's script and style, files of the package: nothing is fetched and nothing is built."""

from __future__ import annotations

from pathlib import Path

_STATIC = Path(__file__).parent / "static"
_PARTS = ("data", "dom", "picture", "overview", "memory", "findings", "cell", "notebook", "history", "view", "mount")
"""Parts of one module, in the order of what they need. They do not import each other: a widget's module is a text, not
a place that others could be loaded from.
"""
STYLE = _STATIC / "report.css"


def script() -> str:
    """The ES module that draws the view."""
    return "\n".join((_STATIC / f"{part}.js").read_text(encoding="utf-8") for part in _PARTS)


def style() -> str:
    return STYLE.read_text(encoding="utf-8")
