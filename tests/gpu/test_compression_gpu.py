"""Executables of many shapes on the real driver: updated, refused or evicted, a launch does what eager does."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from torch import nn

from grape.runtime import GraphedFunction
from grape.runtime.accounts import policy
from grape.runtime.accounts.policy import decide
from grape.runtime.backends.cuda.backend import CudaBackend
from grape.runtime.backends.cuda.driver import load
from grape.runtime.backends.cuda.executables.executable import CudaExecutable
from grape.runtime.backends.cuda.executables.instantiate import Instantiation
from grape.runtime.backends.cuda.executables.nodes import KERNEL
from grape.runtime.backends.cuda.executables.updatable import UpdatableCudaGraph
from grape.runtime.compression.residency import Limits
from tests.unit.plain_store import PlainStore

WIDTH = 64


pytestmark = pytest.mark.usefixtures("without_gradients")


def write_nodes(executable: CudaExecutable, changes: Sequence[tuple[int, bytes]], attachment: object) -> bool:
    return executable.update_prepared([executable.prepare(changes)], attachment)


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def backend(device: torch.device) -> Iterator[CudaBackend]:
    made = CudaBackend(device)
    assert made.updatable, "these tests need cuda.bindings"
    yield made
    made.close()


class Shape:
    """One length of a small network: where its input lies, its graph, where its result lies."""

    def __init__(self, backend: CudaBackend, step: Callable[[torch.Tensor], torch.Tensor], length: int) -> None:
        self.step = step
        self.place = torch.zeros(length, WIDTH, device=backend.device)
        step(self.place)  # what a library does once, it does outside of a capture
        graph, self.out = backend.capture(partial(step, self.place))
        assert isinstance(graph, UpdatableCudaGraph)
        self.graph = graph
        self.turn = 0

    def refill(self) -> torch.Tensor:
        """New input; what the network makes of it."""
        self.turn += 1
        count = self.place.numel()
        numbers = torch.arange(count, device=self.place.device, dtype=torch.float32)
        self.place.copy_(torch.sin(numbers * 0.37 + self.turn).view_as(self.place))
        return self.step(self.place)

    def check(self, launch: Callable[[], None]) -> None:
        wanted = self.refill()
        self.out.fill_(float("nan"))
        launch()
        assert torch.equal(self.out, wanted), (tuple(self.place.shape), self.turn)

    def all_nodes(self) -> list[tuple[int, bytes]]:
        return list(enumerate(self.graph.parameters()))


def network(device: torch.device, layers: int = 3) -> Callable[[torch.Tensor], torch.Tensor]:
    torch.manual_seed(0)
    weights = [torch.randn(WIDTH, WIDTH, device=device) / 8 for _ in range(layers)]

    def step(x: torch.Tensor) -> torch.Tensor:
        counts = torch.zeros(x.shape[0], device=x.device)  # a memset, or a fill
        for weight in weights:
            x = nn.functional.layer_norm((x @ weight).relu(), (WIDTH,))
            counts += (x > 0).sum(dim=1)
        return x.clone() + counts[:, None]

    return step


def made(shape: Shape) -> CudaExecutable:
    executable = shape.graph.instantiate()
    assert isinstance(executable, CudaExecutable)
    return executable


def alike(shapes: list[Shape]) -> list[Shape]:
    """Those of the most common topology."""
    by_topology: dict[str, list[Shape]] = {}
    for shape in shapes:
        topology = shape.graph.topology
        assert topology is not None
        by_topology.setdefault(topology, []).append(shape)
    return max(by_topology.values(), key=len)


def test_parameters_can_be_read_and_two_captures_of_one_shape_are_alike(backend: CudaBackend) -> None:
    step = network(backend.device)
    one, again = (Shape(backend, step, 48) for _ in range(2))
    assert one.graph.topology is not None and one.graph.topology == again.graph.topology
    assert len(one.graph.parameters()) == one.graph.nodes > 8
    assert one.graph.host_bytes > 0 and one.graph.nbytes == 0


def launched_ms(executable: CudaExecutable, launches: int = 20) -> float:
    """Of one launch among several in a row; the shortest of five times."""
    found = []
    for _ in range(5):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)  # the host is ahead: its time is not in it
        start.record()
        for _ in range(launches):
            executable.replay()
        stop.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(stop) / launches)
    return min(found)


def test_an_executable_that_is_updated_stays_fast(backend: CudaBackend) -> None:
    """The driver leaves one slow that was updated before it was ever on the device."""
    step = network(backend.device, layers=30)
    first, second, *_ = alike([Shape(backend, step, length) for length in range(16, 80, 8)])

    def updated(executable: CudaExecutable) -> float:
        for shape in (second, first):
            assert write_nodes(executable, shape.all_nodes(), shape.graph.attachment)
        return launched_ms(executable)

    with patch.object(Instantiation, "_uploaded", lambda _made, handle: handle):
        unlike = made(first)
    fresh, slow, fast = launched_ms(made(first)), updated(unlike), updated(made(first))
    assert fast < 1.06 * fresh, (fast, fresh, slow)


def products(device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    """Matrix products in half precision, which libraries launch in clusters from compute capability 9 on, with other
    kernels for each length."""
    torch.manual_seed(0)
    wide, narrow = (torch.randn(a, b, device=device).half() / 16 for a, b in ((WIDTH, 2048), (2048, WIDTH)))
    bias = torch.randn(2048, device=device).half()

    def step(x: torch.Tensor) -> torch.Tensor:
        half = x.half().repeat(8, 1)
        for _ in range(3):
            half = torch.addmm(bias, half, wide).relu() @ narrow
        return half[: x.shape[0]].float()

    return step


def test_products_in_clusters_share_where_clusters_are_alike(backend: CudaBackend) -> None:
    """Each pair of a class, one after the other: kernels of the second in the clusters of the first."""
    if torch.cuda.get_device_capability(backend.device) < (9, 0):
        pytest.skip("no clusters before compute capability 9")
    step = products(backend.device)
    shapes = [Shape(backend, step, length) for length in range(40, 360, 10)]
    by_topology: dict[str | None, list[Shape]] = {}
    for shape in shapes:
        by_topology.setdefault(shape.graph.topology, []).append(shape)
    assert 1 < len(by_topology) < len(shapes) / 2, "sizes of clusters differ, but not everywhere"
    for members in by_topology.values():
        executable = made(members[0])
        for first in members:
            for second in members:
                assert write_nodes(executable, first.all_nodes(), first.graph.attachment)
                first.check(executable.replay)
                assert executable.update_from(second.graph)
                second.check(executable.replay)
        executable.release()


@pytest.mark.parametrize("way", ["whole", "nodes"])
def test_one_executable_serves_many_lengths(backend: CudaBackend, way: str) -> None:
    step = network(backend.device)
    shapes = alike([Shape(backend, step, length) for length in range(32, 96, 4)])
    assert len(shapes) >= 4
    executable = made(shapes[0])
    for shape in [*shapes, *reversed(shapes)]:
        done = (
            executable.update_from(shape.graph)
            if way == "whole"
            else write_nodes(executable, shape.all_nodes(), shape.graph.attachment)
        )
        assert done
        for _ in range(2):
            shape.check(executable.replay)
    executable.release()


@pytest.mark.parametrize("way", ["exported", "bindings"])
def test_prepared_writes_serve_all_executables_of_their_graph(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Prepared once on one executable, issued in any order to two, by the driver's own function or by the bindings."""
    step = network(backend.device)
    shapes = alike([Shape(backend, step, length) for length in range(32, 96, 4)])
    executables = [made(shapes[0]), made(shapes[0])]
    writer: Any = executables[0]._executables.writer
    assert writer.set_kernel != writer._through_bindings, "the driver's own function cannot be had"
    if way == "bindings":
        monkeypatch.setattr(writer, "set_kernel", writer._through_bindings)
    prepared = [executables[0].prepare(shape.all_nodes()) for shape in shapes]
    attachments = [shape.graph.attachment for shape in shapes]
    for shape in shapes[1:]:
        shape.graph.release()
    gc.collect()
    chances = random.Random(2)
    for _ in range(60):
        number, executable = chances.randrange(len(shapes)), chances.choice(executables)
        assert executable.update_prepared([prepared[number]], attachments[number])
        shapes[number].check(executable.replay)
    for executable in executables:
        executable.release()


def test_parameters_serve_when_their_graph_is_gone(backend: CudaBackend) -> None:
    step = network(backend.device)
    shapes = alike([Shape(backend, step, length) for length in range(32, 96, 4)])
    executable = made(shapes[0])
    nodes, attachments = [one.all_nodes() for one in shapes], [one.graph.attachment for one in shapes]
    for shape in shapes:
        shape.graph.release()
    gc.collect()
    for shape, changes, attachment in zip(shapes, nodes, attachments, strict=True):
        assert write_nodes(executable, changes, attachment)
        shape.check(executable.replay)
    executable.release()


def test_a_refused_update_leaves_the_executable_and_no_error(backend: CudaBackend) -> None:
    one = Shape(backend, network(backend.device), 48)
    other = Shape(backend, network(backend.device, layers=2), 48)
    assert one.graph.topology != other.graph.topology
    executable = made(one)
    assert not executable.update_from(other.graph)
    driver = load()
    assert driver is not None
    # What the fingerprint would have kept from the device: it refuses, and nothing of that is left anywhere.
    assert not driver.succeeds("cuGraphExecUpdate", executable._handle, driver.types.CUgraph(other.graph.raw()))
    assert torch.zeros(4, device=backend.device).add_(1).sum().item() == 4
    torch.cuda.synchronize()
    one.check(executable.replay)
    assert executable.update_from(one.graph)
    one.check(executable.replay)
    executable.release()


def test_a_node_that_is_refused_takes_back_the_others(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = alike([Shape(backend, network(backend.device), length) for length in range(32, 96, 4)])
    one, other = shapes[0], shapes[1]
    executable = made(one)
    changes = other.all_nodes()
    kinds = executable._inspected.kinds if executable._inspected is not None else ()
    kernels = [number for number, _ in changes if kinds[number] == KERNEL]
    last = max(number for number in kernels if one.graph.parameters()[number] != changes[number][1])
    prepared = executable.prepare(changes)
    writer: Any = executable._executables.writer
    write, unwelcome = writer.set_kernel, prepared.structures[kernels.index(last)]
    written: list[int] = []

    def refuses(executable: int, node: int, structure: int) -> int:
        written.append(structure)
        return 1 if structure == unwelcome else int(write(executable, node, structure))

    monkeypatch.setattr(writer, "set_kernel", refuses)
    assert not executable.update_prepared([prepared], other.graph.attachment)
    assert unwelcome in written and written[-1] != unwelcome
    monkeypatch.undo()
    one.check(executable.replay)
    assert write_nodes(executable, changes, other.graph.attachment)
    other.check(executable.replay)
    executable.release()


@pytest.mark.parametrize("way", ["whole", "nodes", "prepared"])
def test_queued_launches_do_what_they_were_issued_for(backend: CudaBackend, way: str) -> None:
    shapes = alike([Shape(backend, network(backend.device), length) for length in range(32, 96, 4)])[:4]
    executable = made(shapes[0])
    prepared = [executable.prepare(shape.all_nodes()) for shape in shapes]
    for _ in range(5):
        wanted = [shape.refill() for shape in shapes]
        for shape in shapes:
            shape.out.fill_(float("nan"))
        found = []
        torch.cuda._sleep(20_000_000)  # the device is far behind
        for shape, writes in zip(shapes, prepared, strict=True):
            if way == "whole":
                assert executable.update_from(shape.graph)
            elif way == "prepared":
                assert executable.update_prepared([writes], shape.graph.attachment)
            else:
                assert write_nodes(executable, shape.all_nodes(), shape.graph.attachment)
            executable.replay()
            found.append(shape.out.clone())
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one, other)
    executable.release()


def test_random_updates_launches_and_evictions(backend: CudaBackend) -> None:
    chances = random.Random(3)
    step = network(backend.device)
    shapes = [Shape(backend, step, length) for length in chances.sample(range(8, 200), 16)]
    executables: dict[str, tuple[CudaExecutable, Shape]] = {}
    switches = 0
    for _ in range(400):
        shape = chances.choice(shapes)
        topology = shape.graph.topology
        assert topology is not None
        if chances.random() < 0.05 and executables:
            executables.pop(chances.choice(list(executables)))[0].release()
        if topology not in executables:
            executables[topology] = made(shape), shape
        executable, loaded = executables[topology]
        if loaded is not shape:
            switches += 1
            if chances.random() < 0.5:
                assert executable.update_from(shape.graph)
            else:
                assert write_nodes(executable, shape.all_nodes(), shape.graph.attachment)
            executables[topology] = executable, shape
        shape.check(executable.replay)
    assert switches > 100
    for executable, _ in executables.values():
        executable.release()
    assert backend.memory().executable_bytes == 0


def test_a_graph_that_draws_follows_the_eager_stream(backend: CudaBackend) -> None:
    x = torch.ones(64, 64, device=backend.device)
    graph, out = backend.capture(lambda: nn.functional.dropout(x, 0.5) * 2)
    assert isinstance(graph, UpdatableCudaGraph) and graph.topology is None
    for executable in (graph.instantiate(), graph.instantiate()):
        for seed in (1, 2):
            torch.manual_seed(seed)
            wanted = [nn.functional.dropout(x, 0.5) * 2 for _ in range(3)]
            after = torch.cuda.get_rng_state(backend.device)
            torch.manual_seed(seed)
            for one in wanted:
                executable.replay()
                assert torch.equal(out, one)
            assert torch.equal(torch.cuda.get_rng_state(backend.device), after)
        executable.release()
    graph.release()


@pytest.mark.parametrize("limits", [Limits(executables=1, nbytes=None), Limits(executables=4, nbytes=None)])
def test_a_store_with_few_executables(backend: CudaBackend, limits: Limits) -> None:
    """Admitted, replayed at random, evicted and admitted again."""
    chances = random.Random(5)
    step = network(backend.device)
    store = PlainStore(limits=limits, graph_budget_bytes=1 << 20)
    shapes: dict[int, Shape] = {}

    def verify(shape: Shape, launch: Callable[[], None]) -> bool:
        wanted = shape.refill()
        launch()
        return torch.equal(shape.out, wanted)

    launched = 0
    for _ in range(300):
        length = chances.choice([16, 24, 33, 48, 64, 65, 96, 128, 200])
        if length not in store:
            shapes[length] = Shape(backend, step, length)
            assert store.admit(length, shapes[length].graph, partial(verify, shapes[length]))
        if chances.random() < 0.02:
            store.forget(length)
            continue
        wanted = shapes[length].refill()
        assert store.serves(length)
        assert torch.equal(shapes[length].out, wanted), length
        launched += 1
        account = store.account()
        assert account.executables <= limits.executables
        assert account.executable_bytes == backend.memory().executable_bytes
    assert launched > 200 and store.account().switches > 20
    store.release()
    assert backend.memory().executable_bytes == 0


def test_regions_of_many_lengths(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a whole region: every call equals eager, whatever executable served it."""
    monkeypatch.setattr(policy, "decide", lambda estimate: replace(decide(estimate), action="capture"))
    monkeypatch.setattr(policy, "FEW", 1)
    step = network(backend.device)
    graphed: Any = GraphedFunction(step, backend=backend, tolerance=0.0)
    chances = random.Random(11)
    for _ in range(250):
        x = torch.randn(chances.choice([16, 24, 33, 48, 64, 65, 96]), WIDTH, device=backend.device)
        assert torch.equal(graphed(x), step(x))
    evidence = graphed.evidence()
    assert evidence is not None and evidence.refused is None and evidence.replays > 100
    graphed.release()


def test_memory_of_many_executables_comes_back(backend: CudaBackend) -> None:
    shape = Shape(backend, network(backend.device), 48)
    executables = [made(shape) for _ in range(64)]
    account = backend.memory()
    assert account.executable_bytes == sum(one.nbytes for one in executables)
    assert 0 < executables[-1].nbytes <= 4 << 20
    for one in executables:
        one.release()
    assert backend.memory().executable_bytes == 0
    free = torch.cuda.mem_get_info(backend.device)[0]
    again = [made(shape) for _ in range(64)]
    assert free - torch.cuda.mem_get_info(backend.device)[0] <= account.executable_bytes + (32 << 20)
    for one in again:
        one.release()
