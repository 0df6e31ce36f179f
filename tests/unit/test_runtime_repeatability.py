"""Kernels that do not repeat themselves: a replay is verified against any eager run; a wrong graph against none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from torch import Tensor

from grape.model import Later, Reason, Refused, RetryLater
from grape.runtime import GraphedFunction
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.capture.attempt import _Attempt
from grape.runtime.capture.proof import verification
from grape.runtime.capture.proof.verification import Verification
from grape.runtime.capture.stop import Stop
from grape.runtime.regions.captures import UNSETTLED
from grape.runtime.state import walk
from tests.property.programs import eager_to_graph

_turn = itertools.count()
_pattern: list[int] = [0]


def _wobble(x: Tensor) -> Tensor:
    """A kernel with a race: now and then the last bit differs."""
    return x * 1.0 + 2.0**-20 * _pattern[next(_turn) % len(_pattern)]


_wobble.__code__ = _wobble.__code__.replace(co_filename="<kernel>")  # no code of the person's: guards follow none of it
wobble = torch.library.custom_op("grape_tests::wobble", _wobble, mutates_args=())


@wobble.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.fixture
def graphed(monkeypatch: pytest.MonkeyPatch) -> Iterator[GraphedFunction]:
    """Guards do not see whose turn it is, as they do not where a real kernel has a race."""
    monkeypatch.setattr(walk, "python_of", lambda _operator: [])

    def function(x: Tensor) -> Tensor:
        return (torch.ops.grape_tests.wobble(x).tanh() + 1).exp() * 0.5

    made = GraphedFunction(function, backend=ReferenceBackend(poison=True), tolerance=0.0)
    with torch.no_grad(), eager_to_graph():
        yield made
    made.release()


def _call(graphed: GraphedFunction, times: int) -> None:
    for _ in range(times):
        graphed(torch.linspace(0, 1, 8))


@pytest.mark.parametrize("pattern", [[0, 0, 1], [0, 1], [0, 0, 0, 1, 0], [0, 1, 2, 3, 0, 4, 5, 6, 7]])
def test_a_kernel_that_does_not_repeat_itself_is_verified_against_another_eager_run(
    graphed: GraphedFunction, pattern: list[int]
) -> None:
    _pattern[:] = pattern
    _call(graphed, 40)
    evidence = graphed.evidence()
    assert evidence is not None and evidence.refused is None and evidence.replays > 10


def test_the_search_for_a_run_with_the_bits_of_a_replay_ends_in_time(
    graphed: GraphedFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "PATIENCE", (1 << 40, 0.1))
    _pattern[:] = range(1 << 16)
    began = next(_turn)
    _call(graphed, 24)
    assert next(_turn) - began < 1 << 16, "no pattern came twice"
    evidence = graphed.evidence()
    assert evidence is not None and not evidence.replays


def test_a_graph_that_never_gives_what_an_eager_run_gave_is_refused(graphed: GraphedFunction) -> None:
    class Off(ReferenceBackend):
        def capture(self, body):  # type: ignore[no-untyped-def]
            graph, result = super().capture(body)
            instantiate = graph.instantiate

            def off():  # type: ignore[no-untyped-def]
                executable = instantiate()
                replay = executable.replay

                def wrong() -> None:
                    replay()
                    result.add_(1.0)

                executable.replay = wrong  # type: ignore[method-assign]
                return executable

            graph.instantiate = off  # type: ignore[method-assign]
            return graph, result

    graphed._backend = Off(poison=True)
    _pattern[:] = [0, 1, 0]
    _call(graphed, 30)
    evidence = graphed.evidence()
    assert evidence is not None and evidence.replays == 0
    assert evidence.refused is not None and "gave those of no eager run" in evidence.refused.why


def test_tries_count_until_a_graph_was_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape is captured anew whenever a rate changes, and each time one replay gives other bits."""
    rate, wrong = [1.0], [True]
    compare = Verification._compare

    def wrong_once(verification: Verification, *args: Any) -> str:
        found = compare(verification, *args)
        if wrong[0]:
            wrong[0] = False
            raise Stop(RetryLater(later=Later.UNSETTLED, refused=Refused.because(Reason.UNSETTLED)))
        return found

    def function(x: Tensor) -> Tensor:
        return (x.sin().tanh() + 1).exp() * rate[0]

    monkeypatch.setattr(Verification, "_compare", wrong_once)
    graphed = GraphedFunction(function, backend=ReferenceBackend(poison=True), tolerance=0.0)
    with torch.no_grad(), eager_to_graph():
        for step in range(2 * UNSETTLED):
            rate[0], wrong[0] = 1.0 + step, True
            _call(graphed, 40)
            evidence = graphed.evidence()
            assert evidence is not None and evidence.replays > 20 * (step + 1), step
    graphed.release()


def test_a_run_from_other_inputs_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A placeholder that does not hold what the call was given: eager code from there does what the replay did."""
    fill = _Attempt.fill_placeholders
    spoiled = 0

    def spoiling(attempt: _Attempt) -> None:
        nonlocal spoiled
        fill(attempt)
        attempt.placeholders.tensors[0].add_(1)
        spoiled += 1

    monkeypatch.setattr(_Attempt, "fill_placeholders", spoiling)
    graphed = GraphedFunction(lambda x: (x * 2).tanh() + 1, backend=ReferenceBackend(poison=True), tolerance=0.0)
    with torch.no_grad(), eager_to_graph():
        for number in range(12):
            x = torch.linspace(0, 1, 8) + number
            assert torch.equal(graphed(x), (x * 2).tanh() + 1)
    evidence = graphed.evidence()
    assert spoiled and evidence is not None and evidence.replays == 0
    graphed.release()
