"""The report as a static HTML fragment.

It must read the same in an untrusted notebook, on GitHub and after nbconvert, in light and dark themes. So: tables,
details and inline styles, nothing that a sanitizer drops, no scripts, no classes, nothing fetched. Text takes the
theme's colour; only bars, badges and tints have one of their own. Every bar has its figure beside it as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ...model import Finding, ReportData
from ..lines import cell_lines
from ..memory_rows import memory_bars, memory_title
from ..ranks import RANK_HEADER, is_of_another_rank, rank_line, rank_notes, rank_rows
from ..spent import spent
from ..streams import stream_lines
from ..summary import (
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
    strips,
    time_bars,
    time_title,
)
from ..units import changed_lines, count, duration, plural, shown_diff, three
from ..verdict.next_step import next_step
from .html_lines import lines_html, raised_html, spent_html
from .html_parts import MONO, QUIET, TABLE, TONES, TRACK, badge, code, heading, label, percent, prose, safe, table


def render_html(report: ReportData) -> str:
    """One ``<div>``: the verdict, one picture, the warm lines, the findings that matter most; the rest is folded. All
    text that came from the person's code is escaped.
    """
    if is_of_another_rank(report):
        whole = f"<details><summary>{prose(rank_line(report))}</summary>{_whole(report)}</details>"
        return f'<div style="{_FRAME}">{whole}</div>'
    return f'<div style="{_FRAME}">{_whole(report)}</div>'


_FRAME = "font-size:13px;line-height:1.4;max-width:960px;overflow-x:auto;text-align:left"


def _whole(report: ReportData) -> str:
    lines, shown = cell_lines(report), shown_findings(report)
    parts = [
        f'<div style="font-size:15px;font-weight:600;margin:0 0 2px 0">{prose(report.verdict)}</div>',
        f'<div style="{QUIET}">{safe(headline(report))}</div>',
        raised_html(report.evidence.error),
        *(f'<div style="{QUIET}">note: {prose(note)}</div>' for note in report.evidence.notes),
        spent_html(spent(report)),
        _ranks(report),
        lines_html(report, lines, _finding_at_line),
        *(_finding(one) for index, one in enumerate(report.findings[:shown]) if index not in lines.placed),
        _next(report),
        _details(report),
    ]
    return "".join(part for part in parts if part)


def _ranks(report: ReportData) -> str:
    shown = rank_rows(report)
    if not shown:
        return ""
    notes = "".join(f'<div style="{QUIET}">{safe(note)}</div>' for note in rank_notes(report))
    cells = (tuple(map(safe, row)) for row in shown)
    return f"{heading('ranks')}{table(RANK_HEADER, cells, right=frozenset(range(len(RANK_HEADER))))}{notes}"


def _details(report: ReportData) -> str:
    """All that somebody asks for who wants to know more: folded."""
    basis = plain_basis(report)
    lines = (*([basis] if basis else []), *stream_lines(report))
    parts = [
        *(f'<div style="margin:4px 0 0 0">{safe(line)}</div>' for line in lines),
        _regions(rows(report)),
        _bars("time of the cell", cell_bars(report)),
        _bars(time_title(report), time_bars(report)),
        _strips(strips(report)),
        _bars(memory_title(report), memory_bars(report)),
        _more_findings(report.findings[shown_findings(report) :]),
        _decisions(report),
    ]
    body = "".join(part for part in parts if part)
    if not body:
        return ""
    more = len(report.findings) - shown_findings(report)
    named = [
        plural(len(report.regions), "region") if report.regions else "",
        "operator streams" if report.evidence.streams else "",
        "times" if basis else "",
        "memory" if memory_bars(report) else "",
        plural(more, "more finding") if more > 0 else "",
    ]
    summary = safe(", ".join(part for part in named if part) or "more")
    return f'<details style="margin:8px 0"><summary>{summary}</summary>{body}</details>'


def _regions(shown: tuple[Row, ...]) -> str:
    if not shown:
        return ""
    header = ("region", "outcome", "calls", "replays", "before", "after", "speedup", "outputs")
    body = (
        (
            f'<span style="{MONO}">{safe(row.name)}</span><br><span style="opacity:0.75">{safe(row.where)}</span>',
            badge(row.outcome) + (f" {safe(row.reason)}" if row.reason else ""),
            *map(safe, (row.calls, row.replays, row.before, row.after)),
            f"<b>{safe(row.speedup)}</b>",
            safe(row.verified),
        )
        for row in shown
    )
    return table(header, body, right=frozenset(range(2, 7)))


def _bars(title: str, bars: tuple[Bar, ...]) -> str:
    if not bars:
        return ""
    lines = "".join(
        f'<tr style="background:transparent">{label(bar.label)}'
        f'<td style="width:300px;padding:2px 0;border:0;vertical-align:middle"><div style="background:{TRACK}">'
        f'<div style="width:{percent(bar.share)};height:12px;background:{TONES[bar.tone]}"></div></div></td>'
        f'<td style="text-align:left;padding:2px 0 2px 8px;border:0">{safe(bar.value)}</td></tr>'
        for bar in bars
    )
    return f'{heading(title)}<table style="{TABLE}"><tbody>{lines}</tbody></table>'


def _strips(shown: tuple[Strip, ...]) -> str:
    if not shown:
        return ""
    most = max(len(strip.buckets) for strip in shown)
    lines = "".join(
        f'<div style="margin:4px 0 0 0">{safe(strip.label)}: {safe(strip.value)}</div>{_strip(strip, most)}'
        for strip in shown
    )
    return f"{heading('GPU over time (coloured: busy, grey: waiting)')}{lines}"


def _strip(strip: Strip, most: int) -> str:
    """Runs of equal busyness as cells; four steps of opacity, the gaps in the colour of the track."""
    total = len(strip.buckets)
    cells = []
    for step, run in groupby(strip.buckets, key=level):
        width = sum(1 for _ in run) / total
        fill = TONES[strip.tone] if step else TRACK
        opacity = f";opacity:{0.25 + 0.1875 * step:.2f}" if step else ""
        look = f"width:{percent(width)};height:14px;padding:0;border:0;background:{fill}{opacity}"
        cells.append(f'<td style="{look}"></td>')
    style = f"{TABLE};width:{percent(total / most)};table-layout:fixed"
    return f'<table style="{style}"><tbody><tr style="background:transparent">{"".join(cells)}</tr></tbody></table>'


def _more_findings(findings: tuple[Finding, ...]) -> str:
    return f"{heading(plural(len(findings), 'more finding'))}{''.join(map(_finding, findings))}" if findings else ""


def _finding(finding: Finding) -> str:
    where = place(finding.at.file, finding.at.line) if finding.at else finding.region or ""
    diff = shown_diff(finding.fix.diff).rstrip("\n").split("\n") if finding.fix else ()
    return _about(finding, where, diff)


def _finding_at_line(finding: Finding) -> str:
    """Below its line: what was written there, and what to write instead."""
    return _about(finding, "", changed_lines(finding.fix.diff) if finding.fix else ())


def _about(finding: Finding, where: str, diff: Sequence[str]) -> str:
    head = ", ".join(safe(part) for part in (f"{finding.code} {finding.name}", where, cost(finding)) if part)
    parts = [
        f"<div>{badge(finding.severity)} <b>{head}</b></div>",
        f"<div>{prose(finding.message)}</div>",
        f"<div><b>fix:</b> {prose(finding.advice)}</div>" if finding.advice else "",
        code(diff) if diff else "",
    ]
    if finding.evidence:
        facts = ((safe(str(key)), safe(_value(value))) for key, value in finding.evidence)
        parts.append(f"<details><summary>evidence</summary>{table(('what', 'value'), facts)}</details>")
    return f'<div style="margin:4px 0;padding:0 0 0 8px;border-left:3px solid {TRACK}">{"".join(parts)}</div>'


def _value(value: object) -> str:
    if isinstance(value, float):
        return three(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    return str(value)


def _decisions(report: ReportData) -> str:
    """Decisions of the capture policy and their reasons: folded, for those who ask why a shape is not captured."""
    body = [
        (
            f'<span style="{MONO}">{safe(region.name)}</span>',
            safe(decision.action),
            safe(decision.shapes),
            count(decision.seen),
            count(decision.expected_calls),
            duration(decision.saving_ms),
            duration(decision.capture_ms),
            prose(decision.why),
        )
        for region in report.evidence.regions
        for decision in region.decisions
    ]
    if not body:
        return ""
    header = ("region", "decision", "shapes", "seen", "expected calls", "saving per call", "capture", "why")
    summary = f"<summary>{plural(len(body), 'capture decision')}</summary>"
    return f'<details style="margin:8px 0">{summary}{table(header, body, frozenset(range(3, 7)))}</details>'


def _next(report: ReportData) -> str:
    step = next_step(report)
    return f'<div style="margin:10px 0 0 0"><b>next:</b> {prose(step)}</div>' if step else ""
