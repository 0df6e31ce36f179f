"""The fixes of a report, made when somebody first asks for them: parsing, rewriting and comparing take their time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ..model import CellEvidence, Finding
from ..quiet import without_warnings

A_SCRIPT = "it is part of a script"
A_CELL_RUNS = "a cell runs under Grape"


class FixesLater:
    """Calling it gives the findings with their fixes; see `with_fixes`. They are made once, when no cell runs."""

    def __init__(
        self,
        evidence: Callable[[], CellEvidence],
        findings: tuple[Finding, ...],
        namespace: Mapping[str, object] | None,
        *,
        ran: Collection[Finding] = (),
        busy: Callable[[], bool] = bool,
    ) -> None:
        """The cell may run again on copies of `namespace`, but not while `busy`; nowhere without one."""
        self._evidence = evidence
        self._findings = findings
        self._namespace = namespace
        self._ran = tuple(ran)
        self._busy = busy
        self._made: tuple[Finding, ...] | None = None

    def __call__(self) -> tuple[Finding, ...]:
        if self._made is not None:
            return self._made
        if self._namespace is not None and self._busy():
            return self._make(None, A_CELL_RUNS)
        self._made, self._namespace = self._make(self._namespace, A_SCRIPT), None
        return self._made

    @property
    def made(self) -> tuple[Finding, ...] | None:
        """The result of calling it; None where nobody has."""
        return self._made

    def _make(self, namespace: Mapping[str, object] | None, may_not: str) -> tuple[Finding, ...]:
        from .offers import with_fixes

        with without_warnings():
            return with_fixes(self._evidence(), self._findings, namespace, ran=self._ran, may_not=may_not)

    def __reduce__(self) -> tuple[object, ...]:
        """A report may be pickled and copied; the person's objects do not go with it."""
        return _again, (self._evidence(), self._findings, self._ran, self._made)


def _again(
    evidence: CellEvidence, findings: tuple[Finding, ...], ran: tuple[Finding, ...], made: tuple[Finding, ...] | None
) -> FixesLater:
    later = FixesLater(lambda: evidence, findings, None, ran=ran)
    later._made = made
    return later
