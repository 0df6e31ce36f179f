"""The view's script and style, files of the package: nothing is fetched and nothing is built."""

from __future__ import annotations

from pathlib import Path

__all__ = ["SCRIPT", "STYLE", "script", "style"]

_STATIC = Path(__file__).parent / "static"
SCRIPT = _STATIC / "report.js"
STYLE = _STATIC / "report.css"


def script() -> str:
    """The ES module that draws the view."""
    return SCRIPT.read_text(encoding="utf-8")


def style() -> str:
    """Its style sheet."""
    return STYLE.read_text(encoding="utf-8")
