"""The report for a terminal: short, 80 columns, plain where there is no terminal."""

from __future__ import annotations

from ..model import Finding, ReportData
from .layout import Cell, Lines, Span
from .summary import (
    SHOWN_FINDINGS,
    Bar,
    Row,
    Strip,
    cell_bars,
    cell_title,
    cost,
    headline,
    level,
    memory_bars,
    memory_title,
    next_step,
    place,
    rows,
    strips,
    time_bars,
    time_title,
)
from .units import clean, one_line

__all__ = ["render_text"]

_STYLES = {"replayed": "green", "observed": "cyan", "refused": "yellow"}
_SEVERITY = {"blocker": "bold red", "costly": "yellow", "hint": "cyan"}
_TONE = {"before": "bright_black", "after": "magenta", "memory": "blue"}
_LEVELS = "·░▒▓█"
_BAR_WIDTH = 30
_TABLE_WIDTH = 76


def render_text(report: ReportData, width: int | None = None, color: bool = False) -> str:
    """The report as text.

    `width` is in columns, 80 where it is None and at least 40. The verdict is the first line and is never wrapped.
    With `color`, ANSI styles are used; without, there is no escape sequence in the text.
    """
    lines = Lines(max(40, 80 if width is None else width), color=color)
    _print(lines, report)
    return lines.text()


def _print(console: Lines, report: ReportData) -> None:
    console.print(clean(report.verdict), style="bold", wrap=False)
    console.print(headline(report), style="dim")
    if report.evidence.error:
        console.print(f"the cell raised {one_line(report.evidence.error, 200)}", style="red")
    for note in report.evidence.notes:
        console.print(f"note: {one_line(note, 200)}", style="dim")
    if report.regions:
        console.print()
        _regions(console, rows(report))
    _bars(console, cell_title(report), cell_bars(report))
    _bars(console, time_title(report), time_bars(report))
    _strips(console, strips(report))
    _bars(console, memory_title(report), memory_bars(report))
    _findings(console, report.findings)
    step = next_step(report)
    if step:
        console.print()
        console.print(f"next: {step}", style="bold")


def _regions(console: Lines, shown: tuple[Row, ...]) -> None:
    """A table; where there is no room for one, a line or two per region."""
    if console.width < _TABLE_WIDTH:
        for row in shown:
            console.print(*_region_line(row))
        return
    values = [(row.calls, row.replays, row.before, row.after, row.speedup, row.verified) for row in shown]
    headers = ("calls", "replays", "before", "after", "speedup", "outputs")
    columns = list(zip(*values, strict=True))
    widths = [max(len(header), *map(len, column)) for header, column in zip(headers, columns, strict=True)]
    widths[-1] = min(widths[-1], 14)
    outcome = max(len(word) for word in _STYLES)
    room = max(12, console.width - outcome - sum(widths) - len(widths) - 1)
    first = min(room, max(len(text) for row in shown for text in (row.name, row.where)) + 2)
    header = [Cell(lines=(name,), style="bold", right=name in headers[:-1]) for name in ("region", "outcome", *headers)]
    body = [
        [
            Cell(lines=(_tail(row.name, room), f"  {_tail(row.where, room - 2)}")),
            Cell(lines=(row.outcome, *([row.reason] if row.reason else [])), style=_STYLES[row.outcome]),
            *(Cell(lines=(text,), right=name != "outputs") for name, text in zip(headers, cells, strict=True)),
        ]
        for row, cells in zip(shown, values, strict=True)
    ]
    console.table(header, body, [first, outcome, *widths])


def _region_line(row: Row) -> tuple[Span, ...]:
    return (
        (f"{row.name} ({row.where}): ", ""),
        (f"{row.outcome} {row.reason}".rstrip(), _STYLES[row.outcome]),
        (f", {row.replays} of {row.calls} calls replayed, before {row.before}, after {row.after}", ""),
        (f", speedup {row.speedup}, outputs {row.verified}", ""),
    )


def _tail(text: str, room: int) -> str:
    """The end of a qualified name says more than its beginning."""
    text = one_line(text, 1000)
    return text if len(text) <= room else "\N{HORIZONTAL ELLIPSIS}" + text[1 - room :]


def _bars(console: Lines, title: str, bars: tuple[Bar, ...]) -> None:
    if not bars:
        return
    console.print()
    console.print(title)
    label = max(len(bar.label) for bar in bars)
    width = min(_BAR_WIDTH, console.width // 3)
    for bar in bars:
        filled = max(1, round(bar.share * width)) if bar.share > 0 else 0
        rest = " " * (width - filled) + f"  {bar.value}"
        console.print(f"  {bar.label:<{label}}  ", ("█" * filled, _TONE[bar.tone]), rest)


def _strips(console: Lines, shown: tuple[Strip, ...]) -> None:
    if not shown or console.width < _TABLE_WIDTH:
        return
    console.print()
    console.print(f"GPU over time ({_LEVELS[0]} idle, {_LEVELS[-1]} busy)")
    for strip in shown:
        buckets = "".join(_LEVELS[level(share)] for share in strip.buckets)
        console.print(f"  {strip.label:<6}  ", (buckets, _TONE[strip.tone]))
        console.print(f"          {strip.value}", style="dim")


def _findings(console: Lines, findings: tuple[Finding, ...]) -> None:
    for finding in findings[:SHOWN_FINDINGS]:
        console.print()
        where = place(finding.at.file, finding.at.line) if finding.at else finding.region and clean(finding.region)
        rest = ", ".join(["", *(part for part in (where, cost(finding), finding.severity) if part)])
        console.print((f"{finding.code} {finding.name}", _SEVERITY[finding.severity]), rest)
        console.print(clean(finding.message), indent=2)
        if finding.advice:
            console.print(f"fix: {clean(finding.advice)}", style="green", indent=2)
        if finding.fix:
            for line in clean(finding.fix.diff).rstrip("\n").split("\n"):
                style = {"+": "green", "-": "red"}.get(line[:1], "")
                console.print(f"    {line}", style=style, wrap=False)
    more = len(findings) - SHOWN_FINDINGS
    if more > 0:
        console.print()
        console.print(f"and {more} more: grape.last.findings", style="dim")
