"""On a GPU code of `torch.compile` is launched as CUDA graphs, and leaves what it left without them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.compile_fx  # it wraps functions of torch for good
from torch import Tensor, nn

from grape.streams import Evidence, Settings, Stream, open_stream, session
from tests.property.stream_programs import flat, needs_compiler

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(400)]

torch._dynamo.mutation_guard.install_generation_tagging_init()  # the first compilation does it, for good


@pytest.fixture(autouse=True)
def from_the_beginning() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch.cuda.synchronize()
    session.settle()
    torch._dynamo.reset()


def net(layers: int = 4) -> nn.Module:
    torch.manual_seed(0)
    parts = [part for _ in range(layers) for part in (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))]
    return nn.Sequential(*parts).cuda().eval()


def compiled(module: nn.Module, **options: Any) -> Callable[..., Any]:
    return torch.compile(lambda *given: module(*given), **options)


def is_served(evidence: Evidence) -> bool:
    """Or it was tried, and was no faster on this host: code of few kernels on a fast one."""
    return evidence.matched > 0 or any("no faster" in why for why in evidence.written)


def agrees(loop: Callable[[], Any]) -> Evidence:
    """Plain, then under a stream."""
    torch.manual_seed(1)
    expected = flat(loop())
    stream = open_stream(Settings(device="cuda"))
    assert isinstance(stream, Stream), stream
    with stream:
        torch.manual_seed(1)
        found = loop()
    assert flat(found) == expected
    return stream.evidence()


def test_calls_are_replayed_and_results_kept() -> None:
    call, inputs = compiled(net()), torch.randn(40, 8, 64, device="cuda")

    def loop() -> list[Tensor]:
        with torch.no_grad():
            return [call(one) for one in inputs]

    evidence = agrees(loop)
    assert is_served(evidence)
    assert not evidence.matched or (evidence.matched >= 0.8 * evidence.seen and evidence.captured == 1)


def test_parameters_that_change_are_read() -> None:
    module = net()
    call, x = compiled(module), torch.randn(8, 64, device="cuda")
    start = copy.deepcopy(module.state_dict())

    def loop() -> list[Tensor]:
        found = []
        with torch.no_grad():
            module.load_state_dict(start)
            for number in range(24):
                found.append(call(x))
                if number % 3 == 0:
                    for parameter in module.parameters():
                        parameter.mul_(1.01)
        return found

    assert is_served(agrees(loop))


def test_a_switch_of_how_products_are_computed() -> None:
    torch.manual_seed(0)
    weight = torch.randn(512, 512, device="cuda")
    call, x = torch.compile(lambda given: (given @ weight).relu()), torch.randn(512, 512, device="cuda")
    conv = nn.Conv2d(16, 16, 3).cuda()
    other, images = compiled(conv), torch.randn(4, 16, 32, 32, device="cuda")

    def loop() -> list[Tensor]:
        found = []
        with torch.no_grad():
            for number in range(32):
                torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = number % 16 >= 8
                found += [call(x), other(images)]
        return found

    try:
        agrees(loop)
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, False


def test_running_statistics_are_updated_once_a_call() -> None:
    module = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8)).cuda().train()
    call, inputs = compiled(module), torch.randn(24, 16, 32, device="cuda")
    start = copy.deepcopy(module.state_dict())

    def loop() -> list[Any]:
        module.load_state_dict(start)
        with torch.no_grad():
            found: list[Any] = [call(one) for one in inputs]
        return [*found, *(value.clone() for value in module.state_dict().values())]

    agrees(loop)


def test_layers_that_share_their_code() -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(6)).cuda().eval()
    calls = [torch.compile(lambda x, layer=layer: layer(x)) for layer in layers]
    inputs = torch.randn(20, 4, 32, device="cuda")

    def loop() -> list[Tensor]:
        found = []
        with torch.no_grad():
            for x in inputs:
                for call in calls:
                    x = call(x)
                found.append(x)
        return found

    assert is_served(agrees(loop))


def test_random_numbers_are_drawn_anew() -> None:
    call, x = torch.compile(lambda given: nn.functional.dropout(given, 0.5, True) * 2), torch.ones(64, device="cuda")

    def loop() -> list[Tensor]:
        return [call(x) for _ in range(12)]

    assert not agrees(loop).captured


def test_sizes_that_change_and_slices() -> None:
    call, x = compiled(net(), dynamic=True), torch.randn(32, 64, device="cuda")

    def loop() -> list[Tensor]:
        with torch.no_grad():
            return [call(x[start : start + size]) for _ in range(8) for start, size in ((0, 4), (3, 8), (5, 8))]

    assert is_served(agrees(loop))


def test_results_that_are_views_of_inputs() -> None:
    call = torch.compile(lambda given: (given.view(-1)[2:], given + 1, given.t()))
    inputs = torch.randn(12, 4, 4, device="cuda")

    def loop() -> list[Any]:
        with torch.no_grad():
            return [call(one) for one in inputs]

    agrees(loop)


def test_training_and_inference_in_turns() -> None:
    module = net()
    call, inputs = compiled(module), torch.randn(16, 8, 64, device="cuda")
    start = copy.deepcopy(module.state_dict())

    def loop() -> list[Any]:
        module.load_state_dict(start)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        found: list[Any] = []
        for one in inputs:
            optimizer.zero_grad()
            loss = call(one).square().mean()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                found += [loss.detach(), call(one)]
        return found

    assert is_served(agrees(loop))


def test_graphs_of_torchs_own_are_left_to_it() -> None:
    call, inputs = compiled(net(), mode="reduce-overhead"), torch.randn(12, 8, 64, device="cuda")

    def loop() -> list[Tensor]:
        with torch.no_grad():
            return [call(one).clone() for one in inputs]

    assert "a CUDA graph of torch's already" in agrees(loop).written


def test_operators_between_compiled_calls() -> None:
    call, inputs = compiled(net()), torch.randn(60, 8, 64, device="cuda")

    def loop() -> list[Tensor]:
        found = []
        with torch.no_grad():
            state = torch.zeros(8, 64, device="cuda")
            for one in inputs:
                state = torch.tanh(call(one + state) * 0.5) + one.mean()
                found.append(state)
        return found

    assert is_served(agrees(loop))


def test_code_that_waits_for_the_device_cannot_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed captures leave nothing behind: what comes later is captured."""
    monkeypatch.setattr(torch._dynamo.config, "capture_dynamic_output_shape_ops", True)
    monkeypatch.setattr(torch._dynamo.config, "capture_scalar_outputs", True)
    waits = torch.compile(lambda x: (x[x > 0].sin() + 1).sum() + x.max().item())
    call, inputs = compiled(net()), torch.randn(20, 8, 64, device="cuda")

    def loop() -> list[Tensor]:
        with torch.no_grad():
            first = [waits(one) for one in inputs]
            return [*first, *(call(one) for one in inputs)]

    evidence = agrees(loop)
    assert evidence.captured == 1 or (not evidence.captured and is_served(evidence))


def test_graphs_beyond_the_memory_budget() -> None:
    call, inputs = compiled(net()), torch.randn(12, 8, 64, device="cuda")

    def loop() -> list[Tensor]:
        with torch.no_grad():
            return [call(one) for one in inputs]

    expected = flat(loop())
    stream = open_stream(Settings(device="cuda", budget=0))
    assert isinstance(stream, Stream), stream
    with stream:
        assert flat(loop()) == expected
    assert not stream.evidence().matched and stream.evidence().bytes == 0


def test_inputs_that_begin_at_other_places() -> None:
    """cuBLAS chooses what it does by where its operands begin."""
    torch.manual_seed(0)
    weight = torch.randn(64, 64, device="cuda", dtype=torch.float16)
    call, memory = torch.compile(lambda x: (x @ weight).float()), torch.randn(8192, device="cuda", dtype=torch.float16)

    def loop() -> list[Tensor]:
        begins = [0] * 6 + [1, 2, 8, 32, 0] * 6
        return [call(memory[begin : begin + 2048].view(32, 64)) for begin in begins]

    assert is_served(agrees(loop))


def test_an_input_in_memory_that_the_code_writes() -> None:
    module = nn.Module().cuda()
    module.register_buffer("state", torch.zeros(8, 8, device="cuda"))

    def write(x: Tensor) -> Tensor:
        module.state.add_(1)
        return x.cos().sum(0) + module.state.mean()

    call, other = torch.compile(write), torch.randn(8, 8, device="cuda")

    def loop() -> list[Tensor]:
        module.state.zero_()
        return [call(module.state[:] if number % 5 == 4 else other) for number in range(20)]

    with torch.no_grad():
        agrees(loop)


def test_state_that_inference_mode_made() -> None:
    with torch.inference_mode():
        state = torch.zeros(64, device="cuda")
    torch._dynamo.mark_static_address(state)

    def write(x: Tensor) -> Tensor:
        state.add_(x)
        return state * 2

    call, x = torch.compile(write), torch.ones(64, device="cuda")

    def loop() -> list[Tensor]:
        with torch.inference_mode():
            state.zero_()
            return [call(x) for _ in range(12)]

    agrees(loop)


def test_large_inputs_are_not_copied_for_one_kernel() -> None:
    """The device has more to do with the copies than with the code."""
    call, x = torch.compile(lambda given: given * 2 + 1), torch.randn(1 << 27, device="cuda")

    def loop() -> list[Tensor]:
        return [call(x)[:8].clone() for _ in range(12)]

    evidence = agrees(loop)
    assert not evidence.bytes, evidence  # how long the code takes is measured with memory that it has to ask for


def test_a_profiler_sees_each_kernel() -> None:
    call, x = compiled(net()), torch.randn(8, 64, device="cuda")

    def kernels() -> int:
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.no_grad(), torch.profiler.profile(activities=activities) as profile:
            call(x)
            torch.cuda.synchronize()
        return sum(one.device_type == torch.autograd.DeviceType.CUDA for one in profile.events())

    with torch.no_grad():
        call(x)
    expected = kernels()
    stream = open_stream(Settings(device="cuda"))
    assert isinstance(stream, Stream), stream
    with stream, torch.no_grad():
        for _ in range(12):
            call(x)
        assert kernels() == expected
    assert is_served(stream.evidence())


def test_a_stream_of_the_persons_inside_of_compiled_code() -> None:
    side = torch.cuda.Stream()

    def forked(x: Tensor) -> Tensor:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
        torch.cuda.current_stream().wait_stream(side)
        return y + 1

    call, inputs = torch.compile(forked), torch.randn(16, 64, device="cuda")
    agrees(lambda: [call(one) for one in inputs])


def test_memory_comes_back_with_the_code() -> None:
    stream = open_stream(Settings(device="cuda"))
    assert isinstance(stream, Stream), stream
    x, held = torch.randn(1024, 1024, device="cuda"), []
    with stream, torch.no_grad():
        for number in range(6):
            call = torch.compile(lambda given, number=number: torch.relu(given @ given) + number)
            for _ in range(6):
                call(x)
            del call
            torch._dynamo.reset()
            held.append(stream.evidence().bytes)
    assert max(held) <= 3 * min(filter(None, held), default=0), held


def test_workspaces_that_torch_takes_back() -> None:
    """Graphs know where cuBLAS's workspace lies, which torch's own graphs have it give back."""
    call, x = compiled(net()), torch.randn(8, 64, device="cuda")

    def loop() -> list[Tensor]:
        found = []
        with torch.no_grad():
            for number in range(24):
                found.append(call(x))
                if number % 8 == 7:
                    torch._C._cuda_clearCublasWorkspaces()
                    found.append(torch.zeros(1 << 23, device="cuda"))
        return found

    assert is_served(agrees(loop))
