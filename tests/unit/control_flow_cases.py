"""Bodies of `def f(x, y, cell, n):`, each with one construct of docs/control-flow.md, and inputs that take every way.

`x` is one of `INPUTS`, `y` is `START`, `cell` holds tensors as attribute (`state`), in a dict (`table`) and as memory
(`memory`), `n` is 3.
"""

from __future__ import annotations

import textwrap
from types import SimpleNamespace
from typing import Any

import torch

__all__ = ["ASSERTIONS", "CONSTRUCTS", "INPUTS", "START", "arguments", "bits", "left_in", "source_of"]

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

CONSTRUCTS = {
    # if, elif, else
    "if": "if x.sum() > 0:\n    y = x + 1\nreturn y",
    "if-else": "if x.sum() > 0:\n    y = x + 1\nelse:\n    y = y * -0.0\nreturn y",
    "elif": "if x[0] > 0:\n    y = x\nelif x[1] < -1:\n    y = y - x\nelse:\n    pass\nreturn y + 0",
    "elif without else": "if x[0] > 0:\n    y = x * 2\nelif x[1] > 0:\n    y = y - x\nreturn y + 0",
    "nested": "if x[0] > 0:\n    if x[1] > 0:\n        y = y + 1\n    else:\n        y = x\n    y = y - x\nreturn y",
    "one line": "if x[0] > 0: y = x + 1\nelse: y = x - 1\nreturn y",
    "truth of a tensor": "if x[2]:\n    y = y + 1\nreturn y",
    # expressions
    "ternary": "return x + 1 if x.amax() > 2 else y * 2",
    "nested ternary": "return x + 1 if x[0] > 0 else y * 2 if x[1] > 0 else y - x",
    "and": "if x[0] > 0 and x[1] > 0:\n    y = y + 1\nreturn y",
    "or": "if x[0] > 0 or x[1] > 0:\n    y = y + 1\nreturn y",
    "or-not": "if x[0] > 0 or not x[2]:\n    y = y + 1\nreturn y",
    "and-or-not": "if (x[0] > 0 and not x[1] > 0) or x[2] > 3:\n    y = y + 1\nreturn y",
    "and with a number": "if n > 2 and x[0] > 0:\n    y = y + n\nreturn y",
    "short circuit": "if x.sum() > 0 and x.log().sum() > 0:\n    y = y + 1\nreturn y",
    "chained comparison": "t = x.sum()\nif 0 < t < 3:\n    y = y + 1\nreturn y",
    "value of and": "z = x[0] > 0 and x[1] > 0\nreturn y + 1 if z else y",
    # what branches assign
    "flag": "found = False\nif x[0] > 0:\n    found = True\nif not found:\n    y = y - 1\nreturn y",
    "augmented": "y = y.clone()\nif x[0] > 0:\n    y += x\n    y[1] *= 3\nreturn y",
    "augmented attribute": "cell.state = cell.state * 1\nif x[0] > 0:\n    cell.state += x\nreturn cell.state * 1",
    "tuple": "a, b = x, y\nif x[0] > 0:\n    a, b = b, a\nreturn a + 0, b * 1",
    "starred tuple": "a, (b, c) = x, (y, x * 2)\nif x[0] > 0:\n    a, (b, c) = c, (a, b)\nreturn a + 0, b * 1, c - 1",
    "chained assignment": "a = b = y\nif x[0] > 0:\n    a = b = x * 2\nreturn a + b",
    "annotated": "z: torch.Tensor = y\nif x[0] > 0:\n    z: torch.Tensor = x * 2\nreturn z + 1",
    "bound in one branch": "if x[0] > 0:\n    t = x * 2\n    y = y + t\nreturn y",
    "bound in both branches": "if x[0] > 0:\n    t = x * 2\nelse:\n    t = y\nreturn y + t",
    "attribute": "if x[0] > 0:\n    cell.state = cell.state + x\nreturn cell.state",
    "item": "if x[0] > 0:\n    cell.table['k'] = x * 2\nelse:\n    cell.memory[1] = 5\nreturn y",
    "slice of memory": "if x[0] > 0:\n    cell.memory[1:] = x[:2]\nreturn cell.memory + y",
    "out=": "if x[0] > 0:\n    torch.add(x, y, out=cell.memory)\nreturn y * 1",
    "in place": "if x[0] > 0:\n    cell.memory.mul_(0).add_(x)\nreturn y * 1",
    # return
    "early return": "if x[0] > 0:\n    return x * 2\ny = y + 1\nreturn y",
    "early return twice": "if x[0] > 0:\n    if x[1] > 0:\n        return x * 2\n    y = y - 4\ny = y + 1\nreturn y",
    "return from both": "if x[0] > 0:\n    return x * 2\nelse:\n    return y - 1",
    "return of tuples": "if x[0] > 0:\n    return x * 2, y + 0\nreturn y - 1, x * 1",
    # for
    "break": "for i in range(4):\n    y = y + x\n    if y.sum() > 3:\n        break\n    y = y * 2\nreturn y",
    "break, counter unused": "for _ in range(4):\n    y = y + x\n    if y.sum() > 3:\n        break\n    y = y * 2\nreturn y",
    "continue": "for i in range(3):\n    if x[i] > 0:\n        continue\n    y = y + i\nreturn y",
    "break and continue": (
        "for i in range(3):\n    if x[i] > 3:\n        break\n    if x[i] > 0:\n        continue\n    y = y + i\nreturn y"
    ),
    "for-else": "for i in range(3):\n    if x[i] > 2:\n        break\nelse:\n    y = y - 1\nreturn y",
    "for-else, counter unused": (
        "for _ in range(3):\n    y = y + x\n    if y[0] > 2:\n        break\nelse:\n    y = y - 1\nreturn y"
    ),
    "for over a list": "for k in [2, 1]:\n    y = y * k\n    if y.sum() > x.sum():\n        break\nreturn y",
    "for over zip": "for a, k in zip(x, [1, 2, 3]):\n    y = y + a * k\n    if y.sum() > 3:\n        break\nreturn y",
    "for over enumerate": "for i, a in enumerate(x):\n    y = y + a * i\n    if y[0] > 1:\n        break\nreturn y",
    "for over reversed": "for k in reversed([1, 2]):\n    y = y + k\n    if y.sum() > x.sum():\n        break\nreturn y",
    "for over a tensor": "for row in x:\n    if row > 2:\n        break\n    y = y + row\nreturn y",
    "return from a loop": "for i in range(3):\n    if x[i] > 2:\n        return y * i\n    y = y + 1\nreturn y",
    "return, counter unused": "for _ in range(3):\n    y = y + x\n    if y[1] > 2:\n        return y * 2\nreturn y - 1",
    "nested loops": (
        "for i in range(2):\n    for j in range(2):\n        if x[i + j] > 2:\n            break\n        y = y + j\n"
        "    if y[0] > 3:\n        break\nreturn y"
    ),
    "return from nested loops": (
        "for i in range(2):\n    for j in range(2):\n        if x[i + j] > 3:\n            return y - 1\n        y = y + j\n"
        "return y"
    ),
    # while
    "while": "k = 0\nwhile y.sum() < 4 and k < 5:\n    y = y + 1\n    k = k + 1\nreturn y",
    "while tensor": "left = x.abs().amax().nan_to_num(0).long()\nwhile left:\n    y = y + x\n    left = left - 1\nreturn y",
    "while with break": (
        "k = 0\nwhile k < 4:\n    k = k + 1\n    y = y + x\n    if y[0] > 2:\n        break\n"
        "else:\n    y = y * 2\nreturn y"
    ),
    "while with continue": (
        "t = x[0].nan_to_num(0)\nwhile t < 3:\n    t = t + 1\n    if t > 1:\n        continue\n    y = y + t\nreturn y"
    ),
    "while-else": (
        "t = x[0].nan_to_num(0)\nwhile t < 3:\n    t = t + 1\n    if x[1] > 4:\n        break\nelse:\n    y = y * 2\n"
        "return y + t"
    ),
    "while True": (
        "t = x[0].nan_to_num(0)\nwhile True:\n    t = t + 1\n    if t > 2:\n        break\n    y = y * 2\nreturn y + t"
    ),
    "return from a while": (
        "t = x[0].nan_to_num(0)\nwhile t < 3:\n    t = t + 1\n    if x[1] > 4:\n        return y - t\nreturn y + t"
    ),
    "while in a while": (
        "t = x[0].nan_to_num(0)\nwhile t < 3:\n    s = t * 1\n    while s < 2:\n        s = s + 1\n        y = y + s\n"
        "    t = t + 1\nreturn y"
    ),
    "while with an attribute": (
        "cell.state = x[:1].nan_to_num(0)\nwhile cell.state.sum() < 2:\n    cell.state = cell.state + 1\nreturn cell.state"
    ),
    # around
    "in a with block": "with torch.no_grad():\n    if x[0] > 0:\n        return x * 3\n    y = y + 1\nreturn y",
    "in a comprehension": "return tuple([a + 1 if a > 0 else a * 2 for a in x])",
    "in a nested function": "def g(v):\n    if v[0] > 0:\n        return v * 2\n    return v - 1\nreturn g(x) + g(y)",
}
"""Some of the ways of each construct are taken for some of the inputs, and all of them for some."""

ASSERTIONS = {
    "assert": "assert x[0] < 3\nreturn y + x",
    "assert with a message": "assert x[0] < 3, 'too large'\nreturn y + x",
    "assert with a computed message": "assert x[0] < 3, f'{x[0].item()} is too large'\nreturn y + x",
    "assert before an index": (
        "index = x.long().clamp(min=0)\nassert (index < 3).all(), 'outside'\nreturn y[index] + cell.memory[index]"
    ),
    "assert before a write": "assert x[0] < 3, 'too large'\ncell.memory.add_(x)\nx[0] = 7\nreturn y * 2",
    "assert behind a write": "cell.memory.add_(x)\nassert cell.memory[0] < 3, 'too large'\nreturn y * 2",
    "assert in a branch": "if x[1] > 0:\n    assert x[2] < 3, 'too large'\n    y = y + x\nreturn y * 2",
    "assert in a for": "for _ in range(3):\n    y = y + x\n    assert y[0] < 5, 'grew'\n    if y[1] > 2:\n        break\nreturn y",
    "assert in a while": (
        "t = x[0].nan_to_num(0)\nwhile t < 3:\n    t = t + 1\n    assert x[1] < 4, 'stuck'\n    y = y + t\nreturn y"
    ),
    "assert of and": "assert x[0] < 3 and not x[1] > 4\nreturn y + x",
    "assert of a number": "assert n < 5, 'many'\nif x[0] > 0:\n    y = y + 1\nreturn y",
}


def source_of(body: str) -> str:
    return "def f(x, y, cell, n):\n" + textwrap.indent(body, "    ") + "\n"


def arguments(values: list[float]) -> tuple[Any, ...]:
    """Fresh arguments of `f`."""
    cell = SimpleNamespace(state=torch.zeros(3), table={"k": torch.ones(3)}, memory=torch.zeros(3))
    return torch.tensor(values), torch.tensor(START), cell, 3


def left_in(given: tuple[Any, ...]) -> Any:
    """The bits of what `f` may have changed."""
    x, y, cell, _ = given
    return bits((x, y, cell.state, cell.table["k"], cell.memory))


def bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.flatten().view(torch.uint8).tolist()
    return tuple(map(bits, value)) if isinstance(value, tuple) else (type(value).__name__, value)
