"""Random loops whose names are bound again in branches, also to one another; and what can be told of that outside.

A loop is long enough for its iteration to become a region; the function around it reads a value at its end, so that
the loop alone can gain. Which names are one object, and who sees later writes, is part of a run's outcome.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from grape.options import Options
from grape.rewrite.control_flow import RewrittenFlow, rewrite_control_flow
from grape.sessions import Cell, Session

__all__ = ["NAMES", "loop_source", "namespace", "outcomes", "under_grape"]

NAMES = ("a", "b", "c")
_HEAD = """
import torch
table = torch.arange(4.0)

def decode(x, y, limit):
    a, b, c = x, y * 2, x + y
    n = torch.zeros(())
"""
_TAIL = """
    for value in (a, b, c, first, x, y):
        value.mul_(2).add_(1)
    names = (a, b, c, first, x, y, table)
    same = [one is other for one in names for other in names]
    return n.item(), [value.tolist() for value in names], same
"""
_BEFORE = (
    *("first = torch.zeros(4)",) * 6,
    *("first = a", "first = b", "first = b.view(-1)", "first = c[:2]", "first = [c][0].detach()"),
)
_FRESH = (
    *("a = a * 0.5 + n", "b = torch.tanh(b) + 1", "c = a + b * 0.25", "a = c.clone()", "b = b - a * 0.125"),
    *("c, b = torch.stack((b, c)).unbind(0)",),
)
_MOVING = ("a = b", "b = c", "c = a", "a, b = b, a", "a, b = b, a + b * 0.1", "c = c.view(-1)", "a = table", "c = a[:]")
_WRITING = ("a += 0.25", "b.mul_(0.5)", "c[1] = n")


def _conditions(pick: random.Random) -> str:
    return pick.choice(("a.sum() > b.sum()", "n % 3 < 1", "n > 9", "c[0] > 0", "n % 2 > 0", "(b > a).any()"))


def loop_source(seed: int) -> str:
    """One program, from a seed."""
    pick = random.Random(seed)
    lines = ["    a = a.clone()"] if pick.random() < 0.7 else []
    lines += [f"    {pick.choice(_BEFORE)}", "    for _ in range(24):", "        n = n + 1"]
    for _ in range(pick.randint(1, 4)):
        kind = pick.random()
        said = pick.choice(_FRESH if kind < 0.65 else _MOVING if kind < 0.85 else _WRITING)
        if pick.random() < 0.6:
            lines += [f"        if {_conditions(pick)}:", f"            {said}"]
            if pick.random() < 0.3:
                lines += ["        else:", f"            {pick.choice((*_FRESH, *_MOVING))}"]
        else:
            lines.append(f"        {said}")
    lines += ["        if n > limit:", "            break"]
    return _HEAD + "\n".join(lines) + _TAIL


def namespace(path: Path, source: str) -> dict[str, Any]:
    path.write_text(source)
    made: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, str(path), "exec"), made)
    return made


def outcomes(names: dict[str, Any], calls: int = 8) -> list[Any]:
    """What each call returns and tells of its names; loops end early, late and not at all."""
    found = []
    for seed in range(calls):
        generator = torch.Generator().manual_seed(seed)
        x, y = (torch.randn(4, generator=generator) for _ in range(2))
        number, values, same = names["decode"](x, y, (30.0, 12.0, 17.0)[seed % 3])
        found.append((number, repr(values), same))
    return found


def under_grape(source: str, folder: Path, sessions: int = 2, calls: int = 8) -> tuple[Any, Any, dict[str, Any]]:
    """The outcomes of plain Python and of the rewritten source under Grape, and the region of the loop."""
    made = rewrite_control_flow(source, filename="plain.py")
    assert isinstance(made, RewrittenFlow), source
    plain, mine = namespace(folder / "plain.py", source), namespace(folder / "mine.py", made.source)
    expected, found = [], []
    region: dict[str, Any] = {}
    with torch.no_grad():
        for _ in range(sessions):
            expected += outcomes(plain, calls)
            session = Session(options=Options(), cell=Cell(name="c", source="", filename="c"), namespace=mine)
            session.open()
            found += outcomes(mine, calls)
            session.close(None)
            assert session.report is not None
            regions = {one["name"]: one for one in session.report.to_dict()["regions"]}
            region = regions.get("loop of decode", region)
    return expected, found, region
