"""The rules, one file per code of `model/codes.py`: `gr1xx/gr101.py`, and so on. Each is found by its code."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Protocol, cast

from ...model import CODES, CellEvidence, Finding
from ...model.times.machine import MachineCosts
from ..static.context import InSource

__all__ = ["IN_SOURCE", "RULES", "Rule"]


class Rule(Protocol):
    """The interface of a rule's module. `check` is pure: equal evidence gives equal findings.

    A module may have `in_source` as well (`InSource`): what it sees in source alone.
    """

    @property
    def CODE(self) -> str: ...

    def check(self, evidence: CellEvidence, costs: MachineCosts = ...) -> Iterable[Finding]: ...


def _rule(code: str) -> Rule:
    module: object = import_module(f".{code[:3].lower()}xx.{code.lower()}", __name__)
    return cast("Rule", module)


RULES: tuple[Rule, ...] = tuple(map(_rule, CODES))
IN_SOURCE: tuple[InSource, ...] = tuple(rule.in_source for rule in RULES if hasattr(rule, "in_source"))
