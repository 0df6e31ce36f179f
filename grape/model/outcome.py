"""Refusal is a value: what became of a capture, or of one decision of the policy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from .location import Position
from .reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Refused:
    """A region stays eager, and why. `details` fill the fields of the reason's sentence; `evidence` holds plain values
    for the report. Made by `because`.
    """

    reason: Reason
    at: Position | None = None
    details: tuple[tuple[str, str], ...] = ()
    evidence: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def because(
        cls,
        reason: Reason,
        at: Position | None = None,
        *,
        evidence: tuple[tuple[str, Any], ...] = (),
        **details: object,
    ) -> Refused:
        """Raises KeyError where a field of the sentence is not given; what it has no field for is kept as well."""
        texts = tuple((name, str(value)) for name, value in details.items())
        reason.sentence.format(**dict(texts))
        return cls(reason=reason, at=at, details=texts, evidence=evidence)

    def __repr__(self) -> str:
        return f"Refused({self.code} {self.reason.name} at {self.at}: {self.why})"

    @property
    def code(self) -> str:
        return self.reason.code

    @property
    def why(self) -> str:
        """The sentence, for a person."""
        return self.reason.sentence.format(**dict(self.details))

    @property
    def recording(self) -> bool:
        """True where only calls that record gradients are refused."""
        return self.reason is Reason.NEEDS_GRADIENTS

    def detail(self, name: str) -> str:
        """The text of a field; empty where it has none of that name."""
        return dict(self.details).get(name, "")


class Later(Enum):
    """Why a call was not captured although a later one may be."""

    WRITES = "it writes memory that was not snapshotted"
    FORMS = "its results have to be computed without `out=` forms"
    UNSETTLED = "its kernels do not give the same bits twice"
    UNSTEADY = "it changes the state that it trains"
    MOVED = "names of a loop have to be copied"
    OVERLAP = "its operators have to be captured one behind the other"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLater:
    """A later call may be captured. `refused`: what the region is refused for once that was tried often enough;
    `names`: of the memory that it writes.
    """

    later: Later
    refused: Refused
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoMemory:
    """There was no memory for a capture. `refused`: what the region is refused for, where it was the second time."""

    refused: Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoom:
    """No executable could be had for the graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision of the capture policy, kept for the report.

    `action` is "capture", "wait" or "drop"; times are milliseconds; `why` is one sentence.
    """

    action: str
    shapes: str
    seen: int
    expected_calls: float
    saving_ms: float
    capture_ms: float
    why: str
