"""Chooses what a report tells of: which regions, under which names, and the person's code."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ...model import CellEvidence, Finding, OpRecord, Position, RegionEvidence, Trace


def sources(names: Callable[[str], str]) -> tuple[tuple[str, str], ...]:
    """The person's code that ran so far, by the name to show: cells and files."""
    from ...tracing import is_own_code

    return tuple(
        (names(filename), "".join(linecache.getlines(filename)))
        for filename in list(linecache.cache)
        if is_own_code(filename)
    )


def _trivial(region: Any) -> bool:
    """A callable without device work is no region worth a row."""
    return region.refused is not None and region.refused.code == "GR406" and not region.captures.costs.durations_ms


def renamed(trace: Trace, old: str, new: str) -> Trace:
    """The trace of a cell that has another name now that it runs again."""

    known: dict[Position, Position] = {}

    def at(position: Position | None) -> Position | None:
        if position is None or position.file != old:
            return position
        if position not in known:
            known[position] = replace(position, file=new)
        return known[position]

    def moved(op: OpRecord) -> OpRecord:
        user, inner = at(op.user), at(op.inner)
        return op if user is op.user and inner is op.inner else replace(op, user=user, inner=inner)

    reads = tuple([replace(read, position=at(read.position)) for read in trace.host_reads])
    return replace(trace, ops=tuple(map(moved, trace.ops)), host_reads=reads)


def evidence_as(evidence: CellEvidence, name: str, *, traces: bool) -> CellEvidence:
    """The evidence of a cell that has another name now that it runs again unchanged; with that of its `traces`, or not,
    which takes less time.
    """
    old = evidence.file

    def at(position: Position | None) -> Any:
        return replace(position, file=name) if position is not None and position.file == old else position

    regions = [
        replace(
            region,
            at=at(region.at),
            refused=replace(region.refused, at=at(region.refused.at)) if region.refused is not None else None,
            traces=tuple([renamed(trace, old, name) for trace in region.traces]) if traces else region.traces,
        )
        for region in evidence.regions
    ]
    trace = renamed(evidence.trace, old, name) if traces and evidence.trace is not None else evidence.trace
    return replace(evidence, file=name, regions=tuple(regions), trace=trace)


def findings_as(findings: Sequence[Finding], old: str, name: str) -> tuple[Finding, ...]:
    """Findings about the cell `old`, which is called `name` now."""

    def moved(finding: Finding) -> Finding:
        at = finding.at
        return replace(finding, at=replace(at, file=name)) if at is not None and at.file == old else finding

    return tuple([moved(finding) for finding in findings])


def told(regions: list[Any]) -> Iterator[Any]:
    """The regions worth a row. Modules of one kind that are called once each at one place are told of once."""
    once = set()
    for region in regions:
        kind = (region.name.partition(" ")[0], region.at)
        repeated = region.calls == 1 and region.root_is_module and kind in once
        if region.calls == 1:
            once.add(kind)
        if not repeated and not _trivial(region):
            yield region


def distinct(regions: list[RegionEvidence]) -> tuple[RegionEvidence, ...]:
    """Names are unique within a report: a second region of the same name gets a number."""
    seen: dict[str, int] = {}
    result = []
    for region in regions:
        seen[region.name] = seen.get(region.name, 0) + 1
        count = seen[region.name]
        result.append(region if count == 1 else replace(region, name=f"{region.name} #{count}"))
    return tuple(result)
