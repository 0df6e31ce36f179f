"""What looks at the stack sees that of the plain cell: tracebacks, warnings, tracers, profilers, hooks, modes."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo.mutation_guard  # imported by torch's profiler; it wraps functions of torch for good
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from grape.magics import load
from grape.runtime.dispatch.frames import brings_watchers, looks_at_frames, mentioned_in
from tests.processes import lines_of

torch._dynamo.mutation_guard.install_generation_tagging_init()  # what the first compilation does, for good

SETUP = """\
import contextlib, gc, sys, threading, types, warnings, weakref
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 16), nn.Linear(16, 8)
    def forward(self, x):
        return torch.tanh(self.outer(torch.relu(self.inner(x))))
net = Net().eval()
def f(x):
    return net(x) * 0.5 + x
"""

LOOP = """\
{before}
with torch.no_grad():
    x = torch.ones(2, 8)
    for i in range(12):
        x = f(x)
{after}
"""


def ran(shell: InteractiveShell, setup: str, cell: str, *, magic: str, runs: int = 3) -> list[tuple[Any, ...]]:
    """What each run of `cell` printed and where it raised, and what it left in `seen` and `x`."""
    found: list[tuple[Any, ...]] = []
    with capture_output():
        shell.run_cell(SETUP + "seen = []\n" + setup)
    for _ in range(runs):
        with capture_output() as captured:
            result = shell.run_cell(f"{magic}\n{cell}")
        error = result.error_in_exec
        frames = traceback.extract_tb(error.__traceback__) if error is not None else []
        lines = [(frame.lineno, frame.name) for frame in frames if "IPython" not in frame.filename]
        names = shell.user_ns
        printed = captured.stdout if error is None and magic.startswith("#") else ""
        x = names["x"].tolist() if isinstance(names.get("x"), torch.Tensor) else None
        found.append((repr(error), lines, printed, repr(names["seen"]), x))
        names["seen"].clear()
    return found


def same_as_plain(shell: InteractiveShell, setup: str, cell: str) -> list[tuple[Any, ...]]:
    plain = ran(shell, setup, cell, magic="# as it is")
    load(shell)
    observed = ran(shell, setup, cell, magic="%%grape --no-widget")
    assert [(one[0], one[1], *one[3:]) for one in observed] == [(one[0], one[1], *one[3:]) for one in plain]
    return plain


RAISING = {
    "a function of torch": "F.cross_entropy(net(x), torch.zeros(5, dtype=torch.long))",
    "a method": "net(x).norm(dim=9)",
    "a method that dispatches": "net(x).unique(dim=7)",
    "einsum": "torch.einsum('ij,jk', net(x), x)",
    "an operator": "net(x) @ x",
}


@pytest.mark.parametrize("name", RAISING)
def test_an_error_has_the_frames_of_the_plain_call(shell: InteractiveShell, name: str) -> None:
    setup = f"def step(x):\n    return {RAISING[name]}\n"
    plain = same_as_plain(shell, setup, "with torch.no_grad():\n    step(torch.ones(2, 8))\n")
    assert plain[0][0] != "None"


@pytest.mark.parametrize("name", RAISING)
def test_an_error_that_the_code_catches_has_the_frames_of_the_plain_call(shell: InteractiveShell, name: str) -> None:
    setup = f"""\
def step(x):
    try:
        return {RAISING[name]}
    except Exception as error:
        entry = error.__traceback__
        while entry:
            seen.append((entry.tb_frame.f_code.co_name, entry.tb_lineno))
            entry = entry.tb_next
        seen.append((repr(error.__context__), repr(error.__cause__)))
        return x
"""
    cell = "with torch.no_grad():\n    for _ in range(4):\n        step(torch.ones(2, 8))\n"
    assert "step" in same_as_plain(shell, setup, cell)[0][3]


WARNING = {
    "of the function": ("def f(x):\n    warnings.warn('careful')\n    return net(x) + x\n", "x = f(x)"),
    "of the caller": ("def f(x):\n    warnings.warn('careful', stacklevel=2)\n    return net(x) + x\n", "x = f(x)"),
    "by position": ("def f(x):\n    warnings.warn('careful', UserWarning, 2)\n    return net(x) + x\n", "x = f(x)"),
    "imported": (
        "from warnings import warn\ndef f(x):\n    warn('careful', None, 2)\n    return net(x) + x\n",
        "x = f(x)",
    ),
    "of torch": ("k = torch.ones(8)\ndef f(x):\n    return net(x) * torch.tensor(k) + x\n", "x = f(x)"),
    "of an operator": (
        "def f(x):\n    return net(x) + x + 0 * x.view(-1).T.sum() + torch.ones(3, 2, 1).T.sum()\n",
        "x = f(x)",
    ),
    "of a function of torch": ("def f(x):\n    return net(x) * F.softmax(x) + x\n", "x = f(x)"),
    "of a method in a loop": ("", "x = net(x) + x * F.softmax(x)"),
}


@pytest.fixture
def warns_always() -> Iterator[None]:
    """torch says what it would say once in a process at each call."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.parametrize("name", WARNING)
@pytest.mark.parametrize("how", ["always", "default", "once"])
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("warns_always")
def test_a_warning_names_the_line_that_it_names_plainly_as_often(shell: InteractiveShell, name: str, how: str) -> None:
    setup, body = WARNING[name]
    cell = f"""\
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter({how!r})
    with torch.no_grad():
        x = torch.ones(2, 8)
        for i in range(12):
            {body}
            if i == 5: x = x * 1
seen.extend((w.lineno, 'grape' in w.filename, 'torch' in w.filename, str(w.message)[:30]) for w in caught)
del caught, w
"""
    cell = cell.replace("\ndel caught, w", "\ndel caught")
    assert "(" in same_as_plain(shell, setup, cell)[0][3]


LOOKING = {
    "the caller's name": "def f(x):\n    seen.append(sys._getframe(1).f_code.co_name)\n    return net(x) + x\n",
    "the caller's line": "def f(x):\n    seen.append(sys._getframe(1).f_lineno)\n    return net(x) + x\n",
    "the depth": """\
def depth():
    count, frame = 0, sys._getframe()
    while frame:
        count, frame = count + 1, frame.f_back
    return count
def f(x):
    seen.append(depth())
    return net(x) + x
""",
    "an object that looks": """\
class Where:
    def __call__(self):
        return sys._getframe(2).f_code.co_name
where = Where()
def f(x):
    seen.append(where())
    return net(x) + x
""",
    "a closure that looks": """\
def made():
    def look():
        return sys._getframe(2).f_code.co_name
    def f(x):
        seen.append(look())
        return net(x) + x
    return f
f = made()
""",
    "a module that looks": """\
class Looking(nn.Module):
    def forward(self, x):
        frame, names = sys._getframe(), []
        while frame and len(names) < 6:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        seen.append(names)
        return net(x) + x
f = Looking()
""",
    "a method of what an attribute holds": """class Meter:
    def report(self): seen.append(sys._getframe(2).f_code.co_name)
class Trainer:
    def __init__(self): self.meter = Meter()
    def step(self, x):
        self.meter.report()
        return net(x) + x
f = Trainer().step
""",
    "a method of an argument": """class Registry:
    def note(self): seen.append(sys._getframe(2).f_code.co_name)
kept = [Registry()]
def step(registry, x):
    registry.note()
    return net(x) + x
def f(x):
    return step(kept[0], x)
""",
    "a class method": """class Meter:
    @classmethod
    def report(cls): seen.append(sys._getframe(2).f_code.co_name)
kept = [Meter]
def f(x):
    kept[0].report()
    return net(x) + x
""",
}


@pytest.mark.parametrize("name", LOOKING)
def test_code_that_looks_at_frames_finds_those_of_the_plain_cell(shell: InteractiveShell, name: str) -> None:
    same_as_plain(shell, LOOKING[name], LOOP.format(before="", after=""))


WATCHING = {
    "a trace function": (
        "def watch(frame, event, argument):\n    seen.append(event) if frame.f_code.co_name == 'f' else 0\n",
        "sys.settrace(watch)",
        "sys.settrace(None)",
    ),
    "a profile function": (
        "def watch(frame, event, argument):\n    seen.append(event) if frame.f_code.co_name == 'forward' else 0\n",
        "sys.setprofile(watch)",
        "sys.setprofile(None)",
    ),
    "a profile function that a function sets": (
        "def watch(frame, event, argument):\n    seen.append(event) if frame.f_code.co_name == 'f' else 0\n"
        "def begin():\n    sys.setprofile(watch)\n",
        "begin()",
        "sys.setprofile(None)",
    ),
    "cProfile": (
        "import cProfile, pstats\n",
        "watch = cProfile.Profile(); watch.enable()",
        "watch.disable()\n"
        "seen.append(sum(v[0] for k, v in pstats.Stats(watch).stats.items() if k[2] in ('f', 'forward')))\ndel watch",
    ),
    "ranges of torch's profiler": (
        "from torch.profiler import profile, record_function\n"
        "def f(x):\n    with record_function('mine'):\n        return net(x) * 0.5 + x\n",
        "watch = profile(); watch.__enter__()",
        "watch.__exit__(None, None, None)\n"
        "seen.append(sum(e.count for e in watch.key_averages() if e.key == 'mine'))\ndel watch",
    ),
    "operators that torch's profiler counts": (
        "from torch.profiler import profile\n",
        "watch = profile(); watch.__enter__()",
        "watch.__exit__(None, None, None)\n"
        "seen.append(sorted((e.key, e.count) for e in watch.key_averages()))\ndel watch",
    ),
    "torch's profiler under its long name, in a function": (
        "def begin():\n    watch = torch.autograd.profiler.profile()\n    watch.__enter__()\n    return watch\n",
        "watch = begin()",
        "watch.__exit__(None, None, None)\n"
        "seen.append(sorted((e.key, e.count) for e in watch.key_averages()))\ndel watch",
    ),
    "torch's profiler, by a method that a list holds": (
        "from torch.profiler import profile\n"
        "class Watch:\n"
        "    def start(self):\n        self.watch = profile()\n        self.watch.__enter__()\n"
        "    def stop(self):\n        self.watch.__exit__(None, None, None)\n"
        "        return sorted((e.key, e.count) for e in self.watch.key_averages())\n"
        "watch = Watch()\nheld = [watch.start, watch.stop]\ndel watch, Watch\n",
        "held[0]()",
        "seen.append(held[1]())",
    ),
}


@pytest.mark.parametrize("name", WATCHING)
@pytest.mark.parametrize("inside", [False, True])
def test_who_follows_the_code_sees_that_of_the_plain_cell(shell: InteractiveShell, name: str, inside: bool) -> None:
    setup, begin, end = WATCHING[name]
    if inside and "held" in begin:
        pytest.skip("it is seen once the statement that starts it is over")
    cell = LOOP.format(before=begin, after=end)
    if inside:
        cell = "if True:\n" + "".join(f"    {line}\n" for line in cell.splitlines())
    same_as_plain(shell, setup, cell)


BROKEN = """\
graphs = []
def backend(graph, inputs):
    graphs.append(len(graph.graph.nodes))
    return graph.forward
compiled = torch.compile(lambda x: torch.sin(net(x)) if x.sum() > 0 else net(x) * 2, backend=backend)
"""


def test_a_compiler_that_stops_in_a_function_sees_none_of_the_tracers_code(shell: InteractiveShell) -> None:
    found = []
    for magic in ("# as it is", "%%grape --no-widget"):
        if magic.startswith("%%"):
            load(shell)
        shell.run_cell(SETUP + BROKEN).raise_error()
        with capture_output() as said:
            shell.run_cell(
                f"{magic}\nfor i in range(8): y = compiled(torch.full((2, 8), 1.0 - i % 2 * 2))"
            ).raise_error()
        found.append((shell.user_ns["graphs"], "Dynamo does not know" in said.stderr))
    assert found[0] == found[1] and found[0][0]


def test_a_report_of_a_cell_that_somebody_follows_says_so(shell: InteractiveShell) -> None:
    load(shell)
    shell.run_cell(SETUP + "net = Net()\nimport cProfile; watch = cProfile.Profile(); watch.enable()").raise_error()
    try:
        with capture_output():
            shell.run_cell("%%grape --engine regions\nfor i in range(9): y = net(torch.ones(2, 8))").raise_error()
    finally:
        shell.run_cell("watch.disable()")
    import grape

    assert grape.last is not None
    assert "somebody looks at its frames" in grape.last.verdict and "no PyTorch work" not in grape.last.verdict


MODE = """\
from torch.overrides import TorchFunctionMode
class Log(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        seen.append(getattr(func, '__name__', str(func)))
        return func(*args, **(kwargs or {}))
"""


@pytest.mark.parametrize("body", ["x = f(x)", "y = net(x) * 2; x = y.tanh() + x"])
def test_a_function_mode_sees_what_it_sees_plainly(shell: InteractiveShell, body: str) -> None:
    cell = f"with Log(), torch.no_grad():\n    x = torch.ones(2, 8)\n    for i in range(12):\n        {body}\n"
    same_as_plain(shell, MODE, cell)


@pytest.mark.parametrize(
    "setup",
    [
        "def called(phase, info):\n    if phase == 'stop' and len(seen) < 4: seen.append(f(torch.ones(2, 8)).sum())\n"
        "begin, end = (lambda: gc.callbacks.append(called)), (lambda: gc.callbacks.remove(called))\n",
        "import signal\ndef called(*event):\n    f(torch.ones(2, 8))\n"
        "def begin():\n    signal.signal(signal.SIGALRM, called); signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n"
        "def end():\n    signal.setitimer(signal.ITIMER_REAL, 0); signal.signal(signal.SIGALRM, signal.SIG_DFL)\n",
        "def begin():\n    sys.setprofile(called)\ndef end():\n    sys.setprofile(None)\ndef called(*event): pass\n",
    ],
)
def test_callbacks_that_call_the_code_harm_nothing(shell: InteractiveShell, setup: str) -> None:
    same_as_plain(shell, setup, LOOP.format(before="begin(); gc.collect()", after="end()\nseen.clear()"))


AUDITED = """\
import sys
import torch
import torch._dynamo  # imported by torch's profiler; it wraps functions of torch for good
from IPython.core.interactiveshell import InteractiveShell
from grape.magics import load
shell = InteractiveShell.instance()
load(shell)
shell.run_cell({setup!r})
for _ in range(2):
    assert shell.run_cell({cell!r}).success
assert shell.user_ns["count"][0] > 0
print("ended")
"""


@pytest.mark.parametrize("calls", ["called()", "net(torch.ones(2, 8))"])
def test_an_audit_hook_of_the_notebook_ends(calls: str) -> None:
    """In a process of its own: an audit hook is not to be removed."""
    setup = (
        f"{SETUP}count, on = [0], [False]\ndef called(*a):\n    count[0] += 1\ndef hook(*a):\n"
        f"    if on[0] and count[0] < 2000:\n        count[0] += 1\n        {calls}\nsys.addaudithook(hook)\n"
    )
    cell = "%%grape --no-widget\n" + LOOP.format(before="on[0] = True", after="on[0] = False")
    assert lines_of(AUDITED.format(setup=setup, cell=cell))[-1] == "ended"


def test_a_method_that_reads_the_names_of_the_cell_finds_them(shell: InteractiveShell) -> None:
    setup = """\
class Looks:
    def peek(self, name): return float(sys._getframe(1).f_locals[name].sum())
class Holds: pass
holds = Holds()
holds.looks = Looks()
"""
    cell = """\
with torch.no_grad():
    for i in range(10):
        a = net(torch.ones(4, 8) * i)
        b = a * 2
        seen.append(holds.looks.peek('b'))
"""
    assert same_as_plain(shell, setup, cell)[0][0] == "None"


def test_what_code_may_lead_to_is_found_by_its_names() -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    source = """
import sys
def look(): return sys._getframe(1)
def between(): return look()
def quiet(x): return x + 1
def warns(): warnings.warn("x", stacklevel=2)
def stacks(xs): return torch.stack(xs)
class Thing:
    def method(self): return between()
thing = Thing()
def uses(): return thing.method()
def profiles(): sys.setprofile(None)
"""
    exec(compile(source, "cell.py", "exec"), space)

    def names(name: str) -> frozenset[str]:
        return mentioned_in(space[name].__code__)

    looking = {"look", "between", "warns", "uses"}
    assert {
        n for n in ("look", "between", "quiet", "warns", "stacks", "uses") if looks_at_frames(names(n), space)
    } == looking
    assert brings_watchers(frozenset({"profiles"}), space) and not brings_watchers(frozenset({"uses"}), space)


def test_a_function_that_calls_itself_goes_as_deep_as_plainly(shell: InteractiveShell) -> None:
    setup = """\
def down(n, x):
    return f(x) if n == 0 else across(n - 1, x)
def across(n, x):
    return down(n, x)
def made():
    def inner(n, x):
        return f(x) if n == 0 else inner(n - 1, x)
    return inner
inner = made()
"""
    cell = "with torch.no_grad():\n    x = down(400, torch.ones(2, 8))\n    x = inner(800, x)\n"
    assert same_as_plain(shell, setup, cell)[0][0] == "None"
