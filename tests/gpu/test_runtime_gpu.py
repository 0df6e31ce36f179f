"""The random programs of the tape on a GPU: graphs are real, and every call still equals the eager one."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from hypothesis import given, settings

import grape
from grape.runtime.accounts import policy
from grape.runtime.accounts.policy import decide
from grape.runtime.backends.cuda.backend import CudaBackend
from grape.runtime.guarding.guards import GuardSet
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


def test_functions_that_take_turns_do_not_have_each_other_look_for_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a look does in autograd's thread of the device was taken for a hook, and the next function looked, too."""
    models = [torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(4)]).cuda().eval() for _ in range(3)]
    served, x = [grape.graph(model) for model in models], torch.randn(4, 16, device="cuda")
    looks = []
    with torch.no_grad():
        for _ in range(40):
            for function in served:
                function(x)
                assert function._region is not None
                function._region.context.unhurried, function._region.context.weighs = True, False
        look = GuardSet.has_hooked_nodes
        monkeypatch.setattr(GuardSet, "has_hooked_nodes", lambda self: looks.append(self) or look(self))
        for _ in range(3):
            for function in served:
                assert torch.equal(function(x), function.__wrapped__(x))
    assert all(function.evidence().replays > 10 for function in served)  # type: ignore[union-attr]
    assert not looks
