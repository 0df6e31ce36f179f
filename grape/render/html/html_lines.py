"""The lines of the cell with their times, in HTML."""

from __future__ import annotations

from collections.abc import Iterable

from ...model import Kind, ReportData, Spent
from ..lines import Line, lines_title, shown_lines, warm_lines
from ..spent import KINDS, in_words
from .html_parts import MONO, QUIET, TABLE, heading, percent, safe

__all__ = ["SPENT", "lines_html", "raised_html", "spent_html"]

SPENT: dict[Kind, str] = {
    "python": "#c0851f",
    "gpu": "#2f9150",
    "waiting": "#d0524a",
    "data": "#3f83c4",
    "grape": "#9461d6",
    "unprofiled": "#808a94",
}
"""Parts of a cell's time, likewise."""


def spent_html(shown: tuple[Spent, ...]) -> str:
    """The cell before and after, to one scale, as cells as wide as the parts."""
    if not shown:
        return ""
    longest = max(one.total_ms for one in shown)
    lines = "".join(
        f'<div style="margin:6px 0 0 0"><b>{safe(one.when)}</b> {safe(in_words(one))}</div>{_spent_bar(one, longest)}'
        for one in shown
    )
    kinds = [kind for kind in KINDS if any(part.kind == kind for one in shown for part in one.parts)]
    legend = " ".join(
        f'<span style="color:{SPENT[kind]}">\N{BLACK SQUARE}</span> {safe(KINDS[kind])}' for kind in kinds
    )
    return f'{lines}<div style="{QUIET}">{legend}</div>'


def _spent_bar(one: Spent, longest: float) -> str:
    look = "height:16px;padding:0;border:0"
    cells = "".join(
        f'<td style="width:{percent(part.ms / one.total_ms)};{look};background:{SPENT[part.kind]}"></td>'
        for part in one.parts
    )
    style = f"{TABLE};width:{percent(one.total_ms / longest)};table-layout:fixed"
    return f'<table style="{style}"><tbody><tr style="background:transparent">{cells}</tr></tbody></table>'


def lines_html(report: ReportData) -> str:
    """The lines that took most of the cell's time; all of them folded below."""
    lines = warm_lines(report)
    shown = shown_lines(lines)
    if not any(line is not None and line.took for line in shown):
        return ""
    whole = ""
    if len(shown) < len(lines):
        whole = f'<details><summary style="{QUIET}">all lines</summary>{_source(lines)}</details>'
    return f"{heading(lines_title(report))}{_source(shown)}{whole}"


def _source(lines: Iterable[Line | None]) -> str:
    return f'<table style="{TABLE}"><tbody>{"".join(map(_source_line, lines))}</tbody></table>'


def _source_line(line: Line | None) -> str:
    cell = f"padding:0 8px 0 0;border:0;vertical-align:top;{MONO}"
    if line is None:
        return f'<tr style="background:transparent"><td style="{cell}"></td><td style="{cell}">...</td></tr>'
    heat = f"rgba(214,128,30,{0.12 + 0.55 * min(1.0, line.share):.2f})" if line.took else "transparent"
    beside = " ".join([*map(_code_badge, line.codes), *(safe(note) for note in line.notes)])
    text = line.text.replace("\t", "    ")
    indent = "\N{NO-BREAK SPACE}" * (len(text) - len(text.lstrip(" ")))
    return (
        f'<tr style="background:transparent"><td style="{cell};text-align:right">{line.number}</td>'
        f'<td style="{cell};text-align:right;background:{heat}">{safe(line.took)}</td>'
        f'<td style="{cell};text-align:left;white-space:pre-wrap">{indent}{safe(text.lstrip(" "))}</td>'
        f'<td style="{cell};text-align:left">{beside}</td></tr>'
    )


def _code_badge(code: str) -> str:
    return f"<b>{safe(code)}</b>"


def raised_html(error: str | None) -> str:
    return f'<div style="font-size:12px">the cell raised {safe(error)}</div>' if error else ""
