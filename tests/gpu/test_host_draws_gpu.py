"""Random numbers drawn on the CPU in a region of the GPU, and seeds that a region sets, on a real device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from torch import Tensor, nn

from grape.runtime import GraphedFunction
from grape.runtime.accounts import policy
from grape.runtime.accounts.policy import decide
from grape.runtime.backends.cuda.backend import CudaBackend

CALLS = 16


@pytest.fixture(autouse=True)
def capture_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(policy, "decide", lambda estimate: replace(decide(estimate), action="capture"))
    with torch.no_grad():
        yield


def compared(function: Callable[[Tensor], Tensor], seed: Callable[[int], int]) -> GraphedFunction:
    """Called beside its eager twin, from one state of both generators each: same results, same states afterwards."""
    device = torch.device("cuda", torch.cuda.current_device())
    graphed = GraphedFunction(function, backend=CudaBackend(device), tolerance=0.0)
    for call in range(CALLS):
        x = torch.full((3, 4), call / 10, device="cuda")
        torch.manual_seed(seed(call))
        expected, cpu, cuda = function(x).clone(), torch.get_rng_state(), torch.cuda.get_rng_state()
        torch.manual_seed(seed(call))
        assert torch.equal(graphed(x), expected)
        assert torch.equal(torch.get_rng_state(), cpu) and torch.equal(torch.cuda.get_rng_state(), cuda), call
    return graphed


def work(x: Tensor) -> Tensor:
    return (x.tanh() + 1).exp() * 0.5


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        number = torch.rand([])
        return x if self.training and number < 0.1 else self.linear(x).tanh()


def test_layers_that_draw_on_the_cpu_and_do_not_look() -> None:
    encoder = nn.Sequential(*[Layer() for _ in range(4)]).cuda().eval()

    def function(x: Tensor) -> Tensor:
        torch.empty(5).normal_()
        return nn.functional.dropout(encoder(x), 0.5)

    graphed = compared(function, int)
    evidence = graphed.evidence()
    assert evidence is not None and evidence.refused is None and evidence.replays
    graphed.release()


def _seeded(x: Tensor) -> Tensor:
    torch.manual_seed(7)
    return nn.functional.dropout(work(x), 0.5)


def _seeded_on_the_device(x: Tensor) -> Tensor:
    torch.cuda.manual_seed(7)
    return nn.functional.dropout(work(x), 0.5)


def _forked(x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        y = nn.functional.dropout(work(x), 0.5)
    torch.rand([])
    return y


REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "a number that is sent": lambda x: work(x) + torch.rand([]).to(x.device) * 0,
    "a number that an operator takes": lambda x: work(x) + torch.rand([]),
    "a number that is read": lambda x: work(x) * (1 if torch.rand([]).item() < 2 else 2),
    "a seed": _seeded,
    "a seed of the device": _seeded_on_the_device,
    "a fork": _forked,
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("seed", [int, lambda call: 7], ids=["other seeds", "one seed"])
def test_what_a_replay_would_not_repeat_is_refused(name: str, seed: Callable[[int], int]) -> None:
    graphed = compared(REFUSED[name], seed)
    evidence = graphed.evidence()
    assert evidence is not None and evidence.refused is not None and evidence.replays == 0
    graphed.release()
