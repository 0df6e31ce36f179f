"""The outcome of a rewrite: a new source, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """`source` is the whole new source of the cell or file, `diff` the unified diff that leads there."""

    source: str
    diff: str
    tolerance: float | None = None
    """As of `Compared`; None where the rewrite is right as far as its source shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A new source that may be offered only where both ran, and results differed by no more than `tolerance` of their
    largest value. Indices that they end with may have more of them behind.
    """

    text: str
    tolerance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Declined:
    """Why the source stays as it is. `line` counts from 1; None where the reason has no line of its own."""

    why: str
    line: int | None = None

    def __str__(self) -> str:
        return self.why if self.line is None else f"line {self.line}: {self.why}"
