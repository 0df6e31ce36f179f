"""The one thing to do next, and the command for it."""

from __future__ import annotations

from ...advisor.cost import idle_share
from ...model import Finding, Fix, RegionReport, ReportData
from ...rewrite.likely import has_likely_fix
from ..summary import share_of, source_at
from .said import evidence_of
from .unchanged import last_decision
from .verdict import gpu_measured

NO_FILE = "--report FILE"
"""So the words of `Report.notebook` end where no report was written."""

_MATTERS_MOST = 0.25
"""Of the cell's time."""
_LONG_MS, _MATCHED = 50.0, 0.9
"""Of a cell, for which another way is worth a word; and of the operators that streams serve: then what is left is its
Python, and kernels. Of 23 rows of the evaluation that train nothing mode `reduce-overhead` was faster than Grape on 16,
2.9 times in the median, and of 18 regions on 5, 2.4 times: nobody should be slower without knowing it.
"""
_IDLE = 0.15
"""Share of the GPU's time: below, kernels are what a call takes."""


def next_step(report: ReportData) -> str | None:
    """The one thing to do now, or None."""
    return None if report.step_told else _step(report)


def _step(report: ReportData) -> str | None:
    main = report.main_region
    for finding in report.findings:
        if finding.fix is not None:
            return _take(finding, finding.fix, report.notebook)
    for finding in report.findings:
        if finding.severity == "blocker" and finding.advice:
            return _diff_of(finding) if _unread(report, finding) else f"fix {_named(finding)}, as said there"
    for finding in report.findings:
        if finding.severity == "costly" and finding.advice and _unread(report, finding):
            return _diff_of(finding)
    for finding in report.findings:
        if finding.severity == "costly" and finding.advice and (share_of(report, finding) or 0.0) >= _MATTERS_MOST:
            return f"fix {_named(finding)}, as said there"
    if main is None:
        return _beside_streams(report)
    if report.speedup is not None and report.speedup < 0.95:
        return None if report.notebook else "%grape undo returns to eager execution"
    if not gpu_measured(report.evidence):
        doctor = "grape doctor" if report.notebook else "%grape doctor"
        return f"run it on an NVIDIA GPU to measure; {doctor} says what works on this machine"
    if not report.evidence.file.startswith("In["):
        replayed = "in the script, `with grape.session():` around this code does what this run did"
        return replayed if main.outcome == "replayed" else None
    if main.outcome == "observed" and not report.evidence.profile_only and report.evidence.given_up is None:
        return _next_run(report, main)
    known = evidence_of(report.evidence, main)
    idle = idle_share(known.after or known.before) if known is not None else None
    if idle is not None and idle < _IDLE and not report.notebook:
        return "the GPU is busy: %grape whatif model(...), with your call, measures what would help beside graphs"
    if main.outcome == "replayed" and report.notebook:
        return "put %%grape on top of the cell to have its graphs when the notebook runs"
    if main.outcome == "replayed":
        return "later cells use the same graphs; %grape undo returns to eager execution"
    return None


def _beside_streams(report: ReportData) -> str | None:
    """Where streams serve nearly all of a cell of the notebook, or made it no faster: what else there is."""
    cell, streams = report.evidence, report.evidence.streams
    operators, matched = sum(one.operators for one in streams), sum(one.matched for one in streams)
    if report.notebook or not cell.file.startswith("In[") or cell.ranks is not None or not cell.cuda:
        return None
    if cell.wall_ms < _LONG_MS or not cell.torch_ran:
        return None
    left = cell.engine == "regions" and cell.as_written is not None
    if not left and (matched < _MATCHED * operators or not matched):
        return None
    measured = "%grape whatif model(...), with your call, measures torch.compile and other ways"
    if left or any(one.backwards for one in streams):
        return measured
    regions = "nothing is trained here: %%grape --engine regions, run twice, may skip the Python of calls as well"
    return f"{regions}; {measured}"


def _unread(report: ReportData, finding: Finding) -> bool:
    """Where there is a rewrite, as far as the source tells, that nobody has asked for."""
    if report.make_fixes is None or report.notebook is not None or getattr(report.make_fixes, "made", None) is not None:
        return False
    return has_likely_fix(report.evidence, finding)


def _diff_of(finding: Finding) -> str:
    return f"%grape diff shows a rewrite for {_named(finding)}"


def _named(finding: Finding) -> str:
    return f"{finding.code} at {source_at(finding)}"


def _take(finding: Finding, fix: Fix, notebook: str | None) -> str:
    what = f"{source_at(finding)} rewritten" if notebook else f"rewrites {source_at(finding)}"
    why = f"({finding.code} {finding.name})"
    if notebook is None:
        return f"%grape apply {fix.id} {what} {why}"
    unverified = "" if fix.verified else " --unverified"
    script = notebook.removesuffix(NO_FILE).rstrip()  # behind its name an option would be the script's own
    first = f"run it again as grape run --json FILE {script}, then " if notebook.endswith(NO_FILE) else ""
    return f"{first}grape apply {notebook}{unverified} writes a copy with {what} {why}"


def _next_run(report: ReportData, main: RegionReport) -> str | None:
    """The line about what another run of the cell brings to a region that was only observed."""
    last = last_decision(report.evidence, main)
    if last and last.action == "drop":
        return None
    known = evidence_of(report.evidence, main)
    if known and any(shape.captured for shape in known.shapes):
        what = "the graphs captured now are replayed then"
    else:
        what = "what was observed now is captured then"
    first = "put %%grape on top of the cell and run it twice" if report.notebook else "run the cell again"
    return f"{first}: {what}"
