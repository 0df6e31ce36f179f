"""What becomes a region, which is active, and that everything is given back (A11, A12, R11)."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch._dynamo.mutation_guard

from grape.model import Reason
from grape.runtime.alias import Predictor
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.buffers.slots import SlotStore
from grape.runtime.dispatch.intercept import Interceptor
from grape.runtime.dispatch.module_regions import SHORT_LIVED
from grape.runtime.dispatch.trampoline import Trampoline
from grape.runtime.regions.context import RegionContext
from grape.runtime.regions.region import Region
from grape.tracing import PositionFinder, Tracer

torch._dynamo.mutation_guard.install_generation_tagging_init()  # the first compilation does it, for good

SETUP = """
import torch
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
    def forward(self, x):
        return torch.tanh(self.b(torch.relu(self.a(x))))
net, x = Net().eval(), torch.randn(2, 8)
"""


@dataclass
class Notebook:
    """Cells run in one namespace under one interceptor, without IPython."""

    interceptor: Interceptor
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    cells: int = 0

    def plain(self, source: str) -> None:
        self.cells += 1
        exec(compile(source, f"<ipython-input-{self.cells}>", "exec", dont_inherit=True), self.names)

    def observed(self, source: str) -> None:
        context = self.interceptor.context
        context.observing = True
        context.run += 1
        self.interceptor.install()
        self.interceptor.adopt(self.names)
        try:
            with torch.no_grad():
                self.plain(source)
        finally:
            context.observing = False
            self.interceptor.settle()

    def region(self, name: str) -> Region:
        (found,) = (region for region in self.interceptor.regions if region.name == name)
        return found

    @property
    def found(self) -> set[str]:
        return {region.name for region in self.interceptor.regions if region.calls}


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    backend = ReferenceBackend(poison=True)
    context = RegionContext(
        backend=backend,
        store=SlotStore(backend),
        predictor=Predictor(backend.device, PositionFinder()),
        tracer=Tracer(PositionFinder()),
        profile=False,
    )
    made = Notebook(Interceptor(context, lambda filename: filename))
    made.plain(SETUP)
    yield made
    made.interceptor.forget()
    backend.close()


STEP = "def step(x):\n    return net(x) * 0.5 + x\n"
LOOP = "for _ in range(20):\n    x = step(x)\n"


def test_graphs_of_a_closure_that_is_made_anew_are_released(notebook: Notebook) -> None:
    """Its code is the same, its values are not; each run of the cell captures again, and holds no more than the last"""
    cell = "def make(k):\n    def step(x):\n        return net(x) * k + x\n    return step\nstep = make(0.5)\n"
    held = []
    for _ in range(4):
        notebook.plain(cell)
        notebook.observed(LOOP)
        assert notebook.region("make.<locals>.step").entries
        gc.collect()
        held.append(len(list(notebook.interceptor.context.backend._graphs)))  # type: ignore[attr-defined]
    assert len(set(held)) == 1, held


CANDIDATES = {
    "a function": (STEP, LOOP, {"step"}),
    "a lambda": ("step = lambda x: net(x) * 0.5 + x\n", LOOP, {"<lambda>"}),
    "a method": (
        "class Model:\n    def step(self, x):\n        return net(x) * 0.5 + x\nstep = Model().step\n",
        LOOP,
        {"Model.step"},
    ),
    "an object that is called": (
        "class Model:\n    def __call__(self, x):\n        return net(x) * 0.5 + x\nstep = Model()\n",
        LOOP,
        {"Model.__call__"},
    ),
    "a closure": (
        "def make(k):\n    def step(x):\n        return net(x) * k + x\n    return step\nstep = make(0.5)\n",
        LOOP,
        {"make.<locals>.step"},
    ),
    "a recursive function is none": (  # each call through Grape is some frames nearer to the limit
        "def step(x, n=2):\n    return step(net(x) * 0.5 + x, n - 1) if n else x\n",
        LOOP,
        {"Net (net)"},
    ),
    "a module": ("", "for _ in range(20):\n    x = net(x)\n", {"Net (net)"}),
    "a generator function is none": (
        "def steps(x):\n    for _ in range(20):\n        x = net(x)\n        yield x\n",
        "for x in steps(x):\n    pass\n",
        {"Net (net)"},
    ),
    "an async function is none": (
        "async def step(x):\n    return net(x) * 0.5 + x\n",
        "for _ in range(20):\n    try:\n        step(x).send(None)\n"
        "    except StopIteration as end:\n        x = end.value\n",
        {"Net (net)"},
    ),
    "a wrapper is none": (
        "import functools\ndef twice(f):\n    @functools.wraps(f)\n    def call(x):\n        return f(f(x))\n"
        "    return call\n@twice\ndef step(x):\n    return net(x) * 0.5 + x\n",
        LOOP,
        {"Net (net)"},
    ),
    "a function without device work makes room for the module inside": (
        "def step(x):\n    return net(x)\ndef size(x):\n    return len(x)\n",
        "for _ in range(20):\n    x = step(x)\n    size(x)\n",
        {"step"},
    ),
}


@pytest.mark.parametrize("name", CANDIDATES)
def test_what_becomes_a_region(notebook: Notebook, name: str) -> None:
    """The outermost that is no refused one; it replays, and the result has the bits of the plain run."""
    setup, loop, replayed = CANDIDATES[name]
    notebook.plain(setup)
    start = notebook.names["x"]
    with torch.no_grad():
        notebook.plain(loop)
    expected, notebook.names["x"] = notebook.names["x"], start
    notebook.observed(loop)
    assert torch.equal(notebook.names["x"], expected)
    assert {region.name for region in notebook.interceptor.regions if region.replays} == replayed


def test_the_floor_passes_inwards_when_a_function_is_refused(notebook: Notebook) -> None:
    notebook.plain(
        "log = []\ndef inner(x):\n    return net(x) + 1\ndef outer(x):\n    log.append(0)\n    return inner(x)\n"
    )
    notebook.observed("for _ in range(20):\n    x = outer(x)\n")
    outer, inner = notebook.region("outer"), notebook.region("inner")
    assert outer.refused is not None
    assert outer.refused.code == "GR404"
    assert inner.replays > 0
    assert inner.parent == "outer"
    assert outer.parent is None
    assert "Net (net)" not in notebook.found
    assert len(notebook.names["log"]) == 20


def test_only_root_modules_are_regions(notebook: Notebook) -> None:
    notebook.observed("for _ in range(10):\n    x = net(x)\n")
    assert notebook.found == {"Net (net)"}


def test_two_models_in_one_loop_are_two_regions(notebook: Notebook) -> None:
    notebook.plain("other = Net().eval()")
    notebook.observed("for _ in range(20):\n    x = other(net(x) + 1)\n")
    assert notebook.found == {"Net (net)", "Net (other)"}
    assert all(region.replays for region in notebook.interceptor.regions)


def test_a_helper_without_torch_work_is_given_back_during_the_cell(notebook: Notebook) -> None:
    """So that a hundred thousand calls of it cost what they cost without Grape."""
    notebook.plain("def add(i):\n    return i + 1\ncodes = []\nown = add.__code__\n")
    notebook.observed("for i in range(3):\n    add(i)\n    codes.append(add.__code__ is own)\n")
    assert notebook.names["codes"] == [True] * 3
    notebook.observed("codes.append(add.__code__ is own)")
    assert notebook.names["codes"][-1], "what was found to have no work is not taken over again"


def test_settle_keeps_what_replays_and_gives_back_the_rest(notebook: Notebook) -> None:
    """R11."""
    module_call = torch.nn.Module.__call__
    notebook.plain(STEP + "def unused(x):\n    return x\n")
    step, unused = notebook.names["step"], notebook.names["unused"]
    codes = step.__code__, unused.__code__
    notebook.observed(LOOP)
    assert step.__code__ is not codes[0]
    assert unused.__code__ is codes[1]
    assert torch.nn.Module.__call__ is module_call  # no module has a graph
    notebook.region("step").release()
    notebook.interceptor.settle()
    assert step.__code__ is codes[0]
    assert step.__dict__ == {}
    assert torch.nn.Module.__call__ is module_call


LOGGING = """
class Logging(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.seen = inner, []
    def forward(self, x):
        self.seen.append(float(x.sum()))
        return self.inner(x)
class Listed(Logging):
    def __init__(self, inner):
        super().__init__([inner])
    def forward(self, x):
        self.seen.append(float(x.sum()))
        return self.inner[0](x)
other = Net().eval()
"""


@pytest.mark.parametrize(
    ("made", "passes"),
    [("Logging(net)", False), ("Listed(net)", False), ("Listed(Listed(net))", False), ("Logging(torch.tanh)", True)],
)
def test_a_refused_module_in_which_nothing_replays_costs_nothing_in_later_cells(
    notebook: Notebook, made: str, passes: bool
) -> None:
    """One in which something replays lets it replay, in whatever way it is held."""
    notebook.plain(f"{LOGGING}refused = {made}")
    notebook.observed("for _ in range(24):\n    y = other(refused(x))\n")
    refused = next(region for region in notebook.interceptor.regions if region.root is notebook.names["refused"])
    assert refused.refused is not None and notebook.region("Net (other)").replays
    calls = refused.calls, len(notebook.names["refused"].seen)
    replays = 0 if passes else notebook.region("Net (net)").replays
    notebook.plain("with torch.no_grad():\n    for _ in range(3):\n        z = other(refused(x))\n")
    assert notebook.names["z"].equal(notebook.names["y"]) and len(notebook.names["refused"].seen) == calls[1] + 3
    assert refused.calls == calls[0] + (0 if passes else 3)
    assert passes or notebook.region("Net (net)").replays == replays + 3
    notebook.observed("refused(x)")
    assert refused.calls > calls[0]


@pytest.mark.parametrize("seen", [True, False], ids=["observed before", "new"])
def test_such_a_module_passes_through_one_function_of_grapes(notebook: Notebook, seen: bool) -> None:
    """The very first call of a new one asks what is in it."""
    notebook.plain("class Idle(torch.nn.Module):\n    def forward(self, x):\n        return x\nidle = Idle()")
    notebook.observed(f"for _ in range(24):\n    y = net(x)\n{'idle(x)' if seen else ''}")
    assert notebook.region("Net (net)").entries and torch.nn.Module.__call__ is not torch.nn.Module._wrapped_call_impl
    idle, x, entered = notebook.names["idle"], notebook.names["x"], list[str]()

    def watch(frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "call" and "grape/runtime" in frame.f_code.co_filename:
            entered.append(frame.f_code.co_name)

    idle(x)
    sys.setprofile(watch)
    idle(x)
    sys.setprofile(None)
    assert entered == ["__call__"]


def test_graphs_serve_on_after_everything_was_taken_back_for_a_while(notebook: Notebook) -> None:
    """What Grape puts in the place of `nn.Module.__call__` is another function each time."""
    notebook.plain(STEP)
    notebook.observed(LOOP)
    graphs = notebook.region("step").entries
    notebook.interceptor.remove()
    notebook.observed(LOOP)
    assert graphs and notebook.region("step").entries == graphs


EQUAL = """
class Equal(Net):
    def __eq__(self, other):
        return isinstance(other, Equal)
    {hash}
    def forward(self, x):
        return super().forward(x) * 2
one, two = Equal().eval(), Equal().eval()
with torch.no_grad():
    wanted = one(x), two(x)
"""


@pytest.mark.parametrize("how", ["__hash__ = lambda self: 1", ""], ids=["equal", "without a hash"])
def test_modules_are_told_apart_by_identity(notebook: Notebook, how: str) -> None:
    notebook.plain(EQUAL.replace("{hash}", how))
    notebook.observed("found = [(one if i < 20 else two)(x) for i in range(40)]")
    assert all(y.equal(notebook.names["wanted"][i >= 20]) for i, y in enumerate(notebook.names["found"]))
    assert sum(region.replays > 0 for region in notebook.interceptor.regions) == 2
    notebook.plain("with torch.no_grad():\n    found = [(one, two)[i % 2](x) for i in range(8)]")
    assert all(y.equal(notebook.names["wanted"][i % 2]) for i, y in enumerate(notebook.names["found"]))


ODD = """
class Odd(torch.nn.Module):
    def __init__(self):
        {init}
    def named_modules(self, *args, **kwargs):
        raise NotImplementedError
    def forward(self, x):
        return net(x)
odd = Odd()
"""


@pytest.mark.parametrize("init", ["super().__init__()", "pass"])
def test_modules_that_answer_nothing_end_no_cell(notebook: Notebook, init: str) -> None:
    """One forgot `super().__init__()`, and torch fails when it is called; both refuse to tell what is in them."""
    notebook.plain(ODD.replace("{init}", init))
    notebook.observed("try:\n    for _ in range(24):\n        y = odd(x)\nexcept AttributeError:\n    y = None\n")
    assert (notebook.names["y"] is None) is (init == "pass")
    notebook.observed("for _ in range(24):\n    y = net(x)\n")
    assert notebook.region("Net (net)").replays


@pytest.mark.parametrize("how", ["remove", "forget"])
def test_remove_and_forget_restore_everything(notebook: Notebook, how: str) -> None:
    """A11."""
    module_call = torch.nn.Module.__call__
    notebook.plain(STEP)
    step = notebook.names["step"]
    code = step.__code__
    notebook.observed(LOOP)
    region = notebook.region("step")
    getattr(notebook.interceptor, how)()
    assert step.__code__ is code
    assert step.__dict__ == {}
    assert torch.nn.Module.__call__ is module_call
    assert bool(region.entries) == (how == "remove")
    assert bool(notebook.interceptor.regions) == (how == "remove")


def test_code_that_somebody_else_set_is_left_alone(notebook: Notebook) -> None:
    notebook.plain(STEP + "def other(x):\n    return x\n")
    notebook.observed(LOOP)
    step, other = notebook.names["step"], notebook.names["other"]
    step.__code__ = other.__code__
    notebook.interceptor.remove()
    assert step.__code__ is other.__code__
    assert step.__dict__ == {}


def test_a_function_looks_as_written_while_it_is_taken_over(notebook: Notebook) -> None:
    notebook.plain("def step(x, k: float = 0.5, *, add=0):\n    'one step'\n    return net(x) * k + x + add\n")
    step = notebook.names["step"]
    notebook.observed(LOOP)
    assert notebook.region("step").entries
    assert str(inspect.signature(step)) == "(x, k: float = 0.5, *, add=0)"
    assert (step.__name__, step.__doc__, step.__defaults__) == ("step", "one step", (0.5,))
    assert (step.__kwdefaults__, step.__annotations__) == ({"add": 0}, {"k": float})
    assert (step.__code__.co_name, step.__code__.co_firstlineno) == ("step", 1)


@pytest.mark.parametrize(
    "change",
    [
        "step.__defaults__ = (0.25,)",
        "step.__kwdefaults__ = {'add': 1}",
        "net.b = torch.nn.Linear(16, 8)",
        "net.double()",
    ],
)
def test_what_changes_between_cells_is_seen(notebook: Notebook, change: str) -> None:
    """A4, with the graphs of an earlier cell."""
    notebook.plain("def step(x, k=0.5, *, add=0):\n    return net(x.to(net.a.weight.dtype)) * k + x + add\n")
    notebook.observed(LOOP)
    assert notebook.region("step").entries
    notebook.plain(f"torch.manual_seed(1)\n{change}")
    with torch.no_grad():
        notebook.plain("start = x\nfor _ in range(5):\n    x = step(x)\n")
        notebook.interceptor.remove()
        notebook.plain("y = start\nfor _ in range(5):\n    y = step(y)\n")
    assert torch.equal(notebook.names["x"], notebook.names["y"])


def test_a_function_defined_again_keeps_its_graphs_only_if_it_is_the_same(notebook: Notebook) -> None:
    notebook.plain(STEP)
    notebook.observed(LOOP)
    region = notebook.region("step")
    notebook.cells = 1  # a cell that is edited or run again has the file name it had
    notebook.plain(STEP)
    notebook.observed(LOOP)
    assert region.calls == 40
    notebook.cells = 1
    notebook.plain(STEP.replace("0.5", "0.25"))
    notebook.observed(LOOP)
    assert region.calls == 40
    assert sorted(region.calls for region in notebook.interceptor.regions) == [20, 40]


def test_a_function_with_defaults_is_the_one_that_it_was_in_the_cell_before(notebook: Notebook) -> None:
    notebook.plain("def step(x, k=0.5, *, add=0):\n    print(end='')\n    return net(x) * k + x + add\n")
    notebook.observed(LOOP)
    region = notebook.region("step")
    assert region.refused is not None
    notebook.observed(LOOP)
    assert notebook.region("step") is region and region.calls == 40
    notebook.plain("step.__defaults__ = (0.25,)")
    notebook.observed(LOOP)
    assert notebook.region("step") is not region


def test_calls_of_other_threads_are_not_met(notebook: Notebook) -> None:
    """A12."""
    notebook.plain(STEP)
    notebook.observed(LOOP)
    region, results = notebook.region("step"), []

    def work() -> None:
        with torch.no_grad():
            results.append(notebook.names["step"](torch.ones(2, 8)))

    calls = region.calls
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert region.calls == calls
    with torch.no_grad():
        assert torch.equal(results[0], notebook.names["step"](torch.ones(2, 8)))


def test_an_exception_gives_the_floor_back(notebook: Notebook) -> None:
    notebook.plain(STEP + "def fails(x):\n    net(x)\n    raise KeyError('mine')\n")
    notebook.observed("for _ in range(3):\n    try:\n        fails(x)\n    except KeyError:\n        pass\n" + LOOP)
    assert notebook.region("step").replays > 0


COMPILED = {
    "a function": "step = torch.compile(inner, backend='eager')\n",
    "a decorated function": "@torch.compile(backend='eager')\ndef step(x):\n    return net(x) * 0.5 + x\n",
    "a module": "step = torch.compile(net, backend='eager')\n",
    "a module in place": "net.compile(backend='eager')\nstep = net\n",
    "inside a function": "c = torch.compile(inner, backend='eager')\ndef step(x):\n    return c(x) + 1\n",
    "a method": (
        "class Model:\n    @torch.compile(backend='eager')\n    def step(self, x):\n        return inner(x)\n"
        "step = Model().step\n"
    ),
}


@pytest.mark.parametrize("name", COMPILED)
def test_what_is_compiled_is_left_to_the_compiler(notebook: Notebook, name: str) -> None:
    torch._dynamo.reset()
    notebook.plain("def inner(x):\n    return net(x) * 0.5 + x\n" + COMPILED[name])
    start = notebook.names["x"]
    with torch.no_grad():
        notebook.plain(LOOP)
    expected, notebook.names["x"] = notebook.names["x"], start
    torch._dynamo.reset()
    notebook.observed(LOOP)
    assert torch.equal(notebook.names["x"], expected)
    assert not any(region.replays for region in notebook.interceptor.regions)
    torch._dynamo.reset()


class WithCompiledPart(torch.nn.Module):
    """As a library's, of which nothing in the notebook tells that it compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.part = torch.compile(lambda x: (x * 2).relu(), backend=self.compile_part)
        self.compiled = 0

    def compile_part(self, graph: Any, inputs: Any) -> Any:
        self.compiled += 1
        return graph.forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x * 0.3 + 0.1)


def test_what_a_library_compiles_is_compiled_once_and_left_to_the_compiler(notebook: Notebook) -> None:
    torch._dynamo.reset()
    module = notebook.names["module"] = WithCompiledPart()
    notebook.observed("with torch.no_grad():\n    for _ in range(20):\n        x = module(x)\n")
    (region,) = notebook.interceptor.regions
    assert module.compiled == 1 and region.replays == 0
    assert region.refused is not None and region.refused.reason is Reason.COMPILED
    torch._dynamo.reset()


def test_modules_that_are_made_anew_in_a_loop_are_let_be_after_a_few(notebook: Notebook) -> None:
    notebook.observed(f"for _ in range({SHORT_LIVED + 50}):\n    x = torch.nn.Linear(8, 8)(x)\n")
    assert len(notebook.interceptor.regions) == SHORT_LIVED


def test_a_module_that_dies_within_the_cell_is_told_of(notebook: Notebook) -> None:
    lines = ["def work(x):", "    net = torch.nn.Linear(8, 8)", "    for _ in range(6):", "        x = net(x)"]
    notebook.observed("\n".join([*lines, "    return x", "x = work(x)", ""]))
    assert [region.calls for region in notebook.interceptor.regions if region.root_is_module] == [6]
    assert all(region.root is None for region in notebook.interceptor.regions if region.root_is_module)


SIGNATURES = {
    "defaults": ("a, b=2, *, c=3", ["f(1)", "f(1, 5)", "f(b=1, a=2)", "f(1, c=4)", "f()", "f(1, 2, 3)", "f(1, d=2)"]),
    "positional only": ("a, /, b=2", ["f(1)", "f(a=1)", "f(1, b=3)"]),
    "any number": ("*args, c, d=4, **kwargs", ["f(1, 2, c=3)", "f(c=1, e=2)", "f(1)"]),
    "the names that the code in its place uses": ("receiver, error, *, receiver_=1", ["f(1, 2)", "f(1, error=2)"]),
    "none": ("", ["f()", "f(1)"]),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_code_in_a_functions_place_has_its_parameters(name: str) -> None:
    """Calls that are wrong fail in the same words; nothing is added to the function's namespace."""
    parameters, calls = SIGNATURES[name]
    names: dict[str, Any] = {}
    exec(f"def f({parameters}):\n    return sorted(locals().items())\n", names)
    function, given = names["f"], []

    def outcomes() -> list[str]:
        found = []
        for call in calls:
            try:
                found.append(repr(eval(call, names)))
            except TypeError as error:
                found.append(str(error))
        return found

    def receive(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        trampoline.follow()
        args, kwargs = trampoline.given(args, kwargs)
        given.append((args, kwargs))
        return trampoline.original(*args, **kwargs)

    def looks() -> tuple[Any, ...]:
        code = function.__code__
        counts = code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount
        named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return inspect.getfullargspec(function), counts, named, dict(vars(function))

    expected = outcomes(), looks()
    trampoline = Trampoline(function, receive)
    trampoline.place()
    assert (outcomes(), looks()) == expected
    assert given
    if name == "defaults":
        assert given[0] == ((1,), {})  # defaults are the function's own, no arguments
        function.__defaults__ = (7,)
        assert names["f"](1) == [("a", 1), ("b", 7), ("c", 3)]
    trampoline.undo()
    assert looks()[1:] == expected[1][1:]


def test_what_stands_for_the_call_of_modules_says_the_names_of_the_plain_one(notebook: Notebook) -> None:
    told = (
        "kind = torch.nn.Module.__call__\n"
        "said = kind.__name__, kind.__qualname__, kind.__module__, kind.__doc__, kind.__annotations__\n"
    )
    notebook.plain(told)
    plain, original = notebook.names["said"], torch.nn.Module.__call__
    notebook.observed(told + STEP + LOOP)
    assert notebook.names["kind"] is not original
    assert notebook.names["said"] == plain
