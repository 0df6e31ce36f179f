"""The random programs of the tape on a GPU: graphs are real, and every call still equals the eager one."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from hypothesis import given, settings

from grape.runtime.accounts import policy
from grape.runtime.accounts.policy import decide
from grape.runtime.backends.cuda.backend import CudaBackend
from tests.property.programs import Program, codes, run_program, seeded

EXAMPLES = 130
PARTS = 4


@pytest.fixture
def capture_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small programs never pay for a capture; here they are captured all the same."""
    monkeypatch.setattr(policy, "decide", lambda estimate: replace(decide(estimate), action="capture"))
    monkeypatch.setattr(policy, "FEW", 1)


@pytest.fixture
def repeatable() -> Iterator[None]:
    """The eager twin must equal itself: no atomics."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_call_served_by_grape_equals_an_eager_call(part: int, repeatable: None, capture_at_once: None) -> None:
    """520 programs in all, each with its own backend, pool and graphs."""
    served: collections.Counter[str] = collections.Counter()
    device = torch.device("cuda", torch.cuda.current_device())

    def program_agrees(program: Program) -> None:
        served.update(codes([run_program(program, CudaBackend(device))]))

    examples = settings.default.max_examples if not settings.default.derandomize else EXAMPLES
    settings(max_examples=examples)(seeded(part)(given(program=Program.strategy())(program_agrees)))()
    assert served["replayed"] > 0.3 * sum(served.values()), served
