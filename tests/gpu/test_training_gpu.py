"""Training steps as CUDA graphs: the random programs of the tape, and what only a GPU can show."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch._dynamo
from hypothesis import given, settings
from IPython.core.interactiveshell import InteractiveShell
from torch import nn
from torch.nn import functional as F

import grape
from grape.runtime.accounts import policy
from grape.runtime.accounts.policy import decide
from grape.runtime.backends.cuda.backend import CudaBackend
from grape.runtime.backends.cuda.memory import segments
from tests.property.programs import Twins, World, codes, seeded
from tests.property.training import TrainingProgram, run_training

EXAMPLES = 120

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def backend() -> Iterator[CudaBackend]:
    backend = CudaBackend(torch.device("cuda"))
    yield backend
    backend.close()


def test_training_programs_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty small steps never pay for a capture; here they are captured all the same."""
    monkeypatch.setattr(policy, "decide", lambda estimate: replace(decide(estimate), action="capture"))
    served: collections.Counter[str] = collections.Counter()

    def program_agrees(program: TrainingProgram) -> None:
        backend = CudaBackend(torch.device("cuda"))
        try:
            served.update(codes([run_training(program, backend)]))
        finally:
            backend.close()

    examples = settings.default.max_examples if not settings.default.derandomize else EXAMPLES
    settings(max_examples=examples)(seeded(7)(given(program=TrainingProgram.strategy())(program_agrees)))()
    assert served["replayed"] > 0.4 * sum(served.values()), served


def _world(device: torch.device, *, hook_prints: bool = False) -> World:
    net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 8)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, capturable=True)
    x, y = torch.randn(32, 64, device=device), torch.randint(0, 8, (32,), device=device)
    if hook_prints:
        net[0].weight.register_hook(lambda g: print(end=""))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return loss

    return World(net=net, optimizer=optimizer, x=x, y=y, function=step)


def test_losses_that_are_kept_do_not_stand_in_the_way(backend: CudaBackend) -> None:
    """The nodes that accumulate gradients belong to a stream, and live as long as a loss refers to their graph."""
    twins = Twins(lambda: _world(backend.device), backend)
    for _ in range(30):
        twins.call(lambda w: ((w.x, w.y), {}))  # `twins.results` keeps every loss
    assert twins.replays > 10
    twins.close()


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_in_single_precision(dropout: float, backend: CudaBackend) -> None:
    """What it leaves for its backward lies on the device in a capture alone."""

    def build() -> World:
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=dropout, batch_first=True, device=backend.device)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3, capturable=True)
        x = torch.randn(4, 48, 64, device=backend.device)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = layer(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return World(net=layer, optimizer=optimizer, x=x, function=step)

    twins = Twins(build, backend)
    for _ in range(30):
        twins.call(lambda w: ((w.x,), {}))
    assert twins.replays > 10, twins.refused
    twins.close()


def test_the_line_of_an_operator_in_backward_is_known(backend: CudaBackend) -> None:
    """Backward runs in a thread of autograd's, without a frame of the person's."""
    twins = Twins(lambda: _world(backend.device), backend)
    for _ in range(6):
        twins.call(lambda w: ((w.x, w.y), {}))
    region = twins.graphed._region
    assert region is not None
    (*_, trace) = region.observer.traces
    backward = [op for op in trace.ops if "backward" in op.name]
    assert backward
    assert all(op.user is not None for op in backward)
    twins.close()


def test_an_effect_in_a_hook_is_seen_in_the_thread_of_autograd(backend: CudaBackend) -> None:
    twins = Twins(lambda: _world(backend.device, hook_prints=True), backend)
    for _ in range(12):
        twins.call(lambda w: ((w.x, w.y), {}))
    assert twins.replays == 0
    assert twins.refused.code == "GR404"
    twins.close()


def test_gradients_live_outside_of_the_pool(backend: CudaBackend) -> None:
    twins = Twins(lambda: _world(backend.device), backend)
    for _ in range(20):
        twins.call(lambda w: ((w.x, w.y), {}))
    assert twins.replays
    spans = [(s["address"], s["address"] + s["total_size"]) for s in segments(backend._pool)]
    for p in twins.world.net.parameters():
        assert p.grad is not None
        assert not any(first <= p.grad.data_ptr() < end for first, end in spans)
    twins.close()


def test_a_loop_of_a_function_that_trains_is_captured(closed_engine: None) -> None:
    """Iterations as written leave no graph behind whose nodes belong to the stream that the person works on."""
    shell = InteractiveShell.instance()
    source = (
        "import torch\nnet = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(12)]).cuda()\n"
        "optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)\n"
        "class Loader:\n    def __init__(self):\n        self.clock = torch.cuda.Event()\n"
        "    def __iter__(self):\n        return (torch.randn(8, 64, device='cuda') for _ in range(150))\n"
        "def train(loader):\n    losses = []\n    for x in loader:\n        optimizer.zero_grad()\n"
        "        loss = net(x).square().mean()\n        loss.backward()\n        optimizer.step()\n"
        "        losses.append(loss.detach())\n    return torch.stack(losses)\n"
    )
    try:
        for cell in ("%load_ext grape", source):
            shell.run_cell(cell).raise_error()
        for _ in range(3):  # on a busy machine the first may end before its loop was looked at
            shell.run_cell("%%grape\ntrain(Loader())").raise_error()
            regions = grape.last.to_dict()["regions"]
            if sum(region["replays"] for region in regions) > 50:
                return
        pytest.fail(str(grape.last))
    finally:
        InteractiveShell.clear_instance()
