"""Source alone, to findings: what `grape advise` says."""

from __future__ import annotations

from collections.abc import Sequence

from ..model import CODES, Finding, Position
from .rules import IN_SOURCE
from .static.sources import Placed, find_in_sources

_FIRST = ("GR101", "GR102", "GR103", "GR302", "GR401", "GR405", "GR404", "GR202", "GR403")
_ORDER = (*_FIRST, *(code for code in CODES if code not in _FIRST))
"""The order of the codes: what makes the CPU wait at each iteration comes first."""


def advise_sources(sources: Sequence[tuple[str, str]]) -> tuple[Finding, ...]:
    """Findings about (name, source) pairs that share one namespace, as the cells of a notebook do.

    Nothing is run, so that nothing has a cost: every finding is a hint. Code without tensors has none.
    """
    placed = find_in_sources(tuple(sources), IN_SOURCE)
    names = [name for name, _ in sources]
    ordered = sorted(placed, key=lambda one: (_ORDER.index(one.finding.code), names.index(one.file), one.finding.line))
    return tuple(map(_finding, ordered))


def _finding(placed: Placed) -> Finding:
    found = placed.finding
    return Finding(
        code=found.code,
        severity="hint",
        message=found.message,
        at=Position(file=placed.file, line=found.line, function=found.function),
        end_line=found.end_line,
        evidence=(("seen_in", "source"), ("subject", found.subject)),
        advice=found.advice,
    )
