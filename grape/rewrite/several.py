"""Several fixes of one source, one after the other: each finds its line where the ones before it have moved it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ..model import Finding
from .registry import fix, moved
from .result import Declined

__all__ = ["Combined", "fix_all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """`source` with the `applied` fixes; `refused` are those that do not go together with the ones before them."""

    source: str
    applied: tuple[Finding, ...]
    refused: tuple[tuple[Finding, Declined], ...]


def fix_all(source: str, findings: Iterable[Finding], *, elsewhere: Collection[str] = ()) -> Combined:
    """Fix `findings`, all about this source, in their order; `elsewhere` as for `fix`."""
    current = source
    applied, refused = [], []
    for finding in findings:
        there = moved(finding, source, current)
        made = Declined(why="its line is gone") if there is None else fix(current, there, elsewhere=elsewhere)
        if isinstance(made, Declined):
            refused.append((finding, made))
        else:
            applied.append(finding)
            current = made.source
    return Combined(source=current, applied=tuple(applied), refused=tuple(refused))
