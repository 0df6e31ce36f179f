"""The public report: the data of one cell with its renderings."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..model import FEWEST_SAMPLES, CellEvidence, Finding, RegionEvidence, RegionReport, ReportData
from .timeline.timelines import named_timelines
from .verdict.verdict import build_verdict, gpu_measured


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report(ReportData):
    """The report about one cell. Every method is a pure function of the data, apart from the file it may write.

    The last expression of a cell shows it as HTML in a notebook and as text elsewhere.

    Rewrites are made, and compared with what was written, when somebody asks for them: with `with_fixes`, or with
    ``fixes=True``. Until then the `fix` of each finding is None, and `fixable` says where there may be one.
    """

    def __repr__(self) -> str:
        return f"<grape.Report: {self.verdict}>"

    def __str__(self) -> str:
        return self.to_text()

    def with_fixes(self) -> Report:
        """The report with the rewrites of its findings, made at the first call. The cell may run again on copies."""
        return self if self.make_fixes is None else replace(self, findings=self.make_fixes(), make_fixes=None)

    @property
    def has_timeline(self) -> bool:
        """True where a call was profiled, so that there is more to draw than memory."""
        return any(True for _ in named_timelines(self))

    @property
    def made_findings(self) -> tuple[Finding, ...]:
        """The findings with their fixes, where those are made already; else without."""
        made: tuple[Finding, ...] | None = getattr(self.make_fixes, "made", None)
        return self.findings if made is None else made

    def to_dict(self, *, fixes: bool = False) -> dict[str, Any]:
        """The contract: see `docs/report.md`. Plain values only; `json.dumps` takes it. `fixes` as for `with_fixes`."""
        from .spent import spent

        content = ReportData.to_dict(self.with_fixes() if fixes else self)
        content["cell"]["spent"] = [one.to_dict() for one in spent(self)] or None
        return content

    def to_text(self, width: int | None = None, color: bool = False, *, details: bool = True) -> str:
        """Text for a terminal of `width` columns (80 where None); `color` adds ANSI styles. Without `details`: what
        stands unfolded in a notebook.
        """
        from .text import render_text

        return render_text(self, width, color, details=details)

    def to_html(self) -> str:
        """A static fragment that an untrusted notebook shows in full: tables, details and inline styles only."""
        from .html.report_html import render_html

        return render_html(self)

    def to_json(self, *, fixes: bool = False) -> str:
        """`to_dict()` as JSON text; see ``docs/report.schema.json``."""
        from .jsontext import render_json

        return render_json(self.with_fixes() if fixes else self)

    def to_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the timelines for Perfetto. Raises `UsageError` where `path` cannot be written."""
        from .timeline.chrome import write_chrome_trace

        write_chrome_trace(self, path)

    def _repr_mimebundle_(
        self, include: Container[str] | None = None, exclude: Container[str] | None = None
    ) -> dict[str, object]:
        renderers = {"text/plain": self.to_text, "text/html": self.to_html}
        return {
            mime: render()
            for mime, render in renderers.items()
            if (not include or mime in include) and not (exclude and mime in exclude)
        }


def build_report(
    evidence: CellEvidence,
    findings: Sequence[Finding],
    make_fixes: Callable[[], tuple[Finding, ...]] | None = None,
) -> Report:
    """The report of one cell. `findings` are kept in their order, the most important first."""
    regions = tuple(_region_report(evidence, region) for region in evidence.regions)
    return Report(
        verdict=build_verdict(evidence, regions, findings),
        evidence=evidence,
        regions=regions,
        findings=tuple(findings),
        make_fixes=make_fixes,
    )


def _region_report(evidence: CellEvidence, region: RegionEvidence) -> RegionReport:
    """A speed-up stands only where a GPU was timed, and both sides often enough; a cell in which nothing was replayed
    shows no replays of an earlier one.
    """
    report = RegionReport.of(region)
    if report.outcome == "observed" and not report.replays:
        checked = report.verified if not gpu_measured(evidence) else None
        return replace(report, after_ms=None, speedup=None, verified=checked)
    fewest = min((m.n for m in (report.before_ms, report.after_ms) if m), default=0)
    return report if gpu_measured(evidence) and fewest >= FEWEST_SAMPLES else replace(report, speedup=None)
