"""Pieces of HTML that every part of the page is made of."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from ..units import clean, code_spans

TONES = {"before": "#808a94", "after": "#9461d6", "memory": "#3f83c4"}
"""Bars: at least 3:1 against white and against the dark grounds of JupyterLab and VS Code."""

TRACK = "rgba(128,128,128,0.18)"

MONO = "font-family:monospace;font-size:12px;line-height:1.3"

QUIET = "font-size:12px;opacity:0.75"

TABLE = "border-collapse:collapse;margin:4px 0;border:0"


FILLS = {
    "blocker": "#b42318",
    "costly": "#8a5a00",
    "hint": "#1f5fa8",
    "replayed": "#1a6b37",
    "checked": "#1f5fa8",
    "refused": "#8a5a00",
}
"""Badges: white on these is at least 4.5:1."""


_DIFF = {"+": "rgba(46,160,67,0.25)", "-": "rgba(218,54,51,0.25)", "@": "rgba(128,128,128,0.2)"}


RULE = "1px solid rgba(128,128,128,0.35)"


def safe(value: str) -> str:
    return escape(clean(value), quote=True)


def prose(value: str) -> str:
    """A sentence, what stands between backticks as code."""
    spans = code_spans(clean(value))
    return "".join(f"<code>{escape(part)}</code>" if is_code else escape(part) for part, is_code in spans)


def badge(word: str) -> str:
    fill = FILLS.get(word)
    if fill is None:
        return safe(word)
    return (
        f'<span style="background:{fill};color:#ffffff;padding:1px 6px;border-radius:3px;font-size:11px;'
        f'white-space:nowrap">{safe(word)}</span>'
    )


def heading(title: str) -> str:
    return f'<div style="font-weight:600;margin:10px 0 0 0">{safe(title)}</div>'


def _cell(content: str, align: str = "left", tag: str = "td") -> str:
    weight = ";font-weight:600" if tag == "th" else ""
    style = f"text-align:{align};vertical-align:top;padding:3px 12px 3px 0;border:0;border-bottom:{RULE}{weight}"
    return f'<{tag} style="{style}">{content}</{tag}>'


def table(header: Iterable[str], body: Iterable[Iterable[str]], right: frozenset[int] = frozenset()) -> str:
    """`header` and the cells of `body` are HTML. `right` are the columns of numbers."""

    def line(cells: Iterable[str], tag: str) -> str:
        done = "".join(_cell(c, "right" if i in right else "left", tag) for i, c in enumerate(cells))
        return f'<tr style="background:transparent">{done}</tr>'

    lines = "".join(line(cells, "td") for cells in body)
    return f'<table style="{TABLE}"><thead style="border:0">{line(header, "th")}</thead><tbody>{lines}</tbody></table>'


def code(lines: Iterable[str]) -> str:
    """Lines of a difference, tinted."""
    done = []
    for line in lines:
        tint, shown = _DIFF.get(line[:1]), safe(line)
        done.append(f'<span style="background:{tint}">{shown}</span>' if tint else shown)
    return f'<pre style="{MONO};margin:4px 0;padding:0;white-space:pre-wrap">{chr(10).join(done)}</pre>'


def percent(share: float) -> str:
    return f"{100 * min(1.0, max(0.0, share)):.1f}%"


def label(text: str) -> str:
    return (
        '<td style="width:130px;text-align:left;vertical-align:middle;padding:2px 8px 2px 0;border:0;'
        f'white-space:nowrap">{safe(text)}</td>'
    )
