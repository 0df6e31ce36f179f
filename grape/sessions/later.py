"""The fixes of a report, which are made when somebody asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model import CellEvidence, Finding
from .engine import Engine
from .running import Cell

if TYPE_CHECKING:
    from ..fixing.later import FixesLater


def fixes_of(
    owner: Engine,
    cell: Cell,
    evidence: CellEvidence,
    findings: tuple[Finding, ...],
    namespace: dict[str, object] | None,
) -> FixesLater:
    """`namespace` is None for a script: its source is the whole file, which must not run again to compare a rewrite."""
    from ..fixing.later import FixesLater

    ran = cell.rewritten.applied if cell.rewritten is not None else ()
    return FixesLater(lambda: evidence, findings, namespace, ran=ran, busy=lambda: owner.session is not None)
