"""Refusal is a value: what became of a capture, or of one decision of the policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .location import Position

__all__ = ["Decision", "Refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why a region stays eager. `code` is a finding code; `evidence` holds plain values for the report; `recording`:
    only calls that record gradients are refused."""

    code: str
    why: str
    at: Position | None = None
    evidence: tuple[Any, ...] = ()
    recording: bool = False


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
