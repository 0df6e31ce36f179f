"""A module's forward and backward as a pair of CUDA graphs: small versions of what the tape tests, and memory."""

from __future__ import annotations

import collections
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo
from hypothesis import given, settings
from torch import nn
from torch.nn import functional as F

from grape.runtime.accounts import policy
from grape.runtime.accounts.policy import decide
from grape.runtime.backends.cuda.backend import CudaBackend
from grape.runtime.backends.cuda.memory import segments
from tests.property.pairs import PairTwins, Step
from tests.property.programs import World, seeded
from tests.property.test_training_pairs import PairProgram, run_pair

EXAMPLES = 60
WIDTH = 64

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("without_eager_calls_in_between")]


@pytest.fixture
def backend() -> Iterator[CudaBackend]:
    backend = CudaBackend(torch.device("cuda"))
    yield backend
    backend.close()


@pytest.fixture(autouse=True)
def capture_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "decide", lambda estimate: replace(decide(estimate), action="capture"))
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + torch.tanh(self.body(x))
        return self.head(h + F.gelu(self.body(h)) @ self.body.weight.t())


class Half(nn.Module):
    """Autocast inside of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.float16):
            return self.head(F.gelu(self.body(self.body(x)))).float()


MODULES: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.GELU(), nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH)
    ),
    "tied": Tied,
    "half": Half,
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten()
    ),
    "attention": lambda: nn.Sequential(
        nn.Unflatten(1, (4, WIDTH // 4)), nn.TransformerEncoderLayer(WIDTH // 4, 2, 32, dropout=0.0, batch_first=True)
    ),
}


def world_of(name: str) -> Callable[[], World]:
    def build() -> World:
        net = MODULES[name]().cuda()
        return World(net=net, optimizer=torch.optim.Adam(net.parameters(), lr=0.01), held=[])

    return build


def batch(number: int) -> torch.Tensor:
    return torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(number)).cuda()


def plain(w: World, net: Callable[..., Any], number: int) -> Any:
    w.optimizer.zero_grad()
    out = net(batch(number))
    loss = out.float().pow(2).mean()
    value = loss.item()
    loss.backward()
    w.optimizer.step()
    return value, out


def summed(w: World, net: Callable[..., Any], number: int) -> Any:
    """A gradient of stride 0."""
    w.optimizer.zero_grad()
    out = net(batch(number))
    out.float().sum().backward()
    w.optimizer.step()
    return out


def twice(w: World, net: Callable[..., Any], number: int) -> Any:
    w.optimizer.zero_grad()
    loss = (net(batch(number)) - net(batch(number + 100))).float().pow(2).mean()
    loss.item()
    loss.backward()
    w.optimizer.step()
    return loss


def retained(w: World, net: Callable[..., Any], number: int) -> Any:
    loss = net(batch(number)).float().pow(2).mean()
    loss.backward(retain_graph=True)
    loss.backward()
    w.optimizer.step()
    return loss


def of_the_input(w: World, net: Callable[..., Any], number: int) -> Any:
    x = batch(number).requires_grad_()
    y = x.tanh()
    (net(y).float().sum() + y.pow(2).sum()).backward()
    return x.grad


def accumulated(w: World, net: Callable[..., Any], number: int) -> Any:
    loss = net(batch(number)).float().pow(2).mean()
    loss.backward()
    if number % 2:
        nn.utils.clip_grad_norm_(w.net.parameters(), 1.0)
        w.optimizer.step()
        w.optimizer.zero_grad()
    return loss


def scaled(w: World, net: Callable[..., Any], number: int) -> Any:
    """A loss scaler, whose step reads on the host whether gradients are finite."""
    if not hasattr(w, "scaler"):
        w.scaler = torch.amp.GradScaler("cuda", init_scale=64.0)
    w.optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16, cache_enabled=False):
        out = net(batch(number))
    loss = out.float().pow(2).mean()
    w.scaler.scale(loss).backward()
    w.scaler.step(w.optimizer)
    w.scaler.update()
    return loss.item()


STEPS: dict[str, Step] = {
    "plain": plain,
    "summed": summed,
    "twice": twice,
    "retained": retained,
    "of the input": of_the_input,
    "accumulated": accumulated,
    "scaled": scaled,
}


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("step", STEPS)
def test_a_step_around_a_pair(step: str, module: str, backend: CudaBackend) -> None:
    twins = PairTwins(world_of(module), STEPS[step], backend)
    twins.run(14)
    assert twins.run(6) >= 5, twins.refused
    twins.close()


def test_programs_around_a_pair() -> None:
    served: collections.Counter[bool] = collections.Counter()

    def program_agrees(program: PairProgram) -> None:
        backend = CudaBackend(torch.device("cuda"))
        try:
            served[run_pair(program, backend).replays_at_end > 0] += 1
        finally:
            backend.close()

    examples = settings.default.max_examples if not settings.default.derandomize else EXAMPLES
    settings(max_examples=examples)(seeded(11)(given(program=PairProgram.strategy())(program_agrees)))()
    assert served[True] > 0.4 * sum(served.values()), served


def test_a_backward_of_other_gradients_runs_the_forward_again(backend: CudaBackend) -> None:
    """In the thread of autograd: random state, statistics and results are those of eager."""
    twins = PairTwins(world_of("dropout"), plain, backend)
    twins.run(14)
    assert twins.run(1, summed) == 1
    twins.run(4)
    twins.close()


AGAIN = {"create_graph": True}


def test_first_derivatives_that_are_to_be_differentiated_again(backend: CudaBackend) -> None:
    """The calling code does not name the argument, so the first one is served."""

    def slope(w: World, net: Callable[..., Any], number: int) -> Any:
        loss = net(batch(number)).float().pow(2).mean()
        return torch.autograd.grad(loss, [*w.net.parameters()], **AGAIN)

    twins = PairTwins(world_of("tied"), plain, backend)
    twins.run(14)
    assert twins.run(1, slope) == 1
    assert twins.run(3) == 0
    twins.close()


def test_the_nodes_of_parameters_belong_to_the_stream_of_the_person(backend: CudaBackend) -> None:
    """Losses that are kept keep these nodes; none of a capture's stream is among them."""
    twins = PairTwins(world_of("dropout"), plain, backend)
    losses = []

    def keeping(w: World, net: Callable[..., Any], number: int) -> Any:
        loss = net(batch(number)).pow(2).mean()
        losses.append(loss)
        loss.backward()
        return loss

    twins.run(20, keeping)
    assert twins.replays > 4
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        twins.run(2, keeping)  # on another stream as written
    torch.cuda.current_stream().wait_stream(side)
    twins.close()


def test_memory_of_a_pair_is_counted_and_given_back(backend: CudaBackend) -> None:
    twins = PairTwins(world_of("dropout"), plain, backend)
    twins.run(14)
    assert twins.replays
    (pool,) = backend._apart
    assert pool.nbytes > 0
    assert backend.memory().pool_bytes >= pool.nbytes
    handle = pool.handle
    del pool
    twins.close()
    gc.collect()
    torch.cuda.empty_cache()
    assert not backend._apart
    assert not segments(handle)


def test_an_interrupted_backward_capture_leaves_the_process_usable(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, captures = CudaBackend.capture, []

    def interrupted(self: CudaBackend, body: Any, pool: Any = None) -> Any:
        captures.append(pool)

        def broken() -> Any:
            body()
            raise KeyboardInterrupt

        return original(self, broken if len(captures) == 2 else body, pool)

    monkeypatch.setattr(CudaBackend, "capture", interrupted)
    twins = PairTwins(world_of("dropout"), plain, backend)
    with pytest.raises(KeyboardInterrupt):
        twins.run(14)
    assert len(captures) == 2
    x = torch.ones(8, device="cuda", requires_grad=True)
    (x * torch.rand(8, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    assert x.grad is not None
    twins.close()
