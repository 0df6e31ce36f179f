"""The cell at a glance, as HTML: what its time was spent on, and its lines with what was found at them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ...model import Finding, Kind, ReportData, Spent
from ..lines import CellLines, Line, lines_title
from ..spent import legend
from ..units import waited
from .html_parts import MONO, QUIET, TABLE, heading, percent, safe

SPENT: dict[Kind, str] = {
    "python": "#c0851f",
    "gpu": "#2f9150",
    "waiting": "#d0524a",
    "data": "#3f83c4",
    "grape": "#9461d6",
    "unprofiled": "#808a94",
}
"""Parts of a cell's time: at least 3:1 against white and against dark grounds."""

_ROW = '<tr style="background:transparent">'
_LETTERS = "padding:0 8px 0 0;border:0;vertical-align:top"
_SIZE = "font-size:13px"


def spent_html(shown: Sequence[Spent]) -> str:
    """The cell before and after, to one scale, as cells as wide as the parts, and what each part took."""
    if not shown:
        return ""
    longest = max(one.total_ms for one in shown)
    cell = f"{_LETTERS.replace('top', 'middle')};{_SIZE};text-align:left;white-space:nowrap"
    bars = "".join(
        f'{_ROW}<td style="{cell}"><b>{safe(one.when)}</b></td><td style="{cell}">{safe(waited(one.total_ms))}</td>'
        f'<td style="width:100%;padding:0;border:0">{_bar(one, longest)}</td></tr>'
        for one in shown
    )
    keys = "&ensp; ".join(
        f'<span style="white-space:nowrap"><span style="color:{SPENT[kind]}">\N{BLACK SQUARE}</span> {safe(words)}'
        "</span>"
        for kind, words in legend(shown)
    )
    return f'<table style="{TABLE};width:100%"><tbody>{bars}</tbody></table><div style="font-size:12px">{keys}</div>'


def _bar(one: Spent, longest: float) -> str:
    look = "height:16px;padding:0;border:0"
    cells = "".join(
        f'<td style="width:{percent(part.ms / one.total_ms)};{look};background:{SPENT[part.kind]}"></td>'
        for part in one.parts
    )
    style = f"{TABLE};width:{percent(one.total_ms / longest)};table-layout:fixed"
    return f'<table style="{style}"><tbody>{_ROW}{cells}</tr></tbody></table>'


def lines_html(report: ReportData, lines: CellLines, finding_html: Callable[[Finding], str]) -> str:
    """The lines that took most of the cell's time, each with its findings; all of them folded below."""
    if not lines.shown:
        return ""
    found = {
        number: "".join(finding_html(report.findings[index]) for index in indices)
        for number, indices in lines.found.items()
    }
    whole, rest = len(lines.shown) == len(lines.all), ""
    if not whole:
        rest = f'<details><summary style="{QUIET}">all lines</summary>{_source(lines.all, {}, whole=True)}</details>'
    return f"{heading(lines_title(report))}{_source(lines.shown, found, whole=whole)}{rest}"


def _source(lines: Iterable[Line | None], found: dict[int, str], *, whole: bool) -> str:
    """A line that is too long for the page is cut where all lines can be had below, else wrapped."""
    body = "".join(_line(line, found.get(line.number, ""), whole=whole) if line else _gap() for line in lines)
    return f'<table style="{TABLE};width:100%;table-layout:fixed"><tbody>{body}</tbody></table>'


def _gap() -> str:
    empty = f'<td style="width:26px;{_LETTERS}"></td>'
    return f'{_ROW}{empty}<td style="{_LETTERS};{MONO};text-align:right">...</td>{empty}</tr>'


def _line(line: Line, found: str, *, whole: bool) -> str:
    heat = f"rgba(214,128,30,{0.12 + 0.55 * min(1.0, line.share):.2f})" if line.took else "transparent"
    source = line.text.replace("\t", "    ")
    indent = "\N{NO-BREAK SPACE}" * (len(source) - len(source.lstrip(" ")))
    cut = "white-space:pre-wrap" if whole else "white-space:nowrap;overflow:hidden;text-overflow:ellipsis"
    notes = [*([] if found else line.codes), *line.notes]
    beside = (
        f'<div style="margin:0 0 0 auto;padding:0 0 0 12px;opacity:0.8">{safe(", ".join(notes))}</div>' if notes else ""
    )
    number = f"{_LETTERS};{MONO};text-align:right"
    took = f"{number};background:{heat}"
    row = (
        f'{_ROW}<td style="width:26px;{number}">{line.number}</td><td style="width:34px;{took}">{safe(line.took)}</td>'
        f'<td style="padding:0 0 0 8px;border:0;text-align:left;{MONO}"><div style="display:flex;flex-wrap:wrap">'
        f'<div style="max-width:100%;{cut}">{indent}{safe(source.lstrip(" "))}</div>{beside}</div></td></tr>'
    )
    if found:
        row += f'{_ROW}<td colspan="3" style="{_SIZE};padding:0 0 0 26px;border:0;text-align:left">{found}</td></tr>'
    return row


def raised_html(error: str | None) -> str:
    return f'<div style="font-size:12px">the cell raised {safe(error)}</div>' if error else ""
