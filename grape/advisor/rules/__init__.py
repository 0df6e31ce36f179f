"""The rules, one file per code. A rule is known because it stands in this tuple."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ...model import CellEvidence, Finding
from ..cost import MachineCosts
from . import (
    gr101,
    gr102,
    gr103,
    gr201,
    gr202,
    gr301,
    gr302,
    gr401,
    gr402,
    gr403,
    gr404,
    gr405,
    gr406,
    gr501,
)

__all__ = ["RULES", "Rule"]


class Rule(Protocol):
    """The interface of a rule's module. `check` is pure: equal evidence gives equal findings."""

    @property
    def CODE(self) -> str: ...

    def check(self, evidence: CellEvidence, costs: MachineCosts = ...) -> Iterable[Finding]: ...


RULES: tuple[Rule, ...] = (
    gr101,
    gr102,
    gr103,
    gr201,
    gr202,
    gr301,
    gr302,
    gr401,
    gr402,
    gr403,
    gr404,
    gr405,
    gr406,
    gr501,
)
