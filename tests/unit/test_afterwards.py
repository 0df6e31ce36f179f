"""What is seen of a module's calls after looking on had an end, and that nothing of it stays."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo  # modes import it, and it wraps functions of torch for good

from grape.runtime import CallsAfterwards
from grape.tracing import PositionFinder, Tracer
from scripts.corpus import cold
from tests.processes import lines_of

ORIGINAL = torch.nn.Module.__call__


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if x.shape[0] == 13:
            raise ValueError("thirteen")
        return torch.sin(torch.sin(torch.sin(self.inner(x))))


@pytest.fixture
def net() -> Net:
    return Net().eval()


@pytest.fixture
def observer() -> SimpleNamespace:
    return SimpleNamespace(afterwards_ms=[], traced_afterwards=[])


@pytest.fixture
def watch(net: Net, observer: SimpleNamespace) -> Iterator[CallsAfterwards]:
    context = SimpleNamespace(tracer=Tracer(PositionFinder()), backend=SimpleNamespace(device=torch.device("cpu")))
    region: Any = SimpleNamespace(root=net, observer=observer, context=context)
    made = CallsAfterwards(region)
    made.start()
    yield made
    made.stop()
    assert torch.nn.Module.__call__ is ORIGINAL


def test_each_new_shape_counts_once_and_results_are_the_same(
    net: Net, observer: SimpleNamespace, watch: CallsAfterwards
) -> None:
    inputs = [torch.randn(n, 4) for n in (3, 5, 3, 5, 7)]
    seen = [net(x) for x in inputs]
    net(inputs[0], mask=torch.zeros(9))
    watch.stop()
    assert all(map(torch.equal, seen, map(net, inputs)))
    assert len(observer.afterwards_ms) == 4, "3, 5 and 7 rows, and the mask"
    assert [op.name for op in observer.traced_afterwards[0].ops].count("aten.sin.default") == 3
    assert len(observer.traced_afterwards) == 1, "one call tells"


def test_other_modules_and_other_threads_are_nobodys(
    net: Net, observer: SimpleNamespace, watch: CallsAfterwards
) -> None:
    Net()(torch.ones(2, 4))
    net.inner(torch.ones(2, 4))
    thread = threading.Thread(target=lambda: net(torch.ones(2, 4)))
    thread.start()
    thread.join()
    assert observer.afterwards_ms == []


def test_under_a_mode_of_the_persons_nothing_is_traced(
    net: Net, observer: SimpleNamespace, watch: CallsAfterwards
) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as flops:
        net(torch.ones(2, 4))
    counted = flops.get_total_flops()
    assert (len(observer.afterwards_ms), observer.traced_afterwards) == (1, [])
    watch.stop()
    with FlopCounterMode(display=False) as flops:
        net(torch.ones(2, 4))
    assert flops.get_total_flops() == counted


def test_what_the_module_raises_shows_no_frame_of_grapes(
    net: Net, observer: SimpleNamespace, watch: CallsAfterwards
) -> None:
    for rows in (2, 13, 13):
        try:
            net(torch.ones(rows, 4))
        except ValueError as error:
            frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
            assert not any("/grape/" in name for name in frames), frames
    assert len(observer.afterwards_ms) == 1


def test_what_was_bound_before_goes_on_by_itself_once_it_is_stopped(net: Net, watch: CallsAfterwards) -> None:
    assert watch.takes(net)
    watch.stop()
    assert not watch.takes(net)


CELL = """
import json, time, torch, grape, linecache
from scripts.corpus import cold
from grape.options import Options
from grape.sessions import Cell, Session, engine

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.sin(layer(x))
        return x

net = Net().eval()
batches = [torch.randn(n, 8) for n in range(2, 62)]
times = []
with cold("sin"), torch.no_grad():
    for run in range(2):
        cell = Cell(name="In[1]", source="y = 1", filename="c", key=("y = 1", frozenset()))
        session = Session(options=Options(), cell=cell, namespace=globals())
        session.open()
        bound = net.__call__ if BOUND else net  # as a library does that calls it in a loop
        began = time.perf_counter()
        for batch in batches:
            bound(batch)
            if batch is batches[3]:
                engine().stand_aside()
        times.append((time.perf_counter() - began) * 1e3)
        report = session.close(None)
        found = [one for one in report.findings if one.code == "GR203"]
        known = [dict(one.evidence) for one in found]
        print(json.dumps([[one["shapes"], one["in_all_ms"]] for one in known]))
print(json.dumps(times), torch.nn.Module.__call__.__module__)
"""


@pytest.mark.parametrize("bound", [False, True])
def test_the_rest_of_a_cell_is_counted(monkeypatch: pytest.MonkeyPatch, *, bound: bool) -> None:
    """Looking on ends after four of 60 lengths: what the others cost is known all the same, and once only."""
    import json

    monkeypatch.setenv("GRAPE_REFERENCE", "0")
    first, second, last = lines_of(f"BOUND = {bound}\n{CELL}")
    ((shapes, in_all_ms),) = json.loads(first)
    assert json.loads(second) == []
    times, _, module = last.rpartition(" ")
    paid, warm = json.loads(times)
    assert module == "torch.nn.modules.module"
    assert 57 <= shapes <= 60
    assert in_all_ms == pytest.approx(paid - warm, rel=0.25)


def test_the_operator_is_slow_as_it_should_be() -> None:
    with cold("sin"):
        assert torch.equal(torch.sin(torch.zeros(3)), torch.ones(3))
    assert torch.equal(torch.sin(torch.zeros(3)), torch.zeros(3))
