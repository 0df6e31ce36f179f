"""Every construct three ways: as it was written, rewritten, and rewritten and captured; identical bits in all outcomes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from grape.rewrite.control_flow import Rewritten, rewrite_control_flow
from grape.runtime.backends.protocol import CaptureFailed
from grape.runtime.backends.tape import TapeBackend
from grape.runtime.graphed import GraphedFunction
from grape.runtime.predication import SelectLowering, flow
from tests.unit.control_flow_cases import ASSERTIONS, CONSTRUCTS, INPUTS, arguments, bits, left_in, source_of

CALLS = 40
ALL = {**CONSTRUCTS, **ASSERTIONS}
# The first call that raises hides later ones of the same line.
ONE_WAY = {"and with a number", "for over a list", "assert of a number"}


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def rewritten(body: str) -> str:
    made = rewrite_control_flow(source_of(body), filename="cell")
    assert isinstance(made, Rewritten), made
    assert made.constructs and not made.left
    again = rewrite_control_flow(made.source, filename="cell")
    assert isinstance(again, Rewritten) and again.source == made.source
    return made.source


def function(source: str) -> Callable[..., Any]:
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(source, "cell", "exec"), namespace)
    made: Callable[..., Any] = namespace["f"]
    return made


def outcome(called: Callable[..., Any], values: list[float]) -> Any:
    """The bits of what a call returns, or what it raises, and of what it leaves in its arguments."""
    given = arguments(values)
    try:
        result = bits(called(*given))
    except AssertionError as error:
        result = str(error)
    return result, left_in(given)


@pytest.mark.parametrize("body", ALL.values(), ids=ALL.keys())
def test_rewritten_and_eager(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, mine = function(source_of(body)), function(rewritten(body))
    ways: dict[int, set[bool]] = defaultdict(set)
    truth = flow.truth

    def noted(condition: Any) -> bool:
        value = truth(condition)
        if isinstance(condition, torch.Tensor):
            ways[condition.dim()].add(value)
        return value

    monkeypatch.setattr(flow, "truth", noted)
    for values in INPUTS:
        assert outcome(mine, values) == outcome(plain, values)
    assert {True, False} <= set().union(*ways.values()), "the inputs take one way only"


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


class NoBodies(TapeBackend):
    """A backend that has selects only."""

    @property
    def conditional_bodies(self) -> bool:
        return False


@pytest.mark.parametrize("kind", [TapeBackend, NoBodies])
@pytest.mark.parametrize("body", ALL.values(), ids=ALL.keys())
def test_rewritten_and_captured(body: str, kind: type[TapeBackend]) -> None:
    plain = function(source_of(body))
    region = GraphedFunction(function(rewritten(body)), backend=kind(poison=True), tolerance=0.0)
    for call in range(CALLS):
        values = INPUTS[(call + call // 8) % 8]
        assert outcome(region, values) == outcome(plain, values), f"call {call}"
    evidence = region.evidence()
    assert evidence is not None
    refused = evidence.refused
    if kind is NoBodies and "while" in body and refused is not None:
        assert "only data ends" in refused.why
    else:
        assert refused is None, refused
        assert evidence.replays > 4, evidence
    region.release()
