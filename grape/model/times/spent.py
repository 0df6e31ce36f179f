"""What the time of a cell was spent on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["python", "gpu", "waiting", "data", "grape", "unprofiled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    kind: Kind
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Parts that add up to `total_ms`, of `when`: the plain cell (before) or this run (after)."""

    when: Literal["before", "after"]
    total_ms: float
    parts: tuple[Part, ...]

    def to_dict(self) -> dict[str, object]:
        known = {part.kind: part.ms for part in self.parts}
        parts = {f"{kind}_ms": known.get(kind, 0.0) for kind in get_args(Kind)}
        return {"when": self.when, "total_ms": self.total_ms, **parts}
