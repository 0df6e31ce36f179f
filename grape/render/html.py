"""The report as a static HTML fragment.

It must read the same in an untrusted notebook, on GitHub and after nbconvert, in light and dark themes. So: tables,
details and inline styles, nothing that a sanitizer drops, no scripts, no classes, nothing fetched. Text takes the
theme's colour; only bars, badges and tints have one of their own. Every bar has its figure beside it as text.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from itertools import groupby
from typing import Any

from ..model import Finding, Kind, ReportData, Spent
from .lines import Line, lines_title, shown_lines, warm_lines
from .spent import KINDS, in_words, spent
from .streams import stream_lines
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
    plain_basis,
    rows,
    strips,
    time_bars,
    time_title,
)
from .units import clean, code_spans, count, duration, plural, shown_diff, three

__all__ = ["FILLS", "SPENT", "TONES", "render_html"]

TONES = {"before": "#808a94", "after": "#9461d6", "memory": "#3f83c4"}
"""Bars: at least 3:1 against white and against the dark grounds of JupyterLab and VS Code."""

SPENT: dict[Kind, str] = {
    "python": "#c0851f",
    "gpu": "#2f9150",
    "waiting": "#d0524a",
    "data": "#3f83c4",
    "grape": "#9461d6",
    "unprofiled": "#808a94",
}
"""Parts of a cell's time, likewise."""

FILLS = {
    "blocker": "#b42318",
    "costly": "#8a5a00",
    "hint": "#1f5fa8",
    "replayed": "#1a6b37",
    "checked": "#1f5fa8",
    "refused": "#8a5a00",
}
"""Badges: white on these is at least 4.5:1."""

_TRACK = "rgba(128,128,128,0.18)"
_LINE = "1px solid rgba(128,128,128,0.35)"
_DIFF = {"+": "rgba(46,160,67,0.25)", "-": "rgba(218,54,51,0.25)", "@": "rgba(128,128,128,0.2)"}
_MONO = "font-family:monospace;font-size:12px"
_QUIET = "font-size:12px;opacity:0.75"
_TABLE = "border-collapse:collapse;margin:4px 0;border:0"


def render_html(report: ReportData) -> str:
    """One ``<div>``: the verdict, one picture, the warm lines, the findings that matter most; the rest is folded. All
    text that came from the person's code is escaped.
    """
    parts = [
        f'<div style="font-size:15px;font-weight:600;margin:0 0 2px 0">{_prose(report.verdict)}</div>',
        f'<div style="{_QUIET}">{_text(headline(report))}</div>',
        _raised(report.evidence.error),
        *(f'<div style="{_QUIET}">note: {_prose(note)}</div>' for note in report.evidence.notes),
        _spent(spent(report)),
        _lines(report),
        *map(_finding, report.findings[:SHOWN_FINDINGS]),
        _next(report),
        _details(report),
    ]
    body = "".join(part for part in parts if part)
    return f'<div style="font-size:13px;line-height:1.5;max-width:960px;overflow-x:auto;text-align:left">{body}</div>'


def _details(report: ReportData) -> str:
    """All that somebody asks for who wants to know more: folded."""
    basis = plain_basis(report)
    lines = (*([basis] if basis else []), *stream_lines(report))
    parts = [
        *(f'<div style="margin:4px 0 0 0">{_text(line)}</div>' for line in lines),
        _regions(rows(report)),
        _bars(cell_title(report), cell_bars(report)),
        _bars(time_title(report), time_bars(report)),
        _strips(strips(report)),
        _bars(memory_title(report), memory_bars(report)),
        _more_findings(report.findings[SHOWN_FINDINGS:]),
        _decisions(report),
    ]
    body = "".join(part for part in parts if part)
    if not body:
        return ""
    more = len(report.findings) - SHOWN_FINDINGS
    named = [
        plural(len(report.regions), "region") if report.regions else "",
        "operator streams" if report.evidence.streams else "",
        "times" if basis else "",
        "memory" if memory_bars(report) else "",
        plural(more, "more finding") if more > 0 else "",
    ]
    summary = _text(", ".join(part for part in named if part) or "more")
    return f'<details style="margin:8px 0"><summary>{summary}</summary>{body}</details>'


def _spent(shown: tuple[Spent, ...]) -> str:
    """The cell before and after, to one scale, as cells as wide as the parts."""
    if not shown:
        return ""
    longest = max(one.total_ms for one in shown)
    lines = "".join(
        f'<div style="margin:6px 0 0 0"><b>{_text(one.when)}</b> {_text(in_words(one))}</div>{_spent_bar(one, longest)}'
        for one in shown
    )
    kinds = [kind for kind in KINDS if any(part.kind == kind for one in shown for part in one.parts)]
    legend = " ".join(
        f'<span style="color:{SPENT[kind]}">\N{BLACK SQUARE}</span> {_text(KINDS[kind])}' for kind in kinds
    )
    return f'{lines}<div style="{_QUIET}">{legend}</div>'


def _spent_bar(one: Spent, longest: float) -> str:
    look = "height:16px;padding:0;border:0"
    cells = "".join(
        f'<td style="width:{_width(part.ms / one.total_ms)};{look};background:{SPENT[part.kind]}"></td>'
        for part in one.parts
    )
    style = f"{_TABLE};width:{_width(one.total_ms / longest)};table-layout:fixed"
    return f'<table style="{style}"><tbody><tr style="background:transparent">{cells}</tr></tbody></table>'


def _lines(report: ReportData) -> str:
    """The lines that took most of the cell's time; all of them folded below."""
    lines = warm_lines(report)
    shown = shown_lines(lines)
    if not any(line is not None and line.took for line in shown):
        return ""
    whole = ""
    if len(shown) < len(lines):
        whole = f'<details><summary style="{_QUIET}">all lines</summary>{_source(lines)}</details>'
    return f"{_title(lines_title(report))}{_source(shown)}{whole}"


def _source(lines: Iterable[Line | None]) -> str:
    return f'<table style="{_TABLE}"><tbody>{"".join(map(_source_line, lines))}</tbody></table>'


def _source_line(line: Line | None) -> str:
    cell = f"padding:0 8px 0 0;border:0;vertical-align:top;{_MONO}"
    if line is None:
        return f'<tr style="background:transparent"><td style="{cell}"></td><td style="{cell}">...</td></tr>'
    heat = f"rgba(214,128,30,{0.12 + 0.55 * min(1.0, line.share):.2f})" if line.took else "transparent"
    beside = " ".join([*map(_code_badge, line.codes), *(_text(note) for note in line.notes)])
    text = line.text.replace("\t", "    ")
    indent = "\N{NO-BREAK SPACE}" * (len(text) - len(text.lstrip(" ")))
    return (
        f'<tr style="background:transparent"><td style="{cell};text-align:right">{line.number}</td>'
        f'<td style="{cell};text-align:right;background:{heat}">{_text(line.took)}</td>'
        f'<td style="{cell};text-align:left;white-space:pre-wrap">{indent}{_text(text.lstrip(" "))}</td>'
        f'<td style="{cell};text-align:left">{beside}</td></tr>'
    )


def _code_badge(code: str) -> str:
    return f"<b>{_text(code)}</b>"


def _raised(error: str | None) -> str:
    return f'<div style="font-size:12px">the cell raised {_text(error)}</div>' if error else ""


def _text(value: str) -> str:
    return escape(clean(value), quote=True)


def _prose(value: str) -> str:
    """A sentence, what stands between backticks as code."""
    spans = code_spans(clean(value))
    return "".join(f"<code>{escape(part)}</code>" if is_code else escape(part) for part, is_code in spans)


def _badge(word: str) -> str:
    fill = FILLS.get(word)
    if fill is None:
        return _text(word)
    return (
        f'<span style="background:{fill};color:#ffffff;padding:1px 6px;border-radius:3px;font-size:11px;'
        f'white-space:nowrap">{_text(word)}</span>'
    )


def _title(title: str) -> str:
    return f'<div style="font-weight:600;margin:10px 0 0 0">{_text(title)}</div>'


def _cell(content: str, align: str = "left", tag: str = "td") -> str:
    weight = ";font-weight:600" if tag == "th" else ""
    style = f"text-align:{align};vertical-align:top;padding:3px 12px 3px 0;border:0;border-bottom:{_LINE}{weight}"
    return f'<{tag} style="{style}">{content}</{tag}>'


def _table(header: Iterable[str], body: Iterable[Iterable[str]], right: frozenset[int] = frozenset()) -> str:
    """`header` and the cells of `body` are HTML. `right` are the columns of numbers."""

    def line(cells: Iterable[str], tag: str) -> str:
        done = "".join(_cell(c, "right" if i in right else "left", tag) for i, c in enumerate(cells))
        return f'<tr style="background:transparent">{done}</tr>'

    lines = "".join(line(cells, "td") for cells in body)
    return f'<table style="{_TABLE}"><thead style="border:0">{line(header, "th")}</thead><tbody>{lines}</tbody></table>'


def _regions(shown: tuple[Row, ...]) -> str:
    if not shown:
        return ""
    header = ("region", "outcome", "calls", "replays", "before", "after", "speedup", "outputs")
    body = (
        (
            f'<span style="{_MONO}">{_text(row.name)}</span><br><span style="opacity:0.75">{_text(row.where)}</span>',
            _badge(row.outcome) + (f" {_text(row.reason)}" if row.reason else ""),
            *map(_text, (row.calls, row.replays, row.before, row.after)),
            f"<b>{_text(row.speedup)}</b>",
            _text(row.verified),
        )
        for row in shown
    )
    return _table(header, body, right=frozenset(range(2, 7)))


def _width(share: float) -> str:
    return f"{100 * min(1.0, max(0.0, share)):.1f}%"


def _label(text: str) -> str:
    return (
        '<td style="width:130px;text-align:left;vertical-align:middle;padding:2px 8px 2px 0;border:0;'
        f'white-space:nowrap">{_text(text)}</td>'
    )


def _bars(title: str, bars: tuple[Bar, ...]) -> str:
    if not bars:
        return ""
    lines = "".join(
        f'<tr style="background:transparent">{_label(bar.label)}'
        f'<td style="width:300px;padding:2px 0;border:0;vertical-align:middle"><div style="background:{_TRACK}">'
        f'<div style="width:{_width(bar.share)};height:12px;background:{TONES[bar.tone]}"></div></div></td>'
        f'<td style="text-align:left;padding:2px 0 2px 8px;border:0">{_text(bar.value)}</td></tr>'
        for bar in bars
    )
    return f'{_title(title)}<table style="{_TABLE}"><tbody>{lines}</tbody></table>'


def _strips(shown: tuple[Strip, ...]) -> str:
    if not shown:
        return ""
    most = max(len(strip.buckets) for strip in shown)
    lines = "".join(
        f'<div style="margin:4px 0 0 0">{_text(strip.label)}: {_text(strip.value)}</div>{_strip(strip, most)}'
        for strip in shown
    )
    return f"{_title('GPU over time (coloured: busy, grey: waiting)')}{lines}"


def _strip(strip: Strip, most: int) -> str:
    """Runs of equal busyness as cells; four steps of opacity, the gaps in the colour of the track."""
    total = len(strip.buckets)
    cells = []
    for step, run in groupby(strip.buckets, key=level):
        width = sum(1 for _ in run) / total
        fill = TONES[strip.tone] if step else _TRACK
        opacity = f";opacity:{0.25 + 0.1875 * step:.2f}" if step else ""
        look = f"width:{_width(width)};height:14px;padding:0;border:0;background:{fill}{opacity}"
        cells.append(f'<td style="{look}"></td>')
    style = f"{_TABLE};width:{_width(total / most)};table-layout:fixed"
    return f'<table style="{style}"><tbody><tr style="background:transparent">{"".join(cells)}</tr></tbody></table>'


def _more_findings(findings: tuple[Finding, ...]) -> str:
    return f"{_title(plural(len(findings), 'more finding'))}{''.join(map(_finding, findings))}" if findings else ""


def _finding(finding: Finding) -> str:
    where = place(finding.at.file, finding.at.line) if finding.at else finding.region or ""
    head = ", ".join(_text(part) for part in (f"{finding.code} {finding.name}", where, cost(finding)) if part)
    parts = [
        f"<div>{_badge(finding.severity)} <b>{head}</b></div>",
        f"<div>{_prose(finding.message)}</div>",
    ]
    if finding.advice:
        parts.append(f"<div><b>fix:</b> {_prose(finding.advice)}</div>")
    if finding.fix:
        parts.append(_diff(finding.fix.diff))
    if finding.evidence:
        facts = ((_text(str(key)), _text(_value(value))) for key, value in finding.evidence)
        parts.append(f"<details><summary>evidence</summary>{_table(('what', 'value'), facts)}</details>")
    return f'<div style="margin:8px 0;padding:0 0 0 8px;border-left:3px solid {_TRACK}">{"".join(parts)}</div>'


def _value(value: Any) -> str:
    if isinstance(value, float):
        return three(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    return str(value)


def _diff(diff: str) -> str:
    lines = []
    for line in clean(shown_diff(diff)).rstrip("\n").split("\n"):
        tint = _DIFF.get(line[:1])
        done = escape(line, quote=True)
        lines.append(f'<span style="background:{tint}">{done}</span>' if tint else done)
    return f'<pre style="{_MONO};margin:4px 0;padding:4px 0;white-space:pre-wrap">{chr(10).join(lines)}</pre>'


def _decisions(report: ReportData) -> str:
    """Decisions of the capture policy and their reasons: folded, for those who ask why a shape is not captured."""
    body = [
        (
            f'<span style="{_MONO}">{_text(region.name)}</span>',
            _text(decision.action),
            _text(decision.shapes),
            count(decision.seen),
            count(decision.expected_calls),
            duration(decision.saving_ms),
            duration(decision.capture_ms),
            _prose(decision.why),
        )
        for region in report.evidence.regions
        for decision in region.decisions
    ]
    if not body:
        return ""
    header = ("region", "decision", "shapes", "seen", "expected calls", "saving per call", "capture", "why")
    summary = f"<summary>{plural(len(body), 'capture decision')}</summary>"
    return f'<details style="margin:8px 0">{summary}{_table(header, body, frozenset(range(3, 7)))}</details>'


def _next(report: ReportData) -> str:
    step = next_step(report)
    return f'<div style="margin:10px 0 0 0"><b>next:</b> {_prose(step)}</div>' if step else ""
