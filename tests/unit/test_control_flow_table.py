"""Every construct three ways: as written, rewritten, and rewritten and captured; identical bits in all outcomes."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

from grape.rewrite.control_flow import RewrittenFlow, rewrite_control_flow
from grape.runtime.backends.protocol import CaptureFailed
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.graphed import GraphedFunction
from grape.runtime.predication import flow
from grape.runtime.predication.lowering import select
from grape.runtime.predication.lowering.select import SelectLowering
from tests.property.control_flow_programs import SelectsOnly
from tests.unit.control_flow_cases import AFTER, ASSERTIONS, CONSTRUCTS, INPUTS, arguments, bits, left_in, source_of

CALLS = 20
UNROLLED = 6
"""Iterations of a loop that only data ends, until selects give it up: each takes as long as the first."""
ALL = {**CONSTRUCTS, **ASSERTIONS}
# Enough work for a region, and results in memory of their own whatever way the data took.
AROUND = """
def around(x, y, cell, n):
    result = f(x.clone(), y.clone(), cell, n)
    cell.state, cell.table["k"] = cell.state * 1, cell.table["k"] * 1
    return tuple([item * 1 for item in result]) if isinstance(result, tuple) else result * 1
"""


pytestmark = pytest.mark.usefixtures("without_gradients", "few_unrolled")


@pytest.fixture
def few_unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "MAX_ITERATIONS", UNROLLED)


def rewritten(body: str) -> str:
    made = rewrite_control_flow(source_of(body), filename="cell")
    assert isinstance(made, RewrittenFlow), made
    assert made.constructs and not made.left
    again = rewrite_control_flow(made.source, filename="cell")
    assert isinstance(again, RewrittenFlow) and again.source == made.source
    return made.source


def function(source: str, name: str = "f") -> Callable[..., Any]:
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(source + AROUND, "cell", "exec"), namespace)
    made: Callable[..., Any] = namespace[name]
    return made


def outcome(called: Callable[..., Any], values: list[float]) -> Any:
    """The bits of what a call returns, or what it raises, and of what it leaves in its arguments."""
    given = arguments(values)
    try:
        result = bits(called(*given))
    except AssertionError as error:
        result = str(error)
    return result, left_in(given)


def test_the_table_is_read_whole() -> None:
    assert len(CONSTRUCTS) >= 60 and len(ASSERTIONS) >= 11 and AFTER.keys() == ALL.keys()


@pytest.mark.parametrize("name", ALL)
def test_before_and_after(name: str) -> None:
    assert rewritten(ALL[name]) == f"from grape import flow as _flow\n{source_of(AFTER[name])}"


@pytest.mark.parametrize("body", ALL.values(), ids=ALL.keys())
def test_rewritten_and_eager(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, mine = function(source_of(body)), function(rewritten(body))
    ways: dict[int, set[bool]] = defaultdict(set)
    truth = flow.truth

    def noted(condition: Any) -> bool:
        value = truth(condition)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != "cell":
            frame = frame.f_back
        if isinstance(condition, torch.Tensor) and frame is not None:
            ways[frame.f_lineno].add(value)
        return value

    monkeypatch.setattr(flow, "truth", noted)
    for values in INPUTS:
        assert outcome(mine, values) == outcome(plain, values)
    assert ways and all(seen == {True, False} for seen in ways.values()), f"one way only: {dict(ways)}"


@pytest.mark.parametrize("body", CONSTRUCTS.values(), ids=CONSTRUCTS.keys())
def test_rewritten_and_selected(body: str) -> None:
    plain, mine = function(source_of(body)), function(rewritten(body))
    taken = 0
    for values in INPUTS:
        try:
            with SelectLowering(torch.device("cpu")).active():
                given = arguments(values)
                result = mine(*given)
        except CaptureFailed as refused:
            assert "only data ends" in str(refused)
            continue
        taken += 1
        assert (bits(result), left_in(given)) == outcome(plain, values)
    assert taken or "while" in body


@pytest.mark.parametrize("kind", [ReferenceBackend, SelectsOnly])
@pytest.mark.parametrize("body", ALL.values(), ids=ALL.keys())
def test_rewritten_and_captured(body: str, kind: type[ReferenceBackend]) -> None:
    plain = function(source_of(body), "around")
    region = GraphedFunction(function(rewritten(body), "around"), backend=kind(poison=True), tolerance=0.0)
    for call in range(CALLS):
        values = INPUTS[(call + call // 8) % 8]
        assert outcome(region, values) == outcome(plain, values), f"call {call}"
    evidence = region.evidence()
    assert evidence is not None
    refused = evidence.refused
    if kind is SelectsOnly and "while" in body and refused is not None:
        assert "only data ends" in refused.why
    else:
        assert refused is None, refused
        assert evidence.replays > 0, evidence
    region.release()
