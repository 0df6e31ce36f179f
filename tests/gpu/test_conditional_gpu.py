"""Conditional bodies on the real driver: the semantics that the tape's tests hold it to, and the traps of a GPU."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good

import grape
from grape.runtime import GraphedFunction
from grape.runtime.accounts import policy
from grape.runtime.accounts.policy import decide
from grape.runtime.backends.cuda.backend import CudaBackend
from grape.runtime.backends.protocol import CaptureFailed
from grape.runtime.predication.costs import calibration
from grape.runtime.predication.costs.calibration import node_costs
from grape.runtime.predication.costs.costs import H200
from tests.property.control_flow_programs import Program, replays

PROGRAMS = 200
ALWAYS_NODES = replace(H200, if_taken_ns=1.0, if_skipped_ns=1.0)
"""Costs by which a conditional node is never the dearer way."""


pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def bare_backend(device: torch.device) -> Iterator[CudaBackend]:
    made = CudaBackend(device, conditional_bodies=True)
    made.prepare_bodies()
    assert made.conditional_bodies, "these tests need cuda.bindings, NVRTC and a driver for CUDA 12.4"
    yield made
    made.close()


@pytest.fixture
def backend(bare_backend: CudaBackend) -> Iterator[CudaBackend]:
    """New tensors of the test lie on its device."""
    with bare_backend.device:
        yield bare_backend


def test_an_if_body_runs_only_where_its_condition_is_true_at_replay(backend: CudaBackend) -> None:
    x, memory = torch.tensor(1.0), torch.zeros(2)

    def body() -> torch.Tensor:
        with backend.if_body(x > 0):
            memory.add_(x)
        return memory * 1

    graph, result = backend.capture(body)
    assert memory.tolist() == [0, 0]
    for value, expected in ((1.0, 1.0), (-1.0, 1.0), (5.0, 6.0), (-7.0, 6.0)):
        x.fill_(value)
        graph.replay()
        assert memory.tolist() == [expected] * 2 == result.tolist()
    assert graph.nodes >= 4


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_bodies_nest(backend: CudaBackend, outer: bool, inner: bool) -> None:
    one, other, memory = torch.tensor(True), torch.tensor(True), torch.zeros(3)

    def body() -> None:
        with backend.if_body(one):
            memory[:1] = 1
            with backend.if_body(other):
                memory[1:2] = 2
            memory[2:] = 3

    graph, _ = backend.capture(body)
    one.fill_(outer)
    other.fill_(inner)
    graph.replay()
    assert memory.tolist() == ([1, 2 * inner, 3] if outer else [0, 0, 0])


@pytest.mark.parametrize("depth", [3, 5, 8])
def test_bodies_nest_deeply(backend: CudaBackend, depth: int) -> None:
    """Also where streams are made within the capture, and cuBLAS meets them there."""
    ways, memory = torch.ones(depth, dtype=torch.bool), torch.zeros(depth)
    eye = torch.eye(32) * 2

    def nest(level: int) -> None:
        with backend.if_body(ways[level]):
            memory[level] = (eye @ eye)[0, 0] + level
            if level + 1 < depth:
                nest(level + 1)

    graph, _ = backend.capture(lambda: nest(0))
    for off in range(depth + 1):
        ways.fill_(True)
        if off < depth:
            ways[off] = False
        memory.zero_()
        graph.replay()
        assert memory.tolist() == [4 + level if level < off else 0 for level in range(depth)]


@pytest.mark.parametrize("limit", [0, 1, 7])
def test_a_while_body_runs_until_it_clears_its_condition(backend: CudaBackend, limit: int) -> None:
    bound, step = torch.tensor(limit), torch.tensor(2)

    def body() -> torch.Tensor:
        count, on = torch.zeros_like(bound), bound > 0
        kept = step * 3
        with backend.while_body(on):
            count.add_(kept)
            del kept  # its memory must not be used again before the last iteration
            scratch = count * 0 + 99
            torch.lt(count, bound * 6 + scratch - 99, out=on)
        return count

    graph, count = backend.capture(body)
    for _ in range(2):
        graph.replay()
        assert count.item() == 6 * limit


def test_a_loop_that_never_ends_is_ended_while_replays_are_bounded(backend: CudaBackend) -> None:
    """Also the inner one of two, in each iteration of the outer one. Afterwards loops run as long as they want."""
    ends, rounds = torch.tensor(False), torch.tensor(2)

    def body() -> tuple[torch.Tensor, torch.Tensor]:
        left, inner, on = rounds.clone(), torch.zeros_like(rounds), rounds > 0
        outer = torch.zeros_like(rounds)
        with backend.while_body(on):
            outer.add_(1)
            again = rounds > 0
            with backend.while_body(again):
                inner.add_(1)
                again.copy_(torch.logical_not(ends))
            left.sub_(1)
            torch.gt(left, 0, out=on)
        return outer, inner

    graph, (outer, inner) = backend.capture(body)
    for limit, found in ((5, [2, 10]), (1, [1, 1])):
        with backend.bounded(limit) as endless:
            graph.replay()
            assert endless() and [outer.item(), inner.item()] == found
    ends.fill_(True)
    with backend.bounded(5) as endless:
        graph.replay()
        assert not endless() and [outer.item(), inner.item()] == [2, 2]
    rounds.fill_(300)
    graph.replay()
    assert [outer.item(), inner.item()] == [300, 300]


def test_memory_that_loops_in_bodies_read_is_not_reused(backend: CudaBackend) -> None:
    """All of it in the pool of the bodies, where only what the capture holds keeps it."""
    x, rounds = torch.ones(4096), torch.tensor(3)

    def body() -> torch.Tensor:
        total = torch.zeros(4096)
        with backend.if_body(rounds > 0):
            kept, left, on = x * 3, rounds.clone(), rounds > 0
            with backend.while_body(on):
                inner, again = torch.zeros_like(rounds), rounds > 0
                with backend.while_body(again):
                    total.add_(kept)
                    del kept
                    for _ in range(4):
                        torch.full((4096,), 77.0)
                    inner.add_(1)
                    torch.lt(inner, 2, out=again)
                for _ in range(4):
                    torch.full((4096,), 55.0)
                left.sub_(1)
                torch.gt(left, 0, out=on)
        return total

    graph, total = backend.capture(body)
    for count in (3, 1, 5):
        rounds.fill_(count)
        graph.replay()
        assert total.unique().tolist() == [3.0 * 2 * count]


def test_a_while_body_with_if_bodies(backend: CudaBackend) -> None:
    x = torch.tensor(27)

    def collatz() -> torch.Tensor:
        value, steps = x.clone(), torch.zeros_like(x)
        on = value != 1
        with backend.while_body(on):
            odd = value % 2 == 1
            with backend.if_body(odd):
                value.mul_(3).add_(1)
            with backend.if_body(odd.logical_not()):
                value.floor_divide_(2)
            steps.add_(1)
            torch.ne(value, 1, out=on)
        return steps

    graph, steps = backend.capture(collatz)
    for start, expected in ((27, 111), (1, 0), (6, 8)):
        x.fill_(start)
        graph.replay()
        assert steps.item() == expected


def _powers(backend: CudaBackend) -> tuple[Callable[[], torch.Tensor], Callable[[int], torch.Tensor], torch.Tensor]:
    """A loop of products with an allocation in each, captured and eager."""
    torch.manual_seed(0)
    matrix = (torch.randn(256, 256) / 16).half()
    x, rounds = torch.randn(256, 256).half(), torch.tensor(1)

    def eager(count: int) -> torch.Tensor:
        value = x.clone()
        for _ in range(count):
            value = torch.tanh(value @ matrix) + torch.ones(256, 256, dtype=torch.half)
        return value

    def captured() -> torch.Tensor:
        value, left, on = x.clone(), rounds.clone(), rounds > 0
        with backend.while_body(on):
            value.copy_(torch.tanh(value @ matrix) + torch.ones(256, 256, dtype=torch.half))
            left.sub_(1)
            torch.gt(left, 0, out=on)
        return value * 1

    return captured, eager, rounds


def test_a_while_body_with_products_and_allocations(backend: CudaBackend) -> None:
    captured, eager, rounds = _powers(backend)
    graph, out = backend.capture(captured)
    for count in (1, 0, 4, 17):
        rounds.fill_(count)
        graph.replay()
        assert torch.equal(out, eager(count)), count


def test_eager_work_between_replays_does_no_harm_and_comes_to_none(backend: CudaBackend) -> None:
    captured, eager, rounds = _powers(backend)
    graph, out = backend.capture(captured)
    rounds.fill_(5)
    wanted = eager(5)
    held = []
    for turn in range(40):
        held.append(torch.full((256, 256), float(turn), dtype=torch.half))
        filled = [torch.full((256 * 256,), float("nan"), dtype=torch.half) for _ in range(8)]
        del filled
        graph.replay()
        assert torch.equal(out, wanted)
    assert [one.unique().tolist() for one in held] == [[float(turn)] for turn in range(40)]


def test_pools_survive_collection_and_an_emptied_cache(backend: CudaBackend) -> None:
    captured, eager, rounds = _powers(backend)
    graph, out = backend.capture(captured)
    rounds.fill_(3)
    for _ in range(3):
        gc.collect()
        torch.cuda.empty_cache()
        junk = [torch.full((1 << 20,), float("nan")) for _ in range(16)]
        graph.replay()
        assert torch.equal(out, eager(3))
        del junk
    before = backend.memory().pool_bytes
    assert before > 0
    other, result = backend.capture(captured)
    other.replay()
    graph.replay()
    assert torch.equal(result, eager(3)) and torch.equal(out, eager(3))


def test_a_body_that_is_not_taken_leaves_memory_untouched(backend: CudaBackend) -> None:
    way = torch.tensor(False)
    tensors = [torch.full((1000,), 7.0), torch.full((3, 3), -0.0), torch.arange(10)]
    before = [tensor.clone() for tensor in tensors]

    def body() -> None:
        with backend.if_body(way):
            for tensor in tensors:
                tensor.zero_()
                tensor.add_(1)
            torch.add(tensors[0], 5, out=tensors[0])
            tensors[1].copy_(tensors[1] @ tensors[1])

    graph, _ = backend.capture(body)
    graph.replay()
    assert all(torch.equal(one, other) for one, other in zip(tensors, before, strict=True))
    way.fill_(True)
    graph.replay()
    assert not any(torch.equal(one, other) for one, other in zip(tensors, before, strict=True))


def test_many_bodies(backend: CudaBackend) -> None:
    ways, memory = torch.zeros(128, dtype=torch.bool), torch.zeros(128)

    def body() -> None:
        for index in range(128):
            with backend.if_body(ways[index]):
                memory[index] += 1

    graph, _ = backend.capture(body)
    expected = torch.zeros(128)
    for turn in range(10):
        chosen = (torch.arange(128) * 7 + turn) % 3 == 0
        ways.copy_(chosen)
        graph.replay()
        expected += chosen
    assert torch.equal(memory, expected)


def test_random_operators_are_refused_in_a_body(backend: CudaBackend) -> None:
    x = torch.ones(4)

    def body() -> None:
        with backend.if_body(x[0] > 0):
            x.bernoulli_(0.5)

    def swallowed() -> None:
        with suppress(CaptureFailed):
            body()

    for attempt in (body, swallowed):
        with pytest.raises(CaptureFailed, match=r"draws random numbers in a conditional body"):
            backend.capture(attempt)
        assert x.tolist() == [1, 1, 1, 1]
    torch.manual_seed(1)
    first = torch.rand(3).tolist()
    torch.manual_seed(1)
    assert torch.rand(3).tolist() == first

    def attention() -> torch.Tensor:
        q = x.reshape(1, 1, 2, 2)
        with backend.if_body(x[0] > 0):
            return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    graph, result = backend.capture(attention)
    graph.replay()
    assert result.flatten().tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    "broken",
    [
        lambda x: 1 / 0,
        lambda x: x.sum().item(),
        lambda x: torch.nonzero(x),
        lambda x: torch.cuda.synchronize(),
        lambda x: x.cpu(),
    ],
    ids=["exception", "item", "nonzero", "synchronize", "cpu"],
)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_failure_in_a_body_leaves_everything_usable(
    backend: CudaBackend, broken: Callable[[torch.Tensor], Any], depth: int
) -> None:
    x = torch.randn(16, 16)

    def body(level: int = 0) -> None:
        kinds = backend.if_body, backend.while_body
        with kinds[level % 2](x[0, 0] > -100):
            torch.ones(4096).add_(1)
            broken(x) if level + 1 == depth else body(level + 1)

    stream = torch.cuda.current_stream()
    with pytest.raises(Exception, match=r"captur|division|waits for"):
        backend.capture(body)
    assert torch.cuda.current_stream() == stream and not torch.cuda.is_current_stream_capturing()
    torch.manual_seed(3)
    assert torch.rand(3).isfinite().all()
    # Allocations go where they belong again: eager memory is no part of a pool.
    pool = backend.memory().pool_bytes
    held = torch.empty(64 << 20, dtype=torch.uint8)
    assert backend.memory().pool_bytes == pool
    del held
    captured, eager, rounds = _powers(backend)
    graph, out = backend.capture(captured)
    rounds.fill_(4)
    graph.replay()
    assert torch.equal(out, eager(4))


def test_an_exception_that_the_program_catches_outside_of_its_body_is_refused(backend: CudaBackend) -> None:
    x = torch.ones(4)

    def body() -> None:
        try:
            with backend.if_body(x[0] > 0):
                x.add_(1)
                raise KeyError
        except KeyError:
            x.mul_(2)

    with pytest.raises(CaptureFailed, match="caught outside"):
        backend.capture(body)
    assert x.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("wrong", ["shape", "dtype", "device"])
def test_a_condition_is_one_bool(backend: CudaBackend, wrong: str) -> None:
    preds = {
        "shape": torch.ones(1, dtype=torch.bool),
        "dtype": torch.tensor(1),
        "device": torch.tensor(True, device="cpu"),
    }

    def body() -> None:
        with backend.if_body(preds[wrong]):
            pass

    with pytest.raises(CaptureFailed, match="bool tensor without dimensions"):
        backend.capture(body)


def test_a_body_outside_of_a_capture_is_refused(backend: CudaBackend) -> None:
    with pytest.raises(CaptureFailed, match="outside of a capture"), backend.if_body(torch.tensor(True)):
        pass


def test_a_graph_with_bodies_has_an_executable_of_its_own(device: torch.device) -> None:
    backend = CudaBackend(device)
    backend.prepare_bodies()
    x = torch.tensor(2.0, device=device)

    def body() -> torch.Tensor:
        y = x * 1
        with backend.if_body(x > 0):
            y.add_(10)
        return y * 1

    graph: Any
    graph, out = backend.capture(body)
    assert graph.topology is None
    executable = graph.instantiate()
    for value, expected in ((2.0, 12.0), (-2.0, -2.0)):
        x.fill_(value)
        executable.replay()
        assert out.item() == expected
    executable.release()
    backend.close()


# -- through the whole runtime ---------------------------------------------------------------------------------------


@pytest.fixture
def capture_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "decide", lambda estimate: replace(decide(estimate), action="capture"))
    monkeypatch.setattr(policy, "FEW", 1)


def test_a_region_with_a_branch_and_a_loop(bare_backend: CudaBackend, capture_at_once: None) -> None:
    torch.manual_seed(0)
    device = bare_backend.device
    weight = torch.randn(64, 64, device=device) / 16

    def step(x: torch.Tensor) -> torch.Tensor:
        x = grape.cond(x.sum() > 0, lambda x: torch.tanh(x @ weight), lambda x: x - 1, (x,))
        (x,) = grape.while_loop(lambda x: x.abs().amax() > 1, lambda x: (x * 0.5,), (x,))
        return x + 1

    graphed: Any = GraphedFunction(step, backend=bare_backend, tolerance=0.0)
    with patch.dict(calibration._known, {device: ALWAYS_NODES}):
        for turn in range(60):
            x = torch.randn(8, 64, device=device) + (turn % 5 - 2)
            assert torch.equal(graphed(x), step(x)), turn
    evidence = graphed.evidence()
    assert evidence is not None and evidence.refused is None and evidence.replays > 20
    graphed.release()


@pytest.mark.parametrize("costs", ["nodes", "measured"])
def test_random_programs_are_identical_or_refused(
    backend: CudaBackend, costs: str, pytestconfig: pytest.Config
) -> None:
    """The generator of the tape's test, compared with the plain program on the same GPU."""
    programs = int(pytestconfig.getoption("--grape-random")) or PROGRAMS
    outcomes: Counter[str] = Counter()
    chosen = ALWAYS_NODES if costs == "nodes" else node_costs(backend)
    with patch.dict(calibration._known, {backend.device: chosen}):
        for seed in range(programs):
            try:
                outcomes += replays(Program(seed).source(), seed, backend)
            except RuntimeError as error:  # a host read that the driver, and not a lowering, has refused
                outcomes[f"refused: {str(error).splitlines()[0]}"] += 1
    refused = {name: number for name, number in outcomes.items() if name.startswith("refused")}
    print({name: number for name, number in outcomes.items() if name not in refused})
    print(Counter(refused).most_common(8))
    assert outcomes["identical"] > 0.6 * programs, outcomes.most_common(8)
