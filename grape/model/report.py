"""The report of one cell: the versioned contract that people script on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from .codes import Outcome
from .evidence import CellEvidence, RegionEvidence
from .finding import Finding
from .graph_memory import GraphMemory
from .times.cell_time import OwnTime, Served
from .times.measured import Measured
from .times.timeline import MemoryCurve, Timeline

VERSION = 1

FEWEST_SAMPLES = 20
"""Timed calls that a claim needs on each side (DESIGN section 8). With fewer, quartiles that lie apart prove little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionReport:
    """One row of the regions table; fields as in DESIGN section 2."""

    name: str
    file: str
    line: int
    outcome: Outcome
    reason: str | None
    calls: int
    replays: int
    before_ms: Measured | None
    after_ms: Measured | None
    predicted_ms: float | None = None
    speedup: float | None
    verified: str | None
    shapes: int
    copied_bytes_per_call: int
    alias_hits: int
    alias_misses: int
    wasted_iterations: int = 0
    paired: bool = False
    graph_bytes: int
    kernels_per_call: float | None
    gpu_busy_share: float | None
    graph_memory: GraphMemory | None = None

    @classmethod
    def of(cls, region: RegionEvidence) -> RegionReport:
        """A speed-up is claimed only where outputs were verified and the interquartile ranges do not overlap."""
        before, after = region.before_ms, region.after_ms
        claimed = (
            region.verified is not None
            and before is not None
            and after is not None
            and after.median_ms > 0
            and (after.clearly_below(before) or before.clearly_below(after))
        )
        timeline = region.before
        return cls(
            name=region.name,
            file=region.at.file,
            line=region.at.line,
            outcome=region.outcome,
            reason=region.refused.code if region.refused else None,
            calls=region.calls,
            replays=region.replays,
            before_ms=before,
            after_ms=after,
            speedup=before.median_ms / after.median_ms if claimed and before and after else None,
            verified=region.verified,
            shapes=len(region.shapes),
            copied_bytes_per_call=region.copied_bytes_per_call,
            alias_hits=region.alias_hits,
            alias_misses=region.alias_misses,
            graph_bytes=region.graph_bytes,
            wasted_iterations=region.wasted_iterations,
            paired=region.paired,
            kernels_per_call=timeline.kernels_per_call if timeline else None,
            gpu_busy_share=timeline.gpu_busy_share if timeline else None,
            predicted_ms=region.predicted_ms,
            graph_memory=region.graph_memory,
        )

    def to_dict(self) -> dict[str, object]:
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value.to_dict() if hasattr(value, "to_dict") else value for name, value in row.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """Verdict, regions and findings of one cell, with the evidence they rest on.

    `notebook` is set where the report is read outside of the notebook, as after `grape run`: the words that name the
    file and the cell to commands of the shell.
    """

    verdict: str
    evidence: CellEvidence
    regions: tuple[RegionReport, ...]
    findings: tuple[Finding, ...]
    notebook: str | None = None
    make_fixes: Callable[[], tuple[Finding, ...]] | None = field(default=None, compare=False, repr=False)
    """Gives the findings with their fixes, the same ones at each call; None once they are here, or where none are."""
    step_told: bool = field(default=False, compare=False, repr=False)
    """True where an earlier run of the cell was shown with the same next step, which is not shown again."""

    @property
    def device(self) -> str:
        return self.evidence.device

    @property
    def memory(self) -> MemoryCurve:
        return self.evidence.memory

    @property
    def main_region(self) -> RegionReport | None:
        """The region that the verdict speaks of: the replayed one that took most eager time, else the costliest."""
        if not self.regions:
            return None
        return max(
            self.regions,
            key=lambda r: (r.outcome == "replayed", (r.before_ms.median_ms if r.before_ms else 0.0) * r.calls),
        )

    @property
    def speedup(self) -> float | None:
        """Of the cell: what the plain cell takes over what this run took, its report included. None where nothing is
        claimed: no GPU was timed, too few calls, outputs not compared, or no significant change. What operator streams
        matched is the cell's own operators, in their order.
        """
        time, cell = self.evidence.time, self.evidence
        if time is None or time.ratio is None or not cell.cuda or cell.backend == "tape":
            return None
        if time.ratio < 1:
            return time.ratio
        if any(stream.matched for stream in cell.streams):
            return time.ratio
        replayed = [region for region in self.regions if region.outcome == "replayed"]
        proven = bool(replayed) and all(region.verified is not None for region in replayed)
        return time.ratio if proven and (time.samples is None or time.samples >= FEWEST_SAMPLES) else None

    def timelines(self) -> tuple[Timeline | None, Timeline | None]:
        """Before and after, of the main region."""
        main = self.main_region
        for region in self.evidence.regions:
            if main is not None and region.name == main.name and region.at.line == main.line:
                return region.before, region.after
        return self.evidence.timeline, None

    def to_dict(self) -> dict[str, Any]:
        """The contract: see `docs/report.md`. Plain values only; `json.dumps` takes it."""
        cell = self.evidence
        return {
            "version": VERSION,
            "device": cell.device,
            "verdict": self.verdict,
            "cell": {
                "file": cell.file,
                "backend": cell.backend,
                "engine": cell.engine,
                "wall_ms": cell.time.wall_ms if cell.time else cell.wall_ms,
                "plain_ms": cell.time.plain_ms if cell.time else None,
                "plain_basis": cell.time.basis if cell.time else None,
                "own_ms": (cell.time.own if cell.time else OwnTime()).to_dict(),
                "served": (cell.time.served if cell.time else Served()).to_dict(),
                "slower": cell.time.slower if cell.time else False,
                "error": cell.error,
                "notes": list(cell.notes),
                "peak_allocated_bytes": cell.memory.peak_allocated_bytes,
                "peak_reserved_bytes": cell.memory.peak_reserved_bytes,
                "graph_memory": cell.graph_memory.to_dict() if cell.graph_memory else None,
                "ranks": cell.ranks.to_dict() if cell.ranks else None,
                "lines": cell.lines.to_dict() if cell.lines else None,
                "decisions": [
                    {"region": region.name, **asdict(decision)}
                    for region in cell.regions
                    for decision in region.decisions
                ],
            },
            "streams": [stream.to_dict() for stream in cell.streams],
            "regions": [region.to_dict() for region in self.regions],
            "findings": [finding.to_dict() for finding in self.findings],
        }
