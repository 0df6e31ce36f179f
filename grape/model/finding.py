"""Findings about a person's code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .codes import CODES, REWRITTEN, REWRITTEN_IN_LIBRARIES, Severity
from .location import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """A rewrite of the person's source. `diff` is a unified diff; `verified` says whether results were compared.

    `why` is why they were not; it is no part of the contract.
    """

    id: int
    diff: str
    verified: bool
    why: str = ""

    def to_dict(self) -> dict[str, object]:
        return {"id": self.id, "diff": self.diff, "verified": self.verified}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding. `predicted_ms_per_call` is what removing it should save, None where it was not measured."""

    code: str
    severity: Severity
    message: str
    at: Position | None
    end_line: int | None = None
    region: str | None = None
    evidence: tuple[tuple[str, Any], ...] = ()
    predicted_ms_per_call: float | None = None
    advice: str | None = None
    by_hand: bool = False
    """True where `advice` holds what is to be written, and no rewrite does it."""
    fix: Fix | None = None

    @property
    def name(self) -> str:
        return CODES[self.code]

    @property
    def from_source(self) -> bool:
        """True where the source alone says it, and nothing was measured."""
        return dict(self.evidence).get("seen_in") == "source"

    @property
    def fixable(self) -> bool:
        """True where a rewrite may exist. Making it takes time, and tells: until somebody asks, `fix` is None."""
        in_library = "in_library" in dict(self.evidence)
        codes = REWRITTEN_IN_LIBRARIES if in_library else REWRITTEN
        return self.at is not None and self.code in codes and not self.by_hand

    def to_dict(self) -> dict[str, object]:
        return {
            "code": self.code,
            "name": self.name,
            "severity": self.severity,
            "file": self.at.file if self.at else None,
            "line": self.at.line if self.at else None,
            "end_line": self.end_line if self.end_line is not None else (self.at.line if self.at else None),
            "message": self.message,
            "evidence": dict(self.evidence),
            "predicted_ms_per_call": self.predicted_ms_per_call,
            "fixable": self.fixable,
            "fix": self.fix.to_dict() if self.fix else None,
        }
