"""Random training steps that read the loss before `backward`: a module as a pair of graphs, and in eager.

After every step parameters, gradients, optimizer state, buffers, losses, results and the random state are equal bit for
bit, whatever people do between forward and backward.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch._dynamo
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from grape.runtime.backends.protocol import Backend
from grape.runtime.backends.reference.backend import ReferenceBackend
from tests.property.pairs import PairTwins
from tests.property.programs import World, seeded
from tests.property.training import CLASSES, EVENTS, MODELS, OPTIMIZERS, WIDTH

PARTS = 2
EXAMPLES = 24

pytestmark = pytest.mark.filterwarnings("ignore")


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + torch.tanh(self.body(x))
        h = h + F.gelu(self.body(h)) @ self.body.weight.t()
        return self.head(h)


class Heads(nn.Module):
    """Two results, of which the first is used inside."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.tanh(self.body(x))
        return self.head(h), self.value(h)


NETS: dict[str, Callable[[], nn.Module]] = {
    **{name: make for name, make in MODELS.items() if name not in ("recomputed", "unrepeatable")},
    "tied": Tied,
    "heads": Heads,
}
LOSSES = ("classes", "squares", "sum", "policy", "penalty")
CALLS = ("once", "twice", "chained", "input", "micro", "retain", "grad")
BETWEEN = {
    "nothing": lambda w, x, out: None,
    "detached": lambda w, x, out: out.detach().sum().item(),
    "scaled": lambda w, x, out: out.mul_(0.5),
    "weights, unseen": lambda w, x, out: next(w.model.parameters()).data.mul_(0.9),
    "weights": lambda w, x, out: _scaled(next(w.model.parameters())),
    "buffers": lambda w, x, out: [b.data.mul_(0.9) for b in w.model.buffers() if b.is_floating_point()],
    "evaluated": lambda w, x, out: w.model.train(not w.model.training),
    "retained": lambda w, x, out: out.retain_grad(),
}


@torch.no_grad()
def _scaled(tensor: torch.Tensor) -> None:
    tensor.mul_(0.9)


@dataclasses.dataclass(frozen=True)
class PairProgram:
    """One program. `between` happens between forward and backward of the steps in `at`."""

    model: str
    loss: str
    optimizer: str
    calls: str
    autocast: bool
    frozen: bool
    between: str
    at: frozenset[int]
    rows: tuple[int, ...]
    events: tuple[tuple[int, str], ...]

    @staticmethod
    def strategy() -> st.SearchStrategy[PairProgram]:
        return st.builds(
            PairProgram,
            model=st.sampled_from(sorted(NETS)),
            loss=st.sampled_from(LOSSES),
            optimizer=st.sampled_from(["sgd", "momentum", "adam", "adam fused", "signed"]),
            calls=st.sampled_from([*CALLS, "once", "once"]),
            autocast=st.sampled_from([False, False, True]),
            frozen=st.booleans(),
            between=st.sampled_from(sorted(BETWEEN)),
            at=st.frozensets(st.integers(5, 19), max_size=4),
            rows=st.sampled_from(((4,), (4,), (4, 5))),
            events=st.lists(st.tuples(st.integers(6, 18), st.sampled_from(sorted(EVENTS))), max_size=2).map(tuple),
        )

    def build(self, device: torch.device) -> World:
        torch.manual_seed(3)
        net = NETS[self.model]().to(device)
        if self.frozen:
            next(net.parameters()).requires_grad_(False)
        optimizer = OPTIMIZERS[self.optimizer](net.parameters(), device)
        return World(net=net, model=net, optimizer=optimizer, held=[])

    def loss_of(self, w: World, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = out.float()
        if self.loss == "classes":
            return F.cross_entropy(out, y)
        if self.loss == "squares":
            return F.mse_loss(out, F.one_hot(y, CLASSES).float())
        if self.loss == "sum":
            return out.sum()
        if self.loss == "policy":
            chosen = out.log_softmax(-1).gather(1, y[:, None])
            return -(chosen * out.detach().std()).mean()
        penalty = sum(p.pow(2).sum() for p in w.net.parameters() if p.requires_grad)
        return out.pow(2).mean() + 0.01 * penalty

    def forward(self, net: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
        autocast = (
            torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False) if self.autocast else nullcontext()
        )
        with autocast:
            found = net(x)
        if not isinstance(found, tuple):
            return found  # type: ignore[no-any-return]
        return found[0] + found[1] if self.loss != "sum" else found[0] * 1

    def step(self, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[World, Callable[..., Any], int], Any]:
        def step(w: World, net: Callable[..., Any], number: int) -> Any:
            x, y = batches[number % len(batches)]
            x = x * (1 + number / 8)
            if self.calls != "micro" or number % 2:
                w.optimizer.zero_grad(set_to_none=number % 3 > 0)
            given = x
            if self.calls == "input":
                x = x.requires_grad_()
                given = x.tanh() + x
            out = self.forward(net, given)
            if self.calls == "chained":
                out = self.forward(net, F.pad(out.float(), (0, WIDTH - CLASSES)))
            loss = self.loss_of(w, out, y)
            if self.calls == "twice":
                loss = loss + self.loss_of(w, self.forward(net, x.flip(0)), y)
            if self.calls == "input":
                loss = loss + given.pow(2).mean()
            value = loss.item()
            if number in self.at:
                BETWEEN[self.between](w, x, out)
            if self.calls == "grad":
                wanted = [p for p in w.net.parameters() if p.requires_grad]
                for p, gradient in zip(wanted, torch.autograd.grad(loss, wanted, allow_unused=True), strict=True):
                    p.grad = gradient
            else:
                if self.calls == "retain":
                    loss.backward(retain_graph=True)
                loss.backward()
            if self.calls != "micro" or not number % 2:
                w.optimizer.step()
            return value, out, x.grad if self.calls == "input" else None

        return step


def run_pair(program: PairProgram, backend: Backend, steps: int = 20) -> PairTwins:
    device = backend.device
    generator = torch.Generator().manual_seed(5)
    batches = [
        (torch.randn(rows, WIDTH, generator=generator), torch.randint(0, CLASSES, (rows,), generator=generator))
        for rows in (*program.rows, *program.rows)
    ]
    batches = [(x.to(device), y.to(device)) for x, y in batches]
    twins = PairTwins(lambda: program.build(device), program.step(batches), backend)
    events = dict(program.events)
    try:
        for index in range(steps):
            if index in events:
                random = backend.rng_state()
                for world in twins.worlds:
                    backend.set_rng_state(random)
                    EVENTS[events[index]](world)
            twins.run(1)
    finally:
        twins.close()
    return twins


@pytest.mark.parametrize("part", range(PARTS))
def test_a_step_around_a_pair_equals_an_eager_step(part: int) -> None:
    """100 programs of 20 steps; each part draws others."""
    served: collections.Counter[bool] = collections.Counter()

    def program_agrees(program: PairProgram) -> None:
        served[run_pair(program, ReferenceBackend(poison=True)).replays_at_end > 0] += 1

    examples = settings.default.max_examples if not settings.default.derandomize else EXAMPLES
    settings(max_examples=examples)(seeded(part)(given(program=PairProgram.strategy())(program_agrees)))()
    assert served[True] > 0.6 * sum(served.values()), served
