"""Which statement of a library asked for a value, which is told from its instructions."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from grape.tracing.constructs import construct_of

LIBRARY = os.path.join(os.path.dirname(torch.__file__), "made_up.py")


class Asked:
    """Notes the construct of each frame that asks whether it is true."""

    def __init__(self) -> None:
        self.constructs: list[str | None] = []

    def __bool__(self) -> bool:
        self.constructs.append(construct_of(sys._getframe(1)))
        return True


@pytest.mark.parametrize(
    ("body", "construct"),
    [
        ("if x:\n  return 1", "if"),
        ("if not x:\n  return 1", "if"),
        ("while x:\n  return 1", "if"),
        ("assert x", "if"),
        ("return 1 if x else 2", "if"),
        ("return x and 1", "if"),
        ("return [1 for _ in 'a' if x]", "if"),
        ("return not x", None),
        ("return bool(x)", None),
    ],
)
def test_a_branch_is_told_from_another_question(body: str, construct: str | None) -> None:
    space: dict[str, Any] = {}
    exec(compile("def f(x):\n " + body.replace("\n", "\n "), LIBRARY, "exec"), space)
    asked = Asked()
    space["f"](asked)
    assert asked.constructs == [construct]


@pytest.mark.parametrize(
    ("line", "construct"),
    [
        ("kept.append(bool(x)) or 1", "call"),
        ("y = kept.append((1, bool(x))) if kept else 2", "call"),
        ("y = bool(x) or 1", "bool-op"),
        ("y = 1 if kept.count(bool(x)) else 2", "ternary"),
    ],
)
def test_a_value_that_is_only_kept_decides_nothing(line: str, construct: str, tmp_path: Path) -> None:
    """`append` gives back None, whatever it is given: the `or` around it asks for no tensor."""
    file = tmp_path / "own.py"
    file.write_text(f"def f(x, kept):\n    {line}\n")
    space: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    asked = Asked()
    space["f"](asked, [1])
    assert asked.constructs == [construct]
