"""What the person lets go of is gone, graphs or not: models made anew, functions defined anew, loops edited (R10)."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import grape
from grape.magics import load
from grape.sessions import close_engine, engine
from tests.property.programs import eager_to_graph

MODEL = """\
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
    def forward(self, x):
        return torch.tanh(self.b(torch.relu(self.a(x))))
net = Net()
"""
TRAINED = MODEL + "opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)\n"


@dataclass(frozen=True)
class Flow:
    """A cell that makes `net`, one that defines, one that runs under `%%grape`; `at_once`: no further run is needed."""

    model: str
    define: str
    cell: str
    at_once: bool = True


FLOWS = {
    "a function": Flow(
        MODEL,
        "def f(x):\n    return net(x) * 0.5 + x\n",
        "with torch.no_grad():\n    x = torch.randn(2, 8)\n    for _ in range(20):\n        x = f(x)\n",
    ),
    "a loop": Flow(
        MODEL, "", "with torch.no_grad():\n    x = torch.randn(2, 8)\n    for _ in range(20):\n        x = net(x) + x\n"
    ),
    "a module": Flow(MODEL, "", "with torch.no_grad():\n    xs = [net(torch.ones(2, 8)) for _ in range(20)]\n"),
    "a training loop": Flow(
        TRAINED,
        "",
        "for _ in range(24):\n    x = torch.randn(2, 8)\n    opt.zero_grad()\n    loss = net(x).square().mean()\n"
        "    loss.backward()\n    opt.step()\n",
    ),
    "a step with the model as an argument": Flow(
        TRAINED,
        "def step(net, opt, x):\n    opt.zero_grad()\n    loss = net(x).square().mean()\n    loss.backward()\n"
        "    opt.step()\n    return loss.detach()\n",
        "for _ in range(24):\n    loss = step(net, opt, torch.randn(2, 8))\n",
    ),
    "a loop in a function": Flow(
        TRAINED,
        "def train(net, opt):\n    for _ in range(60):\n        x = torch.randn(2, 8)\n        opt.zero_grad()\n"
        "        loss = net(x).square().mean()\n        loss.backward()\n        opt.step()\n",
        "train(net, opt)\n",
        at_once=False,  # what its names held when it ended is held until it runs again
    ),
}


@pytest.fixture
def notebook(shell: InteractiveShell) -> InteractiveShell:
    load(shell)
    return shell


def run(shell: InteractiveShell, source: str, cell: str | None = None) -> None:
    with capture_output():
        shell.run_cell(source, cell_id=cell).raise_error()


def replays() -> int:
    return sum(region["replays"] for region in grape.last.to_dict()["regions"])


def held() -> int:
    return sum(len(region.entries) for region in list(engine().context.regions))


@pytest.mark.parametrize("name", list(FLOWS))
def test_a_model_that_is_made_anew_leaves_no_old_one(notebook: InteractiveShell, name: str) -> None:
    flow = FLOWS[name]
    old: list[weakref.ref[Any]] = []
    graphs = []
    run(notebook, flow.model + flow.define)
    for _ in range(3):
        run(notebook, "%%grape\n" + flow.cell)
        gc.collect()
        assert replays() > 0
        assert not [one for one in old if one() is not None]
        graphs.append(held())
        old += [weakref.ref(notebook.user_ns["net"]), weakref.ref(notebook.user_ns["net"].a.weight)]
        run(notebook, flow.model)
        gc.collect()
        if flow.at_once:
            assert not [one for one in old if one() is not None] and held() == 0
    assert graphs[2] <= graphs[1] + 1, graphs


def test_models_that_one_cell_makes_one_after_another_go_when_it_makes_others(notebook: InteractiveShell) -> None:
    """A shape that is none any more leads to the next one, and evidence refers to it."""
    run(notebook, MODEL + "import weakref\nmade, xs = [], torch.randn(12, 3, 8)\n")
    cell = (
        "%%grape\nfor _ in range(3):\n    net = Net()\n    opt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "    for x in xs:\n        net(x).square().mean().backward()\n        opt.step()\n"
        "        opt.zero_grad()\n    made.append(weakref.ref(net))\n"
    )
    for _ in range(3):
        run(notebook, cell)
        gc.collect()
        assert replays() > 0
        assert not [one for one in notebook.user_ns["made"][:-3] if one() is not None]


@pytest.mark.parametrize("name", ["a function", "a loop", "a loop in a function"])
def test_a_cell_that_is_edited_leaves_no_old_graphs(notebook: InteractiveShell, name: str) -> None:
    flow = FLOWS[name]
    run(notebook, flow.model)
    source, graphs, regions = flow.define + flow.cell, [], []
    for number in range(4):
        run(notebook, "%%grape\n" + source.replace("net(x)", f"({number + 1}.25 * net(x))"), cell="the cell")
        assert replays() > 0
        graphs.append(held())
        regions.append(sum(not region.root_is_module for region in engine().interceptor.regions))
    assert max(graphs) <= min(graphs) + 1 and regions[3] <= regions[1], (graphs, regions)


def test_the_loops_of_two_cells_that_read_alike_are_one(notebook: InteractiveShell) -> None:
    """Editing the one leaves the graphs that the other has."""
    cell = "%%grape\n" + FLOWS["a loop"].cell
    run(notebook, MODEL)
    run(notebook, cell, cell="one")
    run(notebook, cell, cell="other")
    before = held()
    run(notebook, "%%grape\nprint('edited')", cell="one")
    assert held() == before > 0
    run(notebook, "%%grape\nprint('edited')", cell="other")
    assert held() == 0


def test_a_cell_that_raises_keeps_the_graphs_of_loops_it_did_not_reach(notebook: InteractiveShell) -> None:
    cell = "stop = {}\nassert not stop\n" + FLOWS["a loop"].cell
    run(notebook, MODEL)
    run(notebook, "%%grape\n" + cell.format(False), cell="one")
    before = held()
    with pytest.raises(AssertionError):
        run(notebook, "%%grape\n" + cell.format(True), cell="one")
    assert held() == before > 0


def test_models_that_take_turns_keep_their_graphs(notebook: InteractiveShell) -> None:
    """Both are used by each cell."""
    run(notebook, MODEL + "one, other = net, Net()\ndef f(x):\n    return net(x) * 0.5 + x\n")
    cell = "".join(
        f"net = {name}\nwith torch.no_grad():\n    for _ in range(20):\n        f(torch.ones(2, 8))\n"
        for name in ("one", "other")
    )
    for _ in range(3):
        run(notebook, "%%grape\n" + cell)
    before = held()
    run(notebook, cell)
    assert held() == before >= 2


def test_graphs_of_code_that_a_loop_no_longer_calls_go(notebook: InteractiveShell) -> None:
    define, cell = FLOWS["a function"].define, FLOWS["a function"].cell.replace("f(x)", "f(x) + 1")
    run(notebook, MODEL)
    run(notebook, define)
    run(notebook, "%%grape\n" + cell)
    assert held() > 0
    run(notebook, define)
    assert held() > 0, "it is the same function"
    run(notebook, define.replace("0.5", "0.25"))
    assert held() == 0


def test_a_function_outlives_the_one_that_was_defined_again(notebook: InteractiveShell) -> None:
    """Calls of the first, which something holds, go on when the second is deleted."""
    define, cell = "def f(x):\n    return torch.tanh(x * 2) + 1\n", "xs = [{}(torch.ones(4)) for _ in range(20)]\n"
    run(notebook, "import torch")
    run(notebook, define)
    run(notebook, "held = [f]\ng = f")
    run(notebook, "%%grape\nwith torch.no_grad():\n    " + cell.format("f"))
    run(notebook, define)
    run(notebook, "%%grape\nwith torch.no_grad():\n    " + cell.format("f"))
    assert replays() > 0
    run(notebook, "del f, g")
    run(notebook, cell.format("held[0]"))
    run(notebook, "%%grape\n" + cell.format("held[0]"))
    run(notebook, "h = held[0]")
    run(notebook, "%%grape\nwith torch.no_grad():\n    " + cell.format("h"))
    assert replays() > 0, "it is a candidate again"


def test_tensors_that_take_turns_keep_their_graphs(notebook: InteractiveShell) -> None:
    """Nothing tells that the one that has no name at the end of the cell has one again in its next run."""
    run(
        notebook,
        "import torch\nboth = [torch.randn(8, 8), torch.randn(8, 8)]\ndef f(x):\n    return torch.tanh(x @ w) + x\n",
    )
    cell = "".join(
        f"w = both[{i}]\nwith torch.no_grad():\n    for _ in range(20):\n        f(torch.ones(2, 8))\n" for i in (0, 1)
    )
    for _ in range(2):
        run(notebook, "%%grape\n" + cell)
    graphs = {id(entry) for region in engine().context.regions for entry in region.entries}
    run(notebook, "%%grape\n" + cell)
    assert len(graphs) > 1
    assert {id(entry) for region in engine().context.regions for entry in region.entries} == graphs


def test_a_block_holds_nothing_of_its_caller() -> None:
    net = torch.nn.Linear(4, 4)
    with torch.no_grad(), grape.session() as session:
        for _ in range(20):
            net(torch.ones(1, 4))
    assert session.report is not None
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None
    close_engine()


def test_a_cell_that_defines_what_its_loop_calls_is_not_captured_anew(notebook: InteractiveShell) -> None:
    cell = "%%grape\ndef f(x):\n    return net(x) * 1.5 + x\n" + FLOWS["a loop"].cell.replace("net(x) + x", "f(x) + 1")
    run(notebook, MODEL)
    for _ in range(2):
        run(notebook, cell)
    graphs = {id(entry) for region in engine().context.regions for entry in region.entries}
    run(notebook, cell)
    assert {id(entry) for region in engine().context.regions for entry in region.entries} == graphs


STILL_THERE = {
    "a function with a loop that is no region": (
        "layers = [torch.nn.Linear(8, 8), torch.nn.Tanh()]\n"
        "def f(x):\n    for layer in layers:\n        y = layer(x)\n        x = y + 1\n    return x\n",
        "with torch.no_grad():\n    x = torch.randn(2, 8)\n    for _ in range(20):\n        x = f(x) + 1\n",
    ),
    "a function": (FLOWS["a function"].define, FLOWS["a function"].cell),
    "a training loop": (TRAINED, FLOWS["a training loop"].cell),
    "an optimizer without gradients": (TRAINED, FLOWS["a training loop"].cell + "opt.zero_grad()\n"),
    "a model in evaluation": (MODEL, FLOWS["a loop"].cell + "net.eval()\n"),
}


@pytest.mark.parametrize("name", STILL_THERE)
def test_cells_between_cost_no_graphs(notebook: InteractiveShell, name: str) -> None:
    define, cell = STILL_THERE[name]
    run(notebook, MODEL + define)
    run(notebook, "%%grape\n" + cell)
    before = held()
    for other in ("print('other')", "unused = torch.ones(3)", "del unused"):
        run(notebook, other)
        assert held() == before > 0


@pytest.mark.usefixtures("without_eager_calls_in_between")
@pytest.mark.parametrize("then", ["%grape undo", "%grape reset", "net = None"])
def test_the_memory_of_a_result_goes_with_it_after_its_graphs_went(notebook: InteractiveShell, then: str) -> None:
    """It lies where a graph wrote it. The cell that lets go of it need not be one that meets Grape."""
    run(notebook, MODEL + "x = torch.randn(2, 8)\n")
    with eager_to_graph(in_place=True):
        run(notebook, "%%grape\nwith torch.no_grad():\n    for _ in range(40):\n        x = net(x)\n")
    store = engine().context.store
    lies = notebook.user_ns["x"].data_ptr()
    assert replays() > 0 and lies in [slot.address for slot in store if slot.occupied]
    run(notebook, then)
    assert held() == 0 and lies in [slot.address for slot in store]
    run(notebook, "x = None")
    assert lies not in [slot.address for slot in store]
