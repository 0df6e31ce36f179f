"""The table of constructs, `data/control_flow.txt`: bodies of `def f(x, y, cell, n):` before and after the rewrite.

`x` is one of `INPUTS`, `y` is `START`, `cell` holds tensors as attribute (`state`), in a dict (`table`) and as memory
(`memory`), `n` is 3. The inputs take every way of each construct.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import torch

__all__ = ["AFTER", "ASSERTIONS", "CONSTRUCTS", "INPUTS", "START", "arguments", "bits", "left_in", "source_of"]

INPUTS = (
    [1.0, -2.0, 3.0],
    [-1.0, -2.0, -0.0],
    [float("nan"), 9.0, 4.0],
    [0.0, 0.0, 0.0],
    [2.0, 1.0, 0.25],
    [-3.0, 5.0, 0.5],
    [4.0, 4.0, -1.0],
    [-0.25, -0.25, -0.25],
)
START = [0.5, -0.0, 2.0]

_ROW = re.compile(r"^=== (\w+): (.+)\n((?:.*\n)+?)--- after\n((?:(?!===).*\n?)+)", re.MULTILINE)
_ROWS = _ROW.findall((Path(__file__).parent / "data" / "control_flow.txt").read_text())

CONSTRUCTS: dict[str, str] = {name: before.rstrip() for kind, name, before, _ in _ROWS if kind == "construct"}
ASSERTIONS: dict[str, str] = {name: before.rstrip() for kind, name, before, _ in _ROWS if kind == "assertion"}
AFTER: dict[str, str] = {name: after.rstrip() for _, name, _, after in _ROWS}


class Cell:
    """State that a body may change."""

    def __init__(self) -> None:
        self.state = torch.zeros(3)
        self.table = {"k": torch.ones(3)}
        self.memory = torch.zeros(3)


def source_of(body: str) -> str:
    return "def f(x, y, cell, n):\n" + textwrap.indent(body, "    ") + "\n"


def arguments(values: list[float]) -> tuple[Any, ...]:
    """Fresh arguments of `f`."""
    return torch.tensor(values), torch.tensor(START), Cell(), 3


def left_in(given: tuple[Any, ...]) -> Any:
    """The bits of what `f` may have changed."""
    x, y, cell, _ = given
    return bits((x, y, cell.state, cell.table["k"], cell.memory))


def bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.flatten().view(torch.uint8).tolist()
    return tuple(map(bits, value)) if isinstance(value, tuple) else (type(value).__name__, value)
