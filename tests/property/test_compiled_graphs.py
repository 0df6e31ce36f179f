"""Random modules that Inductor compiles, for the CPU: graphs of their code leave what the code leaves, bit by bit. A
graph is pretended: its replay calls the code again, into the same results.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.compile_fx  # it wraps functions of torch for good
from torch import Tensor, nn
from torch._inductor.output_code import CompiledFxGraph

from grape import native
from grape.native import Unavailable
from grape.streams.compiled import Code, CompiledGraphs, graphs
from grape.streams.counts import Launches
from tests.property.stream_programs import flat, needs_compiler
from tests.unit.test_streams_compiled_graphs import Pretended

torch._dynamo.mutation_guard.install_generation_tagging_init()  # the first compilation does it, for good

pytestmark = [pytest.mark.filterwarnings("ignore"), needs_compiler]

WIDTH, ROWS, CALLS = 8, 16, 24
PROGRAMS = (0, 2, 3, 4, 8, 15)
"""Of the last five, graphs serve calls, but where the allocator gives memory of other alignments each time."""
Act = Callable[["Net", Tensor, Tensor], Tensor]


class Net(nn.Module):
    def __init__(self, r: random.Random) -> None:
        super().__init__()
        self.acts = [ACTS[r.randrange(len(ACTS))] for _ in range(r.randint(2, 5))]
        self.leaves = [LEAVES[r.randrange(len(LEAVES))] for _ in range(r.randint(1, 3))]
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)
        self.bias = nn.Parameter(torch.randn(WIDTH))
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("cache", torch.zeros(ROWS, WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Any, ...]:
        for act in self.acts:
            x = act(self, x, y)
        return tuple(leaf(self, x, y) for leaf in self.leaves)


def _count(net: Net, x: Tensor, y: Tensor) -> Tensor:
    net.calls.add_(1)
    return x + net.calls


def _average(net: Net, x: Tensor, y: Tensor) -> Tensor:
    net.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return x - net.mean


def _store(net: Net, x: Tensor, y: Tensor) -> Tensor:
    net.cache[: x.shape[0]].copy_(x)
    return x + net.cache.mean(0)


def _shift(net: Net, x: Tensor, y: Tensor) -> Tensor:
    net.cache.copy_(net.cache.roll(1, 0) + x.mean(0))
    return x * net.cache[0]


def _write_input(net: Net, x: Tensor, y: Tensor) -> Tensor:
    y.mul_(0.5)
    return x + y.mean(0)


ACTS: tuple[Act, ...] = (
    lambda net, x, y: nn.functional.gelu(x @ net.weight + net.bias),
    lambda net, x, y: torch.tanh(x) + y.sum(0, keepdim=True),
    lambda net, x, y: x * x.shape[0],
    lambda net, x, y: nn.functional.layer_norm(x, (WIDTH,)),
    lambda net, x, y: x + y.flip(0).mean(0),
    lambda net, x, y: torch.cat([x[1:], x[:1]]),
    *(_count, _count, _average, _average, _store, _shift, _write_input),
)
LEAVES: tuple[Callable[[Net, Tensor, Tensor], Any], ...] = (
    *(
        lambda net, x, y: x * 2,
        lambda net, x, y: x + 1,
        lambda net, x, y: (x > 0).sum(),
        lambda net, x, y: net.mean + 1,
    ),
    *(lambda net, x, y: x * 3, lambda net, x, y: x - y, lambda net, x, y: x.t() + 0, lambda net, x, y: x.exp()),
    *(lambda net, x, y: x, lambda net, x, y: y, lambda net, x, y: net.cache, lambda net, x, y: x.shape[0]),
    *(lambda net, x, y: x[1:], lambda net, x, y: net.cache[1:], lambda net, x, y: y.view(-1), lambda net, x, y: None),
)


def given(net: Net, r: random.Random, memory: Tensor, size: int) -> Tensor:
    """A tensor with `size` rows, in one of many places."""
    kind = r.randrange(8)
    if kind == 0:
        return memory[r.randrange(4) :][:size]
    if kind == 1:
        return memory.view(-1)[1 : 1 + size * WIDTH].view(size, WIDTH)
    if kind == 2:
        return net.cache[:size]
    if kind == 3:
        return torch.randn(WIDTH, size).t()
    if kind == 4:
        return torch.randn(size, 2 * WIDTH)[:, ::2]
    if kind == 5:
        return torch.randn(WIDTH).expand(size, WIDTH) if r.randrange(3) == 0 else torch.randn(size, WIDTH)
    return torch.randn(size, WIDTH) if kind == 6 else memory[:size]


class Here:
    """Code runs by graphs of these, once they are there."""

    def __init__(self) -> None:
        self.graphs: CompiledGraphs | None = None


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    found, plain = Here(), CompiledFxGraph.__call__
    monkeypatch.setattr(graphs, "FASTER", 1e9)  # what is pretended takes longer, and never pays
    monkeypatch.setattr(graphs, "FREE", 1000)

    def call(made: Any, inputs: list[Any]) -> Any:
        if found.graphs is None:
            return plain(made, inputs)
        made.device_types, made.device_idxs = {"cuda"}, {0}
        return found.graphs.run(made, inputs, plain)

    monkeypatch.setattr(CompiledFxGraph, "__call__", call)
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def addresses(inputs: list[Any], code: Code) -> Any:
    extension = native.load()
    assert not isinstance(extension, Unavailable)
    return extension.addresses(inputs, code.static, code.moving, code.changed, -1)


def is_new(one: Tensor, net: nn.Module) -> bool:
    """The module's buffers, which are written in each run, may be among the results."""
    return not one._is_view() and not any(one is state for state in net.state_dict(keep_vars=True).values())


def left(found: list[Any]) -> list[Any]:
    """Without versions."""
    return [one[:4] + one[5:] if isinstance(one, tuple) else one for one in flat(found)]


def agree(seed: int, here: Here) -> Launches:
    torch._dynamo.reset()
    torch.manual_seed(seed)
    r = random.Random(seed)
    net = Net(r).eval()
    dynamic = r.choice([None, True])
    call = torch.compile(lambda x, y: net(x, y), dynamic=dynamic)
    start = copy.deepcopy(net.state_dict())
    sizes = [r.randint(2, 9) for _ in range(3 if dynamic else 1)]
    odd = r.random() < 0.7

    def run() -> list[Any]:
        net.load_state_dict(start)
        torch.manual_seed(seed)
        choose, found, memory = random.Random(seed), list[Any](), torch.randn(ROWS, WIDTH)
        fixed = torch.randn(sizes[0], WIDTH), torch.randn(sizes[0], WIDTH)
        for number in range(CALLS):
            size = choose.choice(sizes)
            x, y = fixed if number % 2 and size == sizes[0] else (torch.randn(size, WIDTH), torch.randn(size, WIDTH))
            if odd and number > 3:
                x, y = (given(net, choose, memory, size) if choose.random() < 0.3 else one for one in (x, y))
            try:
                results = call(x, y)
            except RuntimeError as error:
                found.append(type(error).__name__)
                continue
            found.append([one._version for one in results if isinstance(one, Tensor) and is_new(one, net)])
            found += [*results, *(value.clone() for value in net.state_dict().values()), x.clone(), y.clone()]
            if choose.random() < 0.2 and isinstance(results[0], Tensor) and results[0].is_floating_point():
                results[0].mul_(0.5)  # it may be somebody else's, too
            if choose.random() < 0.2:
                net.weight.mul_(0.9)
            if choose.random() < 0.05:
                net.weight.data = net.weight.data.clone()
        return found

    with torch.no_grad():
        run()  # whatever is compiled anew in the middle
        expected = left(run())
        assert left(run()) == expected, f"program {seed} is not repeatable"
        pretended = Pretended(addresses=addresses)
        here.graphs = pretended.graphs
        try:
            found = left(run())
        finally:
            here.graphs = None
    different = [place for place, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b]
    assert not different, f"program {seed} differs at {different[:5]}: {pretended.graphs.counted}"
    return pretended.graphs.counted


@pytest.mark.timeout(200)
def test_modules_agree_bit_by_bit(here: Here) -> None:
    found = [agree(seed, here) for seed in PROGRAMS]
    assert sum(one.matched > 0 for one in found) >= 2


@pytest.mark.random_long
@pytest.mark.timeout(0)
def test_many_modules_agree_bit_by_bit(here: Here, request: pytest.FixtureRequest) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    draw, served = random.Random(seed), 0
    for _ in range(request.config.getoption("--grape-random")):
        served += agree(draw.randrange(10_000, 1 << 40), here).matched > 0
    print(f"modules that Random({seed}) drew; graphs served {served}")
