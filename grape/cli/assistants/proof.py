"""Proves that a rewritten program computes the same bits, and how much faster: both run, in processes of their own."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import UsageError
from ...render.units import plural, ratio, waited_pair
from .digests import RANDOM
from .plain_run import Spec, Told
from .processes import ran

_MODULE = "grape.cli.assistants.plain_run"
_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A script (`source`), or the code cells of a notebook with their numbers, below the magic. `changed` are the
    numbers of the cells that a rewrite changes. The same program in two versions has the same `path` and `words`.
    """

    path: Path
    words: tuple[str, ...] = ()
    source: bytes | None = None
    cells: tuple[tuple[int, str], ...] = ()
    changed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """`same` is None where too little could be compared. Times are seconds of plain runs, without Grape."""

    same: bool | None
    why: str
    compared: int
    differences: tuple[str, ...]
    left_out: Mapping[str, str]
    before_s: tuple[float, ...] = ()
    after_s: tuple[float, ...] = ()

    @property
    def faster(self) -> float | None:
        """Before over after; None where the runs' times overlap, or there are none."""
        if not self.before_s or not self.after_s:
            return None
        apart = max(self.after_s) < min(self.before_s) or max(self.before_s) < min(self.after_s)
        after = statistics.median(self.after_s)
        return statistics.median(self.before_s) / after if apart and after else None

    @property
    def verdict(self) -> str:
        if self.same is False:
            return f"not the same: {self.differences[0]}"
        kept = "same bits" if self.same else "not known whether it is the same"
        return f"{kept} ({self.why}); {self._times()}"

    def _times(self) -> str:
        if not self.before_s or not self.after_s:
            return "not timed"
        medians = [1e3 * statistics.median(times) for times in (self.before_s, self.after_s)]
        runs = f"{waited_pair(*medians)}, plain runs, {len(self.before_s)} each"
        if self.faster is None:
            return f"no clear change of time ({runs})"
        by = ratio(self.faster if self.faster >= 1 else 1 / self.faster)
        return f"{by} {'faster' if self.faster >= 1 else 'slower'} ({runs})"

    def to_dict(self) -> dict[str, object]:
        return {
            "verdict": self.verdict,
            "same": self.same,
            "compared": self.compared,
            "differences": list(self.differences[:_SHOWN]),
            "left_out": dict(list(self.left_out.items())[:_SHOWN]),
            "before_s": list(self.before_s),
            "after_s": list(self.after_s),
            "faster": self.faster,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    out: str
    seconds: float
    code: int
    error: str | None
    digests: Mapping[str, str] = field(default_factory=dict)
    not_compared: Mapping[str, str] = field(default_factory=dict)


def prove(before: Program, after: Program, *, folder: Path, repeats: int, timeout_s: float) -> Proof:
    """The original runs twice: what it does not repeat by itself is not compared. Then the rewritten one; then both are
    timed in turn. Raises `TimeIsUp`, and `UsageError` where the original does not run to its end.
    """
    one, again = (_run(before, folder, timeout_s, watch=True) for _ in range(2))
    if one.error is not None:
        raise UsageError(f"the program itself raised {one.error}; there is nothing to compare")
    other = _run(after, folder, timeout_s, watch=True)
    proof = _compared(one, again, other)
    if proof.same is False:
        return proof
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for program, seconds in zip((before, after), times, strict=True):
            seconds.append(_run(program, folder, timeout_s, watch=False).seconds)
    return Proof(
        same=proof.same,
        why=proof.why,
        compared=proof.compared,
        differences=(),
        left_out=proof.left_out,
        before_s=tuple(times[0]),
        after_s=tuple(times[1]),
    )


def _compared(one: _Ran, again: _Ran, other: _Ran) -> Proof:
    left_out = {name: f"a {kind} has no comparison" for name, kind in one.not_compared.items()}
    left_out |= {
        name: "the original does not repeat it" for name, seen in one.digests.items() if again.digests.get(name) != seen
    }
    differences = []
    if other.error is not None:
        differences.append(f"it raised {other.error}")
    elif other.code != one.code:
        differences.append(f"exit code {other.code}, before {one.code}")
    names = [name for name in one.digests if name not in left_out]
    for name in names:
        if name not in other.digests:
            why = other.not_compared.get(name)
            differences.append(f"`{name}` is {'missing' if why is None else f'a {why} now'}")
        elif other.digests[name] != one.digests[name]:
            differences.append(f"`{name}` is another")
    if one.out != again.out:
        left_out["standard output"] = "the original does not repeat it"
    elif one.out != other.out:
        differences.append("it printed something else")
    states = [name for name in names if name.startswith(RANDOM)]
    values = [name for name in names if name not in states]
    printed = bool(one.out) and "standard output" not in left_out
    same = False if differences else True if values or printed else None
    parts = [plural(len(values), "value"), "standard output" if printed else "", "random states" if states else ""]
    return Proof(
        same=same,
        why=", ".join(filter(None, parts)) + " compared",
        compared=len(values) + printed,
        differences=tuple(differences),
        left_out=left_out,
    )


def _run(program: Program, folder: Path, timeout_s: float, *, watch: bool) -> _Ran:
    with tempfile.TemporaryDirectory(prefix="grape-proof-") as place:
        out, source, spec = (Path(place) / name for name in ("told.json", "source.py", "spec.json"))
        if program.source is not None:
            source.write_bytes(program.source)
        content: Spec = {
            "kind": "script" if program.source is not None else "notebook",
            "path": str(program.path),
            "words": list(program.words),
            "source": str(source),
            "cells": list(program.cells),
            "changed": list(program.changed),
            "watch": watch,
            "out": str(out),
        }
        spec.write_text(json.dumps(content), encoding="utf-8")
        done = ran(["-m", _MODULE, str(spec)], folder=folder, timeout_s=timeout_s)
        if not out.exists():
            last = _last_line(done.err.splitlines())
            raise UsageError(f"the program ended by itself, with exit code {done.code}, and left no result{last}")
        told: Told = json.loads(out.read_text(encoding="utf-8"))
    return _Ran(out=done.out, **told)


def _last_line(lines: Sequence[str]) -> str:
    shown = [line for line in lines if line.strip()]
    return f": {shown[-1].strip()}" if shown else ""
