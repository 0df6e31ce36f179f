"""``%grape diff``, ``apply`` and ``undo`` of source: rewrites of cells that the person reads, takes and gives back.

Nothing runs here and no file changes. A rewritten cell is handed to the front end, which puts it into the cell that it
is of, if a view of Grape's is open there; else in the place of the cell with the magic (as ``%load`` does) or on the
next prompt. It takes effect when the person runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import RewriteError, UsageError
from ...model.codes import REWRITTEN
from ...render.units import shown_diff
from ...rewrite import Declined, unified_diff
from ..open_views import place

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from ...model import Finding
    from ...render import Report
    from ...sessions.gains import TakenFixes

NO_FIX = "no fix: no finding of the last report has a rewrite of source"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The rewrites that were taken for one cell: from `old` to `new`, by the findings in their order."""

    file: str
    old: str
    new: str
    findings: tuple[Finding, ...]
    taken: tuple[TakenFixes, ...] = ()
    """Times of their regions in the reports that offered them."""
    replaces: str = ""
    """The source that the cell held when the last of them was taken."""

    def __str__(self) -> str:
        ids = ", ".join(str(finding.fix.id) for finding in self.findings if finding.fix is not None)
        return f"source of {self.file}: fix {ids}"


class AppliedRewrites:
    """Fixes that were taken and not given back, in the order in which it was taken."""

    def __init__(self) -> None:
        self._applied: list[Applied] = []

    def __len__(self) -> int:
        return len(self._applied)

    def clear(self) -> None:
        self._applied.clear()

    def last(self) -> Applied:
        """The rewritten cell that was handed over last. There must be one."""
        return self._applied[-1]

    def find(self, finding: Finding) -> tuple[int, Applied] | None:
        """The rewritten cell that holds the fix of `finding`, and its index; None where it is not applied."""
        return next(((i, item) for i, item in enumerate(self._applied) if finding in item.findings), None)

    def status(self, first: int) -> list[str]:
        """One line per rewritten cell, numbered from `first`."""
        return [f"{number:>3} {applied}" for number, applied in enumerate(self._applied, start=first)]

    def apply(self, report: Report, number: int | None, shell: InteractiveShell | None) -> str:
        """Hand over the cell with fix `number`, together with those that were taken for it before.

        Without a number all verified fixes of the measured cell are taken. Raises `UsageError` where there is no such
        fix and `RewriteError` where it does not go together with the others.
        """
        report = report.with_fixes()
        chosen = _chosen(report, number)
        file = _file(chosen[0])
        source = _source(report, file)
        before = next((item for item in self._applied if (item.file, item.old) == (file, source)), None)
        taken = before.findings if before is not None else ()
        known = {finding.fix for finding in taken}
        new = [finding for finding in chosen if finding.fix not in known]
        if not new:
            raise UsageError(f"fix {number} is applied already" if number else "every verified fix is applied already")
        from ...fixing.offers import elsewhere
        from ...rewrite.at_once import fix_all

        combined = fix_all(source, (*taken, *new), elsewhere=elsewhere(report.evidence, file))
        for finding, refused in combined.refused:
            if number is not None:
                why = f"fix {number} does not go together with what is applied to {file}: {refused}"
                raise RewriteError(f"{why}; run the rewritten cell under %%grape first")
            new = [item for item in new if item is not finding]
        earlier = before.taken if before is not None else ()
        applied = Applied(
            file=file,
            old=source,
            new=combined.source,
            findings=combined.applied,
            taken=_taken(report, combined.applied, combined.source, earlier),
            replaces=before.new if before is not None else source,
        )
        if before is not None:
            self._applied.remove(before)
        self._applied.append(applied)
        done = f"{_fixes(new)} of {file}"
        diff = shown_diff(unified_diff(source, applied.new, file))
        return f"{done}: {_hand_over(shell, applied.new, file, applied.replaces)}\n{diff}".rstrip()

    def taken(self) -> tuple[TakenFixes, ...]:
        """All that was taken, for the reports of cells that run from now on."""
        return tuple(taken for applied in self._applied for taken in applied.taken)

    def undo(self, index: int, shell: InteractiveShell | None) -> str:
        """Hand over the old source of the rewritten cell at `index`, counted from 0 as in `status`."""
        applied = self._applied.pop(index)
        return f"undone: {applied}: {_hand_over(shell, applied.old, applied.file, applied.new)}"

    def undo_all(self, shell: InteractiveShell | None) -> str:
        """The old source of the only rewritten cell is handed over; of several they are shown."""
        if len(self._applied) == 1:
            return self.undo(0, shell)
        shown = [f"undone: {item}; paste into {item.file}:\n{item.old}" for item in self._applied]
        self._applied.clear()
        return "\n\n".join(shown)


def _taken(
    report: Report, findings: Sequence[Finding], source: str, earlier: Sequence[TakenFixes]
) -> tuple[TakenFixes, ...]:
    """One for each region of `findings` that was measured, in `report` or before its first fix was taken."""
    from ...sessions.gains import TakenFixes, time_per_call

    known = {taken.region: taken.before_ms for taken in earlier}
    made = []
    for region in dict.fromkeys(finding.region for finding in findings):
        mine = [finding for finding in findings if finding.region == region]
        row = next((row for row in report.regions if row.name == region), None)
        before_ms = known.get(region or "", time_per_call(row) if row is not None else None)
        if region is None or before_ms is None:
            continue
        predicted = [one.predicted_ms_per_call for one in mine if one.predicted_ms_per_call is not None]
        codes = ", ".join(dict.fromkeys(one.code for one in mine))
        made.append(
            TakenFixes(
                fixes=f"{_fixes(mine)} ({codes})",
                source=source,
                region=region,
                before_ms=before_ms,
                predicted_ms=sum(predicted) if predicted else None,
            )
        )
    return tuple(made)


def diff_text(report: Report, number: int | None) -> str:
    """The difference that fix `number` makes, or all of them and why other findings have none. Raises `UsageError`."""
    report = report.with_fixes()
    if number is not None:
        return _one_diff(_chosen(report, number)[0])
    shown = [_one_diff(finding) for finding in _fixable(report)]
    without = [finding for finding in report.findings if finding.fix is None]
    reasons = dict.fromkeys(reason for finding in without if (reason := why_no_fix(report, finding)))
    if not shown and not reasons:
        return NO_FIX
    return "\n\n".join([*shown, *(["\n".join(reasons)] if reasons else [])])


def _one_diff(finding: Finding) -> str:
    assert finding.fix is not None
    why = f": {finding.fix.why}" if finding.fix.why else ""
    seen = "outputs identical when both ran on copies" if finding.fix.verified else f"not checked{why}"
    head = f"fix {finding.fix.id}: {finding.code} {finding.name}, {finding.at} ({seen})"
    return f"{head}\n{shown_diff(finding.fix.diff)}".rstrip()


def why_no_fix(report: Report, finding: Finding) -> str | None:
    """Why a finding without a fix has none; None where nobody would expect one."""
    from ...fixing.offers import NOT_OFFERED, find_fix

    if finding.code not in REWRITTEN:
        return None
    refused = find_fix(report.evidence, finding)
    why = str(dict(finding.evidence).get(NOT_OFFERED, "the rewrite computed something else when both ran"))
    if isinstance(refused, Declined):
        here = finding.at is not None and refused.line == finding.at.line
        why = refused.why if here else str(refused)
    return f"no automatic fix for {finding.code} {finding.name}, {finding.at}: {why}"


def _fixable(report: Report) -> list[Finding]:
    """The findings with a fix, one for each number."""
    numbered = {finding.fix.id: finding for finding in reversed(report.findings) if finding.fix is not None}
    return [numbered[number] for number in sorted(numbered)]


def _chosen(report: Report, number: int | None) -> list[Finding]:
    fixes = _fixable(report)
    if number is None:
        cell = report.evidence.file
        verified = [f for f in fixes if f.fix is not None and f.fix.verified and f.at is not None and f.at.file == cell]
        if not verified:
            if not fixes:
                raise UsageError("the last report has no fix; see %grape diff")
            raise UsageError("no fix of the last report is verified; choose one: %grape diff, then %grape apply N")
        return verified
    for finding in fixes:
        if finding.fix is not None and finding.fix.id == number:
            return [finding]
    known = f"1 to {len(fixes)}" if len(fixes) > 1 else "only 1" if fixes else "there is none"
    raise UsageError(f"no fix {number} in the last report ({known}); see %grape diff")


def _file(finding: Finding) -> str:
    assert finding.at is not None
    return finding.at.file


def _source(report: Report, file: str) -> str:
    from ...rewrite.likely import source_of

    source = source_of(report.evidence, file)
    if source is None:
        raise RewriteError(f"the source of {file} is not known as it was typed; run that cell under %%grape")
    return source


def _fixes(findings: Sequence[Finding]) -> str:
    ids = [str(finding.fix.id) for finding in findings if finding.fix is not None]
    return f"fix{'es' if len(ids) > 1 else ''} {', '.join(ids)}"


def _hand_over(shell: InteractiveShell | None, source: str, file: str, replaces: str) -> str:
    """Put `source` where the person can run it, and say where that is: best into its cell, which held `replaces`."""
    if not file.startswith("In["):
        return "no file is changed; the difference is below" if shell is not None else "the difference is below"
    if shell is not None and hasattr(shell, "kernel"):
        if place(source, replaces, file):
            return f"{file} holds the source now, if it was as it ran: run it there"
        shell.set_next_input(source.rstrip("\n"), replace=True)
        return f"this cell holds the source now; run it in the place of {file}"
    if shell is not None and getattr(shell, "pt_app", None) is not None:
        shell.set_next_input(source.rstrip("\n"))
        return f"the next prompt holds the source; run it in the place of {file}"
    return f"paste this in the place of {file}:\n{source.rstrip()}\n"


rewrites = AppliedRewrites()
"""The rewrites of source that were taken in this process; ``%grape reset`` and unloading forget them."""
