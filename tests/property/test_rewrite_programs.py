"""Random cells: whatever a fix offers computes what the cell computed, down to the bits; else it is refused."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grape.rewrite import Declined, names_in_functions
from grape.rewrite.at_once import fix_all
from grape.rewrite.registry import fix
from tests.unit.rewrite_cases import finding, outcome

SETUP = """
xs = [torch.randn(2, 3) for _ in range(4)]
y = torch.randn(2, 3)
a, b, history = [], [0.5], {"u": [], "v": []}
t, n, out = 0.0, 0, torch.zeros(0, 3)
limit = 3
def f(x): return torch.tanh(x) * 2
def peek(): return len(a), t
"""
# `peek` stands in another cell, `limit` is bound in another cell.
PEEKED = names_in_functions(SETUP)
# Each line with the code that a finding on it would have; "" for a line without one.
LINES = [
    ("a.append(f(x).sum().item())", "GR101"),
    ("a.append(float(y.sum()))", "GR101"),
    ("history['u'].append(x.mean().item())", "GR101"),
    ("t += f(x).sum().item() * x.size(0)", "GR101"),
    ("t += y.mean().item()", "GR101"),
    ("n = n + int(x[0, 0] > 0)", "GR101"),
    ("a.extend([v.item() for v in x[0]])", "GR101"),
    ("x[x < 0] = 0.5", "GR103"),
    ("y[y > x] = 1", "GR103"),
    ("out = torch.cat([out, f(x)], dim=0)", "GR202"),
    ("out = torch.cat([out, y])", "GR202"),
    ("x = x * torch.tensor(0.25, device='cpu')", "GR401"),
    ("z = torch.tensor([1.0, 2.0, 3.0])", "GR401"),
    ("y = torch.maximum(y, torch.tensor(limit))", "GR401"),
    ("y += x", ""),
    ("x = f(x)", ""),
    ("y.mul_(0.5)", ""),
    ("b = a", ""),
    ("a = []", ""),
    ("t = 0", ""),
    ("print(len(a))", ""),
    ("print(t)", ""),
    ("n += len(out)", ""),
    ("print(*peek())", ""),
    ("y = y + z if n else y", ""),
    ("if n > 2: break", ""),
    ("if n > 1: continue", ""),
    ("history['v'].append(n)", ""),
    ("limit += 1", ""),
]
LINE = st.integers(0, len(LINES) - 1)


@st.composite
def cells(draw: st.DrawFn) -> tuple[str, list[tuple[int, str]]]:
    """A cell, and where its findings are: (line, code)."""
    rows: list[tuple[int, str, str]] = []

    def some(depth: int, most: int) -> None:
        for _ in range(draw(st.integers(0, most))):
            text, code = LINES[draw(LINE)]
            if depth or not text.endswith(("break", "continue")):
                rows.append((depth, text, code))

    rows.append((0, "a = []", ""))
    if draw(st.booleans()):
        rows.append((0, "history = {'u': [], 'v': []}", ""))
    some(0, 1)
    outer = draw(st.booleans())
    if outer:
        rows.append((0, "for epoch in range(2):", ""))
        if draw(st.booleans()):
            rows.append((1, "a = []", ""))
    rows.append((int(outer), "for x in xs:", ""))
    rows.append((outer + 1, "w = f(x)", ""))
    some(outer + 1, 3)
    if draw(st.booleans()):
        rows.append((outer + 1, "if x.shape[0] > n:", ""))
        rows.append((outer + 2, *LINES[draw(st.integers(0, 13))]))
    some(int(outer), 1)
    some(0, 2)
    source = "".join(f"{'    ' * depth}{text}\n" for depth, text, _ in rows)
    return source, [(number, code) for number, (_, _, code) in enumerate(rows, start=1) if code]


def _ran(source: str) -> tuple[dict[str, Any], str, str]:
    torch.manual_seed(0)
    space: dict[str, Any] = {"torch": torch}
    exec(SETUP, space)
    printed, error = io.StringIO(), ""
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(source, "<cell>", "exec"), space)
        except Exception as raised:
            error = type(raised).__name__
    kept = {name: outcome(value) for name, value in space.items() if not callable(value) and name[:2] != "__"}
    kept.pop("torch")
    return kept, printed.getvalue(), error


COUNTS: Counter[str] = Counter()


@settings(max_examples=max(150, settings().max_examples))
@given(cells())
def test_fixes_of_random_cells_change_nothing(cell: tuple[str, list[tuple[int, str]]]) -> None:
    source, places = cell
    before, printed, error = _ran(source)
    if error:
        return  # what a loop leaves behind when it raises is another matter: see docs/fixes.md
    findings = [finding(code, line) for line, code in places]
    sources = []
    for one in findings:
        made = fix(source, one, elsewhere=PEEKED)
        COUNTS["refused" if isinstance(made, Declined) else "offered"] += 1
        if not isinstance(made, Declined):
            sources.append(made.source)
    sources.append(fix_all(source, findings, elsewhere=PEEKED).source)
    for new in sources:
        after, also_printed, no_error = _ran(new)
        assert (also_printed, no_error) == (printed, ""), new
        assert {name: after.get(name) for name in before} == before, new


def test_the_random_cells_are_not_all_refused() -> None:
    if not COUNTS:
        test_fixes_of_random_cells_change_nothing()
    assert COUNTS["offered"] > 20, COUNTS
    assert COUNTS["refused"] > 20, COUNTS
