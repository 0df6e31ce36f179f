"""The report for a terminal: short, 80 columns, plain where there is no terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from ..model import Finding, Kind, ReportData, Spent
from .lines import CellLines, Line, cell_lines, lines_title
from .memory_rows import memory_bars, memory_title
from .own_rich import own_rich
from .ranks import IN_RANK_0, RANK_HEADER, is_of_another_rank, rank_line, rank_notes, rank_rows
from .spent import legend, spent
from .streams import stream_lines
from .summary import (
    Bar,
    Row,
    Strip,
    cell_bars,
    cost,
    headline,
    level,
    place,
    plain_basis,
    rows,
    shown_findings,
    source_at,
    strips,
    time_bars,
    time_title,
)
from .units import changed_lines, clean, code_spans, one_line, shown_diff, waited
from .verdict.next_step import next_step

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

_STYLES = {"replayed": "green", "checked": "cyan", "observed": "cyan", "refused": "yellow"}
_SEVERITY = {"blocker": "bold red", "costly": "yellow", "hint": "cyan"}
_TONE = {"before": "bright_black", "after": "magenta", "memory": "blue"}
_SPENT: dict[Kind, tuple[str, str]] = {
    "python": ("▓", "yellow"),
    "gpu": ("█", "green"),
    "waiting": ("░", "red"),
    "data": ("▒", "blue"),
    "grape": ("+", "magenta"),
    "unprofiled": ("·", "bright_black"),
}
"""The letter and the colour of each part of a cell's time."""
_LEVELS = "·░▒▓█"
_HEAT = 8
"""The letters of a line's bar."""
_BELOW_A_LINE = 11
"""Columns before what was found at a line."""
_BAR_WIDTH = 30
_MORE_WIDTH = 160
"""Of the message of a finding that is not shown whole."""
_TABLE_WIDTH = 76


def render_text(report: ReportData, width: int | None = None, color: bool = False, *, details: bool = True) -> str:
    """The report as text.

    `width` is in columns, 80 where it is None and at least 40. The verdict is the first line and is never wrapped.
    With `color`, ANSI styles are used; without, there is no escape sequence in the text. Without `details`, it is what
    stands unfolded in a notebook.
    """
    with own_rich():
        return _rendered(report, width, color, details=details)


def _rendered(report: ReportData, width: int | None, color: bool, *, details: bool) -> str:
    from rich.console import Console

    stream = io.StringIO()
    console = Console(
        file=stream,
        width=max(40, 80 if width is None else width),
        force_terminal=color,
        force_jupyter=False,
        force_interactive=False,
        color_system="standard" if color else None,
        no_color=not color,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )
    _print(console, report, details=details)
    return "\n".join(line.rstrip() for line in stream.getvalue().split("\n")).rstrip("\n") + "\n"


def _print(console: Console, report: ReportData, *, details: bool) -> None:
    if is_of_another_rank(report) and not details:
        console.print(clean(rank_line(report)), soft_wrap=True)
        return
    console.print(clean(report.verdict), style="bold", soft_wrap=True)
    console.print(headline(report), style="dim")
    if report.evidence.error:
        console.print(f"the cell raised {one_line(report.evidence.error, 200)}", style="red")
    for note in report.evidence.notes:
        console.print(f"note: {one_line(note, 200)}", style="dim")
    _spent(console, spent(report))
    _ranks(console, report)
    lines = cell_lines(report)
    _lines(console, report, lines)
    _findings(console, report, lines.placed, details=details)
    step = next_step(report)
    if step:
        console.print()
        console.print(f"next: {step}", style="bold")
    if details:
        _details(console, report)
    elif report.regions or report.evidence.streams:
        console.print()
        console.print("regions, memory and more: import grape; print(grape.last)", style="dim")


def _details(console: Console, report: ReportData) -> None:
    basis, streams = plain_basis(report), stream_lines(report)
    if basis or streams:
        console.print()
    for line in (*([basis] if basis else []), *streams):
        console.print(clean(line))
    if report.regions:
        console.print()
        console.print(_regions(rows(report), console.width))
    _bars(console, "time of the cell", cell_bars(report))
    _bars(console, time_title(report), time_bars(report))
    _strips(console, strips(report))
    _bars(console, memory_title(report), memory_bars(report))


def _ranks(console: Console, report: ReportData) -> None:
    from rich.text import Text

    if is_of_another_rank(report):
        console.print(f"note: {clean(rank_line(report).partition(':')[0])}; {IN_RANK_0}", style="dim")
    shown = rank_rows(report)
    if not shown:
        return
    console.print()
    widths = [max(map(len, column)) for column in zip(RANK_HEADER, *shown, strict=True)]
    for row in (RANK_HEADER, *shown):
        cells = [f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)]
        console.print(Text("  ".join(cells)), soft_wrap=True)
    for note in rank_notes(report):
        console.print(clean(note))


def _spent(console: Console, shown: tuple[Spent, ...]) -> None:
    """The cell before and after, to one scale."""
    from rich.text import Text

    if not shown:
        return
    console.print()
    width, longest = console.width - 20, max(one.total_ms for one in shown)
    for one in shown:
        line = Text(f"{one.when:<8}")
        for part in one.parts:
            letter, style = _SPENT[part.kind]
            line.append(letter * round(width * part.ms / longest), style=style)
        line.append(f"  {waited(one.total_ms)}")
        console.print(line)
    keys = [Text("        ")]
    for kind, words in legend(shown):
        letter, style = _SPENT[kind]
        if len(keys[-1]) + len(words) + 2 > console.width and keys[-1].plain.strip():
            keys.append(Text("        "))
        keys[-1].append(letter, style=style).append(f" {words}   ")
    for line in keys:
        console.print(line, soft_wrap=True)


def _lines(console: Console, report: ReportData, lines: CellLines) -> None:
    """The cell's source with the share of the time at each line, and below a line what was found there."""
    if not lines.shown:
        return
    console.print()
    console.print(lines_title(report))
    for line in lines.shown:
        at_line = lines.found.get(line.number, ()) if line is not None else ()
        console.print(_line(line, codes=not at_line) if line is not None else "       ...", soft_wrap=True)
        for index in at_line:
            finding = report.findings[index]
            _finding(console, finding, "", changed_lines(finding.fix.diff) if finding.fix else (), _BELOW_A_LINE)


def _line(line: Line, *, codes: bool) -> Text:
    from rich.text import Text

    filled = "▇" * max(1, round(line.share * _HEAT)) if line.took else ""
    shown = Text(f"{line.number:>4} {line.took:>5} ")
    shown.append(f"{filled:<{_HEAT}} ", style="yellow")
    shown.append(line.text)
    notes = (*(line.codes if codes else ()), *line.notes)
    if notes:
        shown.append(f"   <- {', '.join(notes)}", style="bold" if codes and line.codes else "dim")
    return shown


def _regions(shown: tuple[Row, ...], width: int) -> RenderableType:
    """A table; where there is no room for one, a line or two per region."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if width < _TABLE_WIDTH:
        return Text("\n").join(map(_region_line, shown))
    values = [(row.calls, row.replays, row.before, row.after, row.speedup, row.verified) for row in shown]
    headers = ("calls", "replays", "before", "after", "speedup", "outputs")
    columns = list(zip(*values, strict=True))
    widths = [max(len(header), *map(len, column)) for header, column in zip(headers, columns, strict=True)]
    widths[-1] = min(widths[-1], 14)
    outcome = max(len(word) for word in _STYLES)
    room = max(12, width - outcome - sum(widths) - len(widths) - 1)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False)
    table.add_column("region", width=min(room, max(len(text) for row in shown for text in (row.name, row.where)) + 2))
    table.add_column("outcome", width=outcome)
    for header, wide in zip(headers, widths, strict=True):
        table.add_column(header, justify="left" if header == "outputs" else "right", width=wide, overflow="fold")
    for row, cells in zip(shown, values, strict=True):
        table.add_row(
            Text(f"{_tail(row.name, room)}\n  {_tail(row.where, room - 2)}"),
            Text(f"{row.outcome}\n{row.reason}".rstrip(), style=_STYLES[row.outcome]),
            *map(Text, cells),
        )
    return table


def _region_line(row: Row) -> Text:
    from rich.text import Text

    line = Text(f"{row.name} ({row.where}): ")
    line.append(f"{row.outcome} {row.reason}".rstrip(), style=_STYLES[row.outcome])
    line.append(f", {row.replays} of {row.calls} calls replayed, before {row.before}, after {row.after}")
    line.append(f", speedup {row.speedup}, outputs {row.verified}")
    return line


def _tail(text: str, room: int) -> str:
    """The end of a qualified name says more than its beginning."""
    text = one_line(text, 1000)
    return text if len(text) <= room else "\N{HORIZONTAL ELLIPSIS}" + text[1 - room :]


def _bars(console: Console, title: str, bars: tuple[Bar, ...]) -> None:
    from rich.text import Text

    if not bars:
        return
    console.print()
    console.print(title)
    label = max(len(bar.label) for bar in bars)
    width = min(_BAR_WIDTH, console.width // 3)
    for bar in bars:
        filled = max(1, round(bar.share * width)) if bar.share > 0 else 0
        line = Text(f"  {bar.label:<{label}}  ")
        line.append("█" * filled, style=_TONE[bar.tone])
        line.append(" " * (width - filled) + f"  {bar.value}")
        console.print(line)


def _strips(console: Console, shown: tuple[Strip, ...]) -> None:
    from rich.text import Text

    if not shown or console.width < _TABLE_WIDTH:
        return
    console.print()
    console.print(f"GPU over time ({_LEVELS[0]} idle, {_LEVELS[-1]} busy)")
    for strip in shown:
        line = Text(f"  {strip.label:<6}  ")
        line.append("".join(_LEVELS[level(share)] for share in strip.buckets), style=_TONE[strip.tone])
        console.print(line)
        console.print(f"          {strip.value}", style="dim")


def _prose(console: Console, text: str, style: str = "") -> Text:
    """A sentence; where there are colors, its code stands out by them, and not between backticks."""
    from rich.text import Text

    shown = Text(style=style)
    for part, is_code in code_spans(clean(text)) if console.color_system else [(clean(text), False)]:
        shown.append(part, style="bold" if is_code else "")
    return shown


def _findings(console: Console, report: ReportData, placed: Set[int], *, details: bool) -> None:
    """Those that do not stand below their line, as the `placed` ones do; with `details` a line for each further one."""
    shown = shown_findings(report)
    for index, finding in enumerate(report.findings[:shown]):
        if index in placed:
            continue
        where = place(finding.at.file, finding.at.line) if finding.at else clean(finding.region or "")
        diff = clean(shown_diff(finding.fix.diff)).rstrip("\n").split("\n") if finding.fix else ()
        console.print()
        _finding(console, finding, where, diff, 0)
    more = report.findings[shown:]
    if more:
        console.print()
        console.print(f"and {len(more)} more:{'' if details else ' import grape; print(grape.last)'}", style="dim")
    for finding in more if details else ():
        head = ", ".join([f"{finding.code} {finding.name}", source_at(finding), finding.severity])
        console.print(f"  {head}: {one_line(finding.message, _MORE_WIDTH)}", style="dim", soft_wrap=True)


def _finding(console: Console, finding: Finding, where: str, diff: Sequence[str], indent: int) -> None:
    from rich.padding import Padding
    from rich.text import Text

    head = Text()
    head.append(f"{finding.code} {finding.name}", style=_SEVERITY[finding.severity])
    head.append(", ".join(["", *(part for part in (where, cost(finding), finding.severity) if part)]))
    console.print(Padding(head, (0, 0, 0, indent)))
    console.print(Padding(_prose(console, finding.message), (0, 0, 0, indent + 2)))
    if finding.advice:
        console.print(Padding(_prose(console, f"fix: {finding.advice}", "green"), (0, 0, 0, indent + 2)))
    for line in diff:
        style = {"+": "green", "-": "red"}.get(line[:1], "")
        console.print(Text(f"{' ' * (indent + 4)}{line}", style=style), soft_wrap=True)
