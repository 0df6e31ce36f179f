"""`grape.pipeline` on a GPU: stages overlap, and nobody can tell it from the results, the state or the memory."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch._dynamo  # optimizers import it, and it wraps functions of torch for good
from torch import nn

import grape
from grape.errors import UsageError

pytestmark = pytest.mark.gpu

Stages = Sequence[Callable[[Any], Any]]


class Chain(nn.Module):
    """Many small kernels: a launch of them as a graph takes a while and leaves the device idle."""

    def __init__(self, width: int = 64, layers: int = 20) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x / x.abs().amax()


def chains(count: int = 4, device: str = "cuda") -> list[nn.Module]:
    torch.manual_seed(0)
    return [Chain().to(device) for _ in range(count)]


def frames(count: int, rows: int = 16, device: str = "cuda") -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(rows, 64, generator=generator).to(device) for _ in range(count)]


def one_by_one(stages: Stages, samples: Any) -> list[torch.Tensor]:
    results = []
    for sample in samples:
        for stage in stages:
            sample = stage(sample)
        results.append(sample.detach().clone())
    return results


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.detach().reshape(-1).view(torch.uint8), other.detach().reshape(-1).view(torch.uint8))


def all_same(found: Any, expected: Any) -> bool:
    return all(same(one, other) for one, other in zip(found, expected, strict=True))


def trample(generator: torch.Generator) -> None:
    """Take memory that was just freed, and write to it on the current stream."""
    for numel in (16 * 64, 4096, 1 << 16):
        torch.full((numel,), float("nan"), device="cuda")


@pytest.mark.parametrize("depth", [1, 2, 4, 9])
@pytest.mark.parametrize("gradients", [False, True])
def test_kept_results_have_the_bits_of_the_loop(depth: int, gradients: bool) -> None:
    samples = frames(200)
    with torch.set_grad_enabled(gradients):
        expected = one_by_one(chains(), samples)
        p = grape.pipeline(chains(), depth=depth)
        found = list(p(samples))
        found += list(p(samples))
    assert all_same(found, expected * 2)
    assert p.serial is None
    assert all(stage.replays > 200 for stage in p._stages), p
    p.close()
    assert all_same(found, expected * 2)


def test_results_are_right_without_a_synchronization() -> None:
    """The caller's stream waits, so that his next operator reads what is there; and memory is used at once again."""
    samples = frames(150)
    expected = one_by_one(chains(), samples)
    generator = torch.Generator("cuda")
    p = grape.pipeline(chains())
    total = torch.zeros(16, 64, device="cuda", dtype=torch.float64)
    for result in p(samples):
        total += result
        result.fill_(float("nan"))
        del result
        trample(generator)
    wanted = torch.zeros_like(total)
    for one in expected:
        wanted += one
    assert same(total, wanted)


def test_samples_that_are_overwritten_and_let_go_of() -> None:
    expected = one_by_one(chains(), frames(150))
    generator = torch.Generator("cuda")

    def source() -> Iterator[torch.Tensor]:
        buffer = torch.empty(16, 64, device="cuda")
        for number, frame in enumerate(frames(150)):
            if number % 2:
                yield buffer.copy_(frame)
                buffer.fill_(float("nan"))
            else:
                yield frame.clone()
                trample(generator)

    assert all_same(grape.pipeline(chains(), depth=6)(source()), expected)


def test_on_another_stream_of_the_caller() -> None:
    samples = frames(120)
    expected = one_by_one(chains(), samples)
    p = grape.pipeline(chains())
    side = torch.cuda.Stream()
    found = []
    for number, frame in enumerate(samples):
        if number % 10 < 5:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                found += [result.clone() for result in p.push(frame)]
            torch.cuda.current_stream().wait_stream(side)
        else:
            found += [result.clone() for result in p.push(frame)]
    found += p.drain()
    assert all_same(found, expected)


def test_shapes_that_vary() -> None:
    samples = [frame[: 1 + number % 5] for number, frame in enumerate(frames(200))]
    expected = one_by_one(chains(), samples)
    p = grape.pipeline(chains())
    assert all_same(p(samples), expected)
    assert p.serial is None


def test_views_that_share_memory() -> None:
    def first(x: torch.Tensor) -> Any:
        y = x * 2
        return {"all": y, "half": y[:, 1:33], "turned": y.t(), "again": y}

    def second(given: Any) -> torch.Tensor:
        assert given["all"] is given["again"] and given["turned"].stride() == (1, 64)
        given["half"].add_(1)
        return given["all"] @ given["turned"]

    samples = frames(60)
    assert all_same(grape.pipeline([first, second])(samples), one_by_one([first, second], samples))


def test_errors_in_the_middle() -> None:
    number = [0]

    def fails(x: torch.Tensor) -> torch.Tensor:
        if number[0] == 70:
            raise ValueError("sample 70")
        return x + 1

    def counted() -> Iterator[torch.Tensor]:
        for number[0], frame in enumerate(frames(120)):
            yield frame

    expected = one_by_one([*chains(), lambda x: x + 1], frames(120))
    p = grape.pipeline([*chains(), fails])
    source = counted()
    found = []
    with pytest.raises(ValueError, match="sample 70"):
        for result in p(source):
            found.append(result)
    assert all_same(found, expected[:70])
    assert all_same(p(source), expected[71:])


# -- stages with a state -----------------------------------------------------------------------------------------------


class Learner(nn.Module):
    def __init__(self, make: Callable[..., torch.optim.Optimizer]) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64))
        self.make = make

    def begin(self) -> Learner:
        self.optimizer = self.make(self.net.parameters())
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.net(x)
        (made - x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        return made


OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "Adam, capturable": lambda parameters: torch.optim.Adam(parameters, lr=0.01, capturable=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_online_learning(name: str) -> None:
    torch.manual_seed(1)
    fresh = [Learner(OPTIMIZERS[name]).cuda() for _ in range(3)]
    plain, piped = ([copy.deepcopy(one).begin() for one in fresh] for _ in range(2))
    samples = frames(150)
    expected = []
    for sample in samples:
        for stage in plain:
            sample = stage(sample).detach()
        expected.append(sample.clone())
    p = grape.pipeline(piped)
    assert all_same(p(samples), expected)
    assert p.serial is None, p
    for one, other in zip(plain, piped, strict=True):
        assert all_same(other.state_dict().values(), one.state_dict().values())


def test_batch_normalization_and_dropout() -> None:
    def stages() -> list[nn.Module]:
        torch.manual_seed(3)
        return [
            nn.Sequential(Chain(), nn.BatchNorm1d(64)).cuda(),
            nn.Sequential(Chain(), nn.Dropout(0.5)).cuda(),
            nn.Sequential(nn.Dropout(0.2), Chain(), nn.BatchNorm1d(64)).cuda(),
        ]

    plain, piped = stages(), stages()
    torch.manual_seed(5)
    expected = one_by_one(plain, frames(120))
    after = torch.rand(8, device="cuda")
    torch.manual_seed(5)
    p = grape.pipeline(piped)
    assert all_same(p(frames(120)), expected)
    assert same(torch.rand(8, device="cuda"), after)
    assert p.serial is None and [stage.plain is not None for stage in p._stages] == [False, True, True]
    for one, other in zip(plain, piped, strict=True):
        assert all_same(other.state_dict().values(), one.state_dict().values())


class Shared(nn.Module):
    """Memory that stages use which do not come one behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.zeros(16, 64, device="cuda"))
        self.skipped: Any = None
        self.back: Any = torch.zeros(16, 64, device="cuda")


def sharing(kind: str) -> list[Callable[[Any], Any]]:
    torch.manual_seed(0)
    slow, shared = [Chain().cuda() for _ in range(3)], Shared()

    def first(x: torch.Tensor) -> torch.Tensor:
        if kind == "written":
            shared.sum.add_(x)
        if kind == "skipped":
            shared.skipped = x * 2
        return slow[0](x + shared.back if kind == "fed back" else x)

    def last(x: torch.Tensor) -> torch.Tensor:
        x = slow[2](x)
        if kind == "written":
            x = x + shared.sum
        if kind == "skipped":
            x = x + shared.skipped
        if kind == "fed back":
            shared.back = x * 0.5
        return x * 1.0

    return [first, slow[1], last]


@pytest.mark.parametrize("kind", ["written", "skipped", "fed back"])
def test_stages_that_share_what_one_writes(kind: str) -> None:
    samples = frames(150)
    expected = one_by_one(sharing(kind), samples)
    p = grape.pipeline(sharing(kind), depth=4)
    assert all_same(p(samples), expected)
    assert p.serial is not None and "uses what stage" in p.serial


def test_weights_that_are_only_read_are_no_hindrance() -> None:
    (shared,) = chains(1)
    samples = frames(100)
    expected = one_by_one([shared] * 3, samples)
    p = grape.pipeline([shared, lambda x: shared(x), shared])
    assert all_same(p(samples), expected) and p.serial is None


@pytest.mark.parametrize("served", [False, True])
def test_a_late_write_is_no_silent_one(served: bool) -> None:
    slow, on = chains(3), [False]
    sums = torch.zeros(16, 64, device="cuda")
    late = 100 if served else 5

    def first(x: torch.Tensor) -> torch.Tensor:
        if on[0]:
            sums.add_(x)
        return slow[0](x)

    def source() -> Iterator[torch.Tensor]:
        for number, frame in enumerate(frames(150)):
            on[0] = number == late
            yield frame

    p = grape.pipeline([first, slow[1], lambda x: slow[2](x) + sums])
    with pytest.raises(UsageError, match=f"wrote what another stage uses, for the first time, at sample {late}"):
        list(p(source()))
    assert p.serial is not None
    assert len(list(p(frames(60)))) == 60


def test_a_stage_that_begins_to_learn() -> None:
    def stages() -> tuple[list[Callable[[Any], Any]], list[bool], Learner]:
        slow, on, learner = chains(2), [False], Learner(OPTIMIZERS["SGD"]).cuda().begin()
        return [slow[0], lambda x: learner(x) if on[0] else learner.net(x), slow[1]], on, learner

    ends = []
    for piped in (False, True):
        torch.manual_seed(4)
        made, on, learner = stages()

        def source(on: list[bool] = on) -> Iterator[torch.Tensor]:
            for number, frame in enumerate(frames(150)):
                on[0] = number >= 60
                yield frame

        found = list(grape.pipeline(made)(source())) if piped else one_by_one(made, source())
        ends.append([*found, *learner.net.state_dict().values()])
    assert all_same(*ends)


def test_a_stage_that_returns_its_state() -> None:
    def stages() -> list[Callable[[Any], Any]]:
        torch.manual_seed(0)
        sums, slow = torch.zeros(16, 64, device="cuda"), [Chain().cuda() for _ in range(2)]
        return [lambda x: sums.add_(x), *slow, lambda x: x]

    samples = frames(150)
    assert all_same(grape.pipeline(stages(), depth=6)(samples), one_by_one(stages(), samples))


# -- beside others -----------------------------------------------------------------------------------------------------


def test_beside_graphs_of_the_caller() -> None:
    samples = frames(150)
    expected = one_by_one(chains(5), samples)
    *stages, mine = chains(5)
    graphed = grape.graph(mine)
    p = grape.pipeline(stages)
    assert all_same([graphed(result).clone() for result in p(samples)], expected)


def test_two_pipelines_at_once() -> None:
    samples = frames(120)
    expected = one_by_one(chains(6), samples)
    first, second = grape.pipeline(chains(6)[:3]), grape.pipeline(chains(6)[3:])
    assert all_same(second(first(samples)), expected)


def test_inside_of_an_operator_stream() -> None:
    samples = frames(150)
    expected = one_by_one(chains(), [frame * 2 for frame in samples])
    p = grape.pipeline(chains())

    @grape.stream
    def loop() -> list[torch.Tensor]:
        return [result + 0 for result in p(frame * 2 for frame in samples)]

    assert all_same(loop(), expected)
    assert all_same(loop(), expected)
    assert all(stage.replays for stage in p._stages), p


def test_close_gives_memory_back() -> None:
    stages, samples = chains(), frames(100)
    held = []
    for _ in range(6):
        with grape.pipeline(stages) as p:
            list(p(samples))
        del p
        gc.collect()
        torch.cuda.synchronize()
        held.append(torch.cuda.memory_allocated())
    assert held[-1] - held[1] < 4 << 20, held


def test_dropped_on_the_way() -> None:
    samples = frames(100)
    expected = one_by_one(chains(), samples)
    generator = torch.Generator("cuda")
    p = grape.pipeline(chains(), depth=6)
    for number, _ in enumerate(p(samples)):
        if number == 50:
            break
    found = []
    for result in p(samples):
        found.append(result)
        trample(generator)
    assert all_same(found, expected)
    for frame in samples:
        p.push(frame)
    del p
    trample(generator)
    assert all_same(grape.pipeline(chains())(samples), expected)


def test_not_while_the_caller_captures() -> None:
    p = grape.pipeline(chains(2))
    x = frames(1)[0]
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with pytest.raises(UsageError, match="while the current stream is captured"), torch.cuda.graph(graph):
        x.add(1)
        p.push(x)


# -- several devices ---------------------------------------------------------------------------------------------------

LAST = f"cuda:{max(0, torch.cuda.device_count() - 1)}"
"""The same where there is one device."""


def on_devices(stages: Sequence[nn.Module], devices: Sequence[str], samples: Any) -> list[torch.Tensor]:
    results = []
    for sample in samples:
        for stage, device in zip(stages, devices, strict=True):
            sample = stage(sample.to(device))
        results.append(sample.clone())
    return results


@pytest.mark.parametrize("devices", [["cuda:0", LAST], [LAST, "cuda:0"], ["cuda:0", LAST, "cuda:0"]])
def test_stages_on_two_devices(devices: list[str]) -> None:
    samples = frames(200)
    plain = [one.to(device) for one, device in zip(chains(len(devices)), devices, strict=True)]
    expected = on_devices(plain, devices, samples)
    p = grape.pipeline(chains(len(devices)), devices=devices)
    for _ in range(2):
        found = []
        for result in p(samples):
            assert str(result.device) == devices[-1]
            found.append(result.clone())
            result.fill_(float("nan"))
        assert all_same(found, expected)
    assert p.serial is None and all(stage.replays for stage in p._stages), p


def test_samples_of_the_cpu_and_devices_of_parameters() -> None:
    devices = ["cuda:0", LAST]
    samples = frames(100, device="cpu")
    plain = [one.to(device) for one, device in zip(chains(2), devices, strict=True)]
    expected = on_devices(plain, devices, samples)
    assert all_same(grape.pipeline(chains(2), devices=devices)(samples), expected)
    assert all_same(grape.pipeline(plain)(frame.to("cuda:0") for frame in samples), expected)
