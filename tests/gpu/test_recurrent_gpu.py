"""cuDNN's recurrent layers under a stream on a GPU: the bits of eager code, and no cut where they drop nothing.

torch calls cuDNN with a tensor that `set_` makes of all weights at each call, gets the same tensor back, and has the
backward pass change what the forward pass kept. None of that stands in the operators' schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # optimizers import it, and it wraps functions of torch for good
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from benchmarks._numbering import level
from grape.runtime.backends.cuda import driver as cuda_driver
from grape.runtime.backends.cuda.executables.nodes import MEMCPY
from grape.streams import Evidence, Settings, Stream, open_stream
from tests.property.stream_cases import state
from tests.property.stream_programs import flat, needs_compiler

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore")]

SETTINGS = Settings(device="cuda", settled=0, patience=0, price=0, doubt=0)
FORWARD, BACKWARD, SET = "aten::_cudnn_rnn", "aten::_cudnn_rnn_backward", "aten::set_"
BATCH, STEPS, WIDTH, HIDDEN = 8, 12, 32, 64
DEVICE_MEMORY = 2  # among the driver's types of memory

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: nn.LSTM(WIDTH, HIDDEN, batch_first=True),
    "LSTM, two layers": lambda: nn.LSTM(WIDTH, HIDDEN, num_layers=2),
    "LSTM, both directions": lambda: nn.LSTM(WIDTH, HIDDEN, bidirectional=True),
    "LSTM, projected": lambda: nn.LSTM(WIDTH, HIDDEN, proj_size=16),
    "LSTM, no bias": lambda: nn.LSTM(WIDTH, HIDDEN, bias=False),
    "GRU": lambda: nn.GRU(WIDTH, HIDDEN, batch_first=True),
    "GRU, two layers": lambda: nn.GRU(WIDTH, HIDDEN, num_layers=2),
    "RNN": lambda: nn.RNN(WIDTH, HIDDEN),
}


@pytest.fixture(autouse=True)
def the_same_sums_each_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """cuDNN's recurrent layers multiply with cuBLAS, which sums in another order where its workspaces are shared."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2")
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    yield
    torch.cuda.synchronize()


def agrees(function: Callable[[], Any]) -> Evidence:
    """Twice plain, to know that it repeats itself, then under a stream."""
    plains = []
    for _ in range(2):
        level()
        torch.manual_seed(1)
        plains.append(flat([function(), torch.cuda.get_rng_state()]))
    assert plains[0] == plains[1], "the program does not repeat itself in eager code"
    level()
    torch.manual_seed(1)
    stream = open_stream(SETTINGS)
    assert isinstance(stream, Stream), stream
    with stream:
        result = flat([function(), torch.cuda.get_rng_state()])
    evidence = stream.evidence()
    print(evidence)
    different = [place for place, (a, b) in enumerate(zip(result, plains[0], strict=True)) if a != b]
    assert not different, f"differs at {different[:5]} of {len(result)}: {evidence}"
    assert evidence.launched > 0
    return evidence


def cuts(evidence: Evidence) -> dict[str, str]:
    """Operators of recurrent layers that ran as written, and why."""
    return {stop.operator: stop.reason for stop in evidence.stops if stop.operator in (FORWARD, BACKWARD, SET)}


def batches(count: int = 10, steps: int = STEPS) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, steps, BATCH, WIDTH, generator=generator).cuda()


def training(make: Callable[[], nn.Module], *, iterations: int = 60, **options: Any) -> list[Any]:
    torch.manual_seed(0)
    net, xs, losses = make().cuda(), batches(), []
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, **options)
    for i in range(iterations):
        optimizer.zero_grad()
        output, _ = net(xs[i % len(xs)])
        loss = output.tanh().square().mean() + output[-1].mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [losses, state(net, optimizer)]


@pytest.mark.parametrize("layer", LAYERS)
def test_training_with_adam_is_not_cut_by_the_layer(layer: str) -> None:
    evidence = agrees(lambda: training(LAYERS[layer], iterations=150, fused=True))  # the first 30 make the fragments
    assert cuts(evidence) == {}, f"cut by {cuts(evidence)}"
    assert "random numbers" not in evidence.written
    assert evidence.matched > 0.7 * evidence.seen, evidence
    assert evidence.uncaptured == {}


@pytest.mark.parametrize("layer", ["LSTM", "GRU"])
def test_training_with_an_optimizer_whose_numbers_change(layer: str) -> None:
    assert cuts(agrees(lambda: training(LAYERS[layer]))) == {}


def test_dropout_between_layers_draws_forward_only() -> None:
    evidence = agrees(lambda: training(lambda: nn.LSTM(WIDTH, HIDDEN, num_layers=3, dropout=0.4), fused=True))
    assert cuts(evidence) == {FORWARD: "random numbers"}


def test_a_layer_with_dropout_that_is_evaluated_draws_nothing() -> None:
    def loop() -> list[Any]:
        net, xs, out = nn.LSTM(WIDTH, HIDDEN, num_layers=2, dropout=0.4).cuda(), batches(), []
        net(xs[0])[0].sum().backward()  # now there is a state of dropout
        net.eval()
        hidden: Any = None
        with torch.no_grad():
            for i in range(300):
                output, hidden = net(xs[i % len(xs)], hidden)
                out.append(output.mean() if i % 5 else output)
        return [out, hidden]

    assert cuts(agrees(loop)) == {}


def test_layers_of_other_lengths_beside_each_other() -> None:
    """What cuDNN keeps on the host of the lengths of one call is written over by the next."""

    def loop() -> list[Any]:
        torch.manual_seed(0)
        short, long = nn.GRU(WIDTH, HIDDEN).cuda(), nn.LSTM(WIDTH, HIDDEN).cuda()
        few, many, out = batches(steps=5), batches(steps=23), []
        parameters = [*short.parameters(), *long.parameters()]
        for i in range(60):
            loss = short(few[i % 10])[0].square().mean() + long(many[i % 10, :, :4])[0].square().mean()
            out.append([loss.detach(), *torch.autograd.grad(loss, parameters)])
        return out

    assert cuts(agrees(loop)) == {}


def test_packed_sequences_run_as_written() -> None:
    def loop() -> list[Any]:
        torch.manual_seed(0)
        net, xs, out = nn.LSTM(WIDTH, HIDDEN).cuda(), batches(), []
        for i in range(40):
            packed = pack_padded_sequence(xs[i % 10], torch.tensor([12, 11, 11, 9, 7, 4, 2, 1]))
            output, _ = pad_packed_sequence(net(packed)[0])
            loss = (output.tanh() * 0.5).square().mean()
            out.append([loss.detach(), *torch.autograd.grad(loss, list(net.parameters()))])
        return out

    assert cuts(agrees(loop)) == {FORWARD: "a tensor on the CPU", BACKWARD: "a tensor on the CPU"}


def test_under_autocast_weights_are_laid_out_anew_at_each_call() -> None:
    """One tensor for each weight refers to the memory of a result that is pending."""

    def loop() -> list[Any]:
        torch.manual_seed(0)
        net, xs, losses = nn.LSTM(WIDTH, HIDDEN, num_layers=2).cuda(), batches(), []
        optimizer = torch.optim.Adam(net.parameters(), 1e-3, fused=True)
        for i in range(60):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = net(xs[i % 10])[0].float().square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [losses, state(net, optimizer)]

    assert SET not in cuts(agrees(loop))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_captured_layer_copies_nothing_from_the_host(layer: str) -> None:
    """A node that does would read memory at each launch that cuDNN has long given back."""
    net, x = LAYERS[layer]().cuda(), batches(1)[0]
    parameters = list(net.parameters())
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.autograd.grad(net(x)[0].square().mean(), parameters)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        torch.autograd.grad(net(x)[0].square().mean(), parameters)
    driver = cuda_driver.load()
    assert driver is not None
    whole = driver.types.CUgraph(graph.raw_cuda_graph())
    _, count = driver.call("cuGraphGetNodes", whole, 0)
    handles = driver.call("cuGraphGetNodes", whole, count)[0][:count]
    copies = [handle for handle in handles if int(driver.call("cuGraphNodeGetType", handle)) == MEMCPY]
    sources = [int(driver.call("cuGraphMemcpyNodeGetParams", handle).srcMemoryType) for handle in copies]
    assert count > 0
    assert set(sources) <= {DEVICE_MEMORY}, f"{len(copies)} of {count} nodes copy, from memory of types {sources}"
