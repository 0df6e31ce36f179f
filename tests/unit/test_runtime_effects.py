"""What a replay would not repeat is refused; what goes wrong leaves the call as it would have been."""

from __future__ import annotations

import collections
import datetime
import gc
import importlib
import io
import itertools
import logging
import os
import queue
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy
import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
import tqdm
from IPython.display import HTML
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import grape
from grape.runtime import GraphedFunction
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.guarding.effects import EffectWatch
from grape.tracing import PositionFinder, positions
from tests.property.programs import Twins, World, eager_to_graph

pytestmark = pytest.mark.usefixtures("without_gradients")


def work(x: torch.Tensor) -> torch.Tensor:
    return (x * 2 + 1).tanh() * 0.5


def one(world: World) -> tuple[tuple[Any, ...], dict[str, Any]]:
    world.seed = getattr(world, "seed", 0) + 1
    return (torch.randn(3, 4, generator=torch.Generator().manual_seed(world.seed)),), {}


def graphed(function: Callable[..., Any]) -> GraphedFunction:
    return GraphedFunction(function, backend=ReferenceBackend(poison=True), tolerance=0.0)


def refused(function: Callable[..., Any], times: int = 8) -> Any:
    """The refusal after some calls."""
    served = graphed(function)
    with eager_to_graph():
        for _ in range(times):
            served(torch.ones(3, 4))
    evidence = served.evidence()
    assert evidence is not None
    assert evidence.replays == 0
    return evidence.refused


# -- Python effects --------------------------------------------------------------------------------------------------

COUNT = 0
LOG: list[Any] = []
QUEUE: collections.deque[Any] = collections.deque()
TICKS = itertools.count()
LAST: Any = None
logger = logging.getLogger("grape.tests")


def _prints(x: torch.Tensor) -> torch.Tensor:
    print("in the region")
    return work(x)


def _appends(x: torch.Tensor) -> torch.Tensor:
    LOG.append(x.shape)
    return work(x)


def _appends_to_a_deque(x: torch.Tensor) -> torch.Tensor:
    QUEUE.append(1)
    return work(x)


def _counts(x: torch.Tensor) -> torch.Tensor:
    global COUNT
    COUNT += 1
    return work(x)


def _sets_a_global(x: torch.Tensor) -> torch.Tensor:
    global LAST
    LAST = work(x)
    return LAST * 2


def _counts_on_itself(x: torch.Tensor) -> torch.Tensor:
    _counts_on_itself.calls = getattr(_counts_on_itself, "calls", 0) + 1  # type: ignore[attr-defined]
    return work(x)


def _ticks(x: torch.Tensor) -> torch.Tensor:
    next(TICKS)
    return work(x)


def _random(x: torch.Tensor) -> torch.Tensor:
    return work(x) if random.random() < 2 else x


def _random_scalar(x: torch.Tensor) -> torch.Tensor:
    return work(x) * random.gauss(0, 1)


def _logs(x: torch.Tensor) -> torch.Tensor:
    logger.warning("in the region")
    return work(x)


def _writes(x: torch.Tensor) -> torch.Tensor:
    sys.stderr.write("x")
    return work(x)


EFFECTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "print": _prints,
    "append to a list": _appends,
    "append to a deque": _appends_to_a_deque,
    "count in a global": _counts,
    "set a global": _sets_a_global,
    "count on the function": _counts_on_itself,
    "random choice": _random,
    "random scalar": _random_scalar,
    "log": _logs,
    "write": _writes,
}


@pytest.mark.parametrize("effect", EFFECTS)
def test_effects_are_refused(effect: str) -> None:
    assert refused(EFFECTS[effect]).code in ("GR404", "GR403", "GR405")


_file = tempfile.TemporaryFile("w")  # noqa: SIM115
_bytes = io.BytesIO()
_draws = random.Random(1)
_waiting: queue.Queue[int] = queue.Queue()
_tree = ElementTree.Element("a")
_here, _there = socket.socketpair()
_memory = sqlite3.connect(":memory:")
_folder = Path(tempfile.mkdtemp())


class _Stack(collections.deque[int]):
    pass


_stack = _Stack()

OUTSIDE: dict[str, Callable[[], object]] = {
    "an open file": lambda: _file.write("x"),
    "bytes in memory": lambda: _bytes.write(b"x"),
    "Path.write_text": lambda: (_folder / "x").write_text("x"),
    "os.write": lambda: os.write(_file.fileno(), b"x"),
    "a generator of random numbers": lambda: _draws.random(),
    "numpy.random": lambda: numpy.random.default_rng(),
    "a queue": lambda: _waiting.put(1),
    "a process": lambda: subprocess.run(["true"], check=True),
    "a socket": lambda: _here.send(b"x"),
    "a database": lambda: _memory.execute("select 1"),
    "a tree of C": lambda: ElementTree.SubElement(_tree, "b"),
    "a deque of its own kind": lambda: _stack.append(1),
    "the clock": lambda: time.perf_counter(),
    "the date": lambda: datetime.datetime.now(),
    "a thread": lambda: threading.Thread(target=len, args=("",)).start(),
    "a warning": lambda: warnings.warn("x", stacklevel=1),
    "the collector": lambda: gc.collect(),
    "the interpreter": lambda: sys.setswitchinterval(sys.getswitchinterval()),
    "a signal": lambda: signal.raise_signal(signal.SIGURG),
    "the environment": lambda: os.environ.update(GRAPE_TESTS="x"),
    "a library that knows nothing of torch": lambda: HTML("x"),
    "a progress bar": lambda: list(tqdm.tqdm([1], file=_text)),
    "memory of the device": lambda: torch.cuda.memory.memory_allocated(),
    "a loader": lambda: torch.utils.data.get_worker_info(),
    "a name that nobody mentions": lambda: setattr(_Stack, "a", 1),
    "a finalizer": lambda: weakref.finalize(_stack, len, ""),
}
_text = io.StringIO()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", OUTSIDE)
def test_what_libraries_do_outside_is_refused(kind: str) -> None:
    act = OUTSIDE[kind]

    def function(x: torch.Tensor) -> torch.Tensor:
        act()
        return work(x)

    assert refused(function).code in ("GR404", "GR405")


def test_the_profile_function_is_gone_after_a_traced_call() -> None:
    served = graphed(lambda x: work(x))
    with eager_to_graph():
        for _ in range(8):
            served(torch.ones(3, 4))
            assert sys.getprofile() is None
    assert served.evidence().replays  # type: ignore[union-attr]


def test_modules_are_loaded_at_their_own_pace_and_what_their_call_does_is_seen_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "grape_loaded.py").write_text("import sys\nwatch = sys.getprofile()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "grape_loaded", raising=False)

    def function(x: torch.Tensor) -> torch.Tensor:
        import grape_loaded  # noqa: F401

        os.getloadavg()
        return work(x)

    found = refused(function)
    assert sys.modules["grape_loaded"].watch is None  # type: ignore[attr-defined]
    assert found.code == "GR404" and "getloadavg" in found.why


def test_who_watches_calls_sees_all_of_them() -> None:
    seen: list[str] = []

    def watch(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code is work.__code__:
            seen.append(event)

    served = graphed(lambda x: work(x))
    with eager_to_graph():
        for _ in range(8):
            sys.setprofile(watch)
            served(torch.ones(3, 4))
            assert sys.getprofile() == watch
            sys.setprofile(None)
    assert len(seen) == 8
    assert served.evidence().refused.code == "GR405"  # type: ignore[union-attr]


def test_what_a_library_does_once_refuses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at a file in the first call, and is loaded in it; later calls do neither."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    for name in ("grape_once", "grape_often"):
        caching = "@functools.cache\n" if name == "grape_once" else ""
        text = f"import functools, os, torch\n{caching}def size():\n    return len(os.listdir('/'))\n"
        (folder / f"{name}.py").write_text(text + "def scaled(x):\n    return x * min(size(), 1)\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr("grape.tracing.positions._ROOTS", (f"{folder}/",))

    def once(x: torch.Tensor) -> torch.Tensor:
        import grape_once

        return work(grape_once.scaled(x))

    def often(x: torch.Tensor) -> torch.Tensor:
        import grape_often

        return work(grape_often.scaled(x))

    served = graphed(once)
    with eager_to_graph():
        for _ in range(10):
            served(torch.ones(3, 4))
    assert served.evidence().replays  # type: ignore[union-attr]
    assert refused(often, times=10).code == "GR404"


@pytest.mark.parametrize("asked", [False, True])
def test_what_the_garbage_collector_calls_is_no_effect_of_the_call_in_which_it_comes(asked: bool) -> None:
    """A generator that somebody left behind is closed then, and its code calls what it likes. Who asks for a collection
    asks for that too.
    """

    def left_behind(me: list[Iterator[None]]) -> Iterator[None]:
        try:
            yield
        finally:
            closed.append(os.getloadavg())
            print(len(me))

    closed: list[object] = []
    many = 4 * gc.get_threshold()[0]
    ask: Callable[[], object] = gc.collect if asked else lambda: [[] for _ in range(many)]

    with EffectWatch(PositionFinder()) as watch:
        me: list[Iterator[None]] = []
        me.append(left_behind(me))
        next(me[0])
        del me  # a circle, which only the collector ends
        ask()
    assert closed
    assert bool(watch.found) is asked
    assert watch.calls._collecting not in gc.callbacks


OLD = """\
import itertools, torch, warnings

class Registry(dict):
    def get(self, key):
        return super().get(str(key)) or {}

calls, registry = itertools.count(), Registry()

def scaled(x, often):
    registry.get("a kind")
    warnings.warn(f"scaled() is old{next(calls) if often else ''}", FutureWarning, stacklevel=2)
    return x * 2
"""


@pytest.mark.parametrize(
    ("action", "often", "refused"), [("default", False, False), ("default", True, True), ("always", False, True)]
)
def test_a_library_that_warns_at_each_call_is_refused_where_that_is_shown(
    action: Any, often: bool, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "grape_old.py").write_text(OLD)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "grape_old", raising=False)
    monkeypatch.setattr("grape.tracing.positions._ROOTS", (*positions._ROOTS, f"{folder}/"))
    old = importlib.import_module("grape_old")
    served = graphed(lambda x: work(old.scaled(x, often)))
    with warnings.catch_warnings(record=True) as shown:
        warnings.resetwarnings()
        warnings.simplefilter(action, FutureWarning)
        with eager_to_graph():
            for _ in range(10):
                served(torch.ones(3, 4))
        found = served.evidence()
        assert found is not None and bool(found.replays) is not refused, found.refused
        assert len(shown) == 10 if refused else len(shown) == 1
        assert not refused or found.refused.code == "GR404"  # type: ignore[union-attr]
        warnings.simplefilter("error", FutureWarning)
        with pytest.raises(FutureWarning):
            served(torch.ones(3, 4))


def test_an_iterator_in_a_global_is_refused() -> None:
    assert refused(_ticks).code == "GR405"


def test_numpy_random_is_refused() -> None:
    numpy = pytest.importorskip("numpy")
    assert refused(lambda x: work(x) if numpy.random.rand() < 2 else x).code in ("GR404", "GR405")


def test_numpy_escape_is_refused() -> None:
    pytest.importorskip("numpy")
    # The first trace shows it; no capture is tried.
    assert refused(lambda x: work(x) + float(x.numpy().sum()), times=2).code == "GR101"
    assert refused(lambda x: work(x) + x.tolist()[0][0], times=2).code == "GR101"


@pytest.mark.parametrize("path", ["scalar", "shape", "state"])
def test_effects_on_a_path_that_was_not_traced(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The first calls are quiet; later ones print, under another key or with other state."""
    state = {"loud": False}

    def function(x: torch.Tensor, loud: bool = False) -> torch.Tensor:
        if loud or x.shape[0] == 5 or state["loud"]:
            print("loud")
        return work(x)

    served = graphed(function)
    with eager_to_graph():
        for _ in range(6):
            served(torch.ones(3, 4))
        capsys.readouterr()
        state["loud"] = path == "state"
        for _ in range(8):
            served(torch.ones(5 if path == "shape" else 3, 4), path == "scalar")
    assert capsys.readouterr().out == "loud\n" * 8


def test_hidden_state_in_a_method() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return work(x)

    twins = Twins(lambda: World(function=Net()))
    twins.calls_of(one, 8)
    assert twins.refused.code == "GR404"


def test_recurrent_state_kept_on_the_module() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = torch.zeros(3, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.h = work(x + self.h)
            return self.h * 2

    twins = Twins(lambda: World(function=Net()))
    twins.calls_of(one, 10)


def test_a_mode_of_the_person_sees_every_operator() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.t() + 1).tanh() * 2

    served = graphed(function)
    counts = []
    with eager_to_graph():
        for _ in range(10):
            with FlopCounterMode(display=False) as counter:
                served(torch.ones(3, 4))
            counts.append(counter.get_total_flops())
    assert len(set(counts)) == 1


class Counting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += func is torch.sigmoid
        return func(*args, **(kwargs or {}))


def test_a_function_mode_of_the_person_sees_every_call() -> None:
    served = graphed(lambda x: work(torch.sigmoid(x)))
    counts = []
    with eager_to_graph():
        for _ in range(12):
            with Counting() as mode:
                served(torch.ones(3, 4))
            counts.append(mode.calls)
    assert counts[-4:] == [1] * 4


def test_a_module_that_is_spread_over_devices_is_refused() -> None:
    """Without a device it calls its module; with several it works in threads."""
    model = nn.DataParallel(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)))
    refusal = refused(lambda x: model(x) * 2)
    assert refusal.code == "GR405"
    assert "DataParallel" in refusal.why


def test_default_device_is_a_mode_that_is_understood() -> None:
    twins = Twins(lambda: World(function=lambda x: work(x) + torch.ones(4)))
    with torch.device("cpu"):
        twins.warm(one)
    twins.calls_of(one, 2)


def test_vmap_runs_eagerly() -> None:
    served = graphed(work)
    with eager_to_graph():
        for _ in range(7):
            served(torch.ones(4))
    x = torch.randn(3, 4)
    assert torch.equal(torch.func.vmap(served)(x), work(x))
    assert served.evidence().replays  # type: ignore[union-attr]


# -- values that the host reads --------------------------------------------------------------------------------------

READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "branch on an argument": lambda x: work(x) if (x[0, 0] > 0).item() else work(x) * 2,
    "branch on all": lambda x: work(x) if bool((x > -100).all()) else work(x) * 2,
    "number from an argument": lambda x: work(x) * int(x[0, 0] > 0),
    "sign of zero": lambda x: torch.copysign(work(x), torch.full((4,), float(x[0, 0].sign() * 0.0))),
    "read before a write": lambda x: (work(x) if bool(x[0, 0] > 0) else work(x) * 2) + x.mul_(0.5),
    "read after a write": lambda x: (x.mul_(-1), work(x) if bool(x[0, 0] > 0) else work(x) * 2)[1],
    "value returned": lambda x: (work(x), (x[0, 0] > 0).item()),
    "shape from data": lambda x: work(x)[x[:, 0] > 0],
    "nonzero": lambda x: work(x[:, 0].nonzero().float()),
    "index by a value": lambda x: work(x)[int(x[0].argmax())],
    "loop over a value": lambda x: sum(work(x) * i for i in range(int(x[0].argmax()) + 1)),
}


@pytest.mark.parametrize("read", READS)
def test_values_read_on_the_host(read: str) -> None:
    twins = Twins(lambda: World(function=READS[read]))
    twins.calls_of(one, 24)


# -- what goes wrong -------------------------------------------------------------------------------------------------


def failing(x: torch.Tensor, fail: bool = False) -> torch.Tensor:
    y = work(x)
    if fail:
        raise ValueError("of the person")
    return y


@pytest.mark.parametrize("after", [0, 1, 3, 4, 8])
def test_an_exception_keeps_its_traceback(after: int) -> None:
    served = graphed(failing)
    with eager_to_graph():
        for _ in range(after):
            served(torch.ones(3, 4))
        with pytest.raises(ValueError, match="of the person") as caught:
            served(torch.ones(3, 4), fail=True)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame.name for frame in frames] == ["test_an_exception_keeps_its_traceback", "failing"]
    assert frames[-1].line == 'raise ValueError("of the person")'
    with eager_to_graph():
        assert torch.equal(served(torch.ones(3, 4)), work(torch.ones(3, 4)))


def capturing() -> bool:
    modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    return any(type(mode).__name__ == "CaptureMode" for mode in modes)


def test_code_that_runs_otherwise_in_a_capture() -> None:
    twins = Twins(lambda: World(function=lambda x: work(x) * 2 if capturing() else work(x) + 1))
    twins.calls_of(one, 8)
    assert twins.refused.code == "GR402"


def test_a_scalar_that_is_another_in_a_capture() -> None:
    twins = Twins(lambda: World(function=lambda x: work(x) * (2 if capturing() else 3)))
    twins.calls_of(one, 8)
    assert twins.refused.code == "GR403"


def test_random_operators_follow_the_eager_stream() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(work(x), 0.5) + torch.rand(4)

    served = graphed(function)
    for seed in range(10):
        torch.manual_seed(seed)
        expected, state = function(torch.ones(3, 4)), torch.get_rng_state()
        torch.manual_seed(seed)
        with eager_to_graph():
            assert torch.equal(served(torch.ones(3, 4)), expected)
        assert torch.equal(torch.get_rng_state(), state)
    assert served.evidence().replays  # type: ignore[union-attr]


class Raises(Exception):
    pass


@pytest.mark.parametrize("error", [Raises, KeyboardInterrupt])
def test_an_exception_only_in_the_capture(error: type[BaseException]) -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.dropout(work(x), 0.5)
        if capturing():
            raise error("in the capture")
        return y

    served = graphed(checked)
    raised = 0
    for seed in range(12):
        torch.manual_seed(seed)
        expected = torch.nn.functional.dropout(work(torch.ones(3, 4)), 0.5)
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        try:
            with eager_to_graph():
                result = served(torch.ones(3, 4))
        except error:
            raised += 1
            assert error is KeyboardInterrupt
        else:
            assert torch.equal(result, expected)
        assert torch.equal(torch.get_rng_state(), state)
    assert raised == 0 or error is KeyboardInterrupt
    assert served.evidence().replays == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("where", ["replay", "compare"])
def test_state_is_whole_after_a_failed_verification(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay of the verification fails half-way; what the eager call left in the buffer stands."""
    from grape.runtime.backends.reference.executable import ReferenceExecutable
    from grape.runtime.capture.proof import verification

    def fails(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    if where == "replay":
        monkeypatch.setattr(ReferenceExecutable, "replay", fails)
    else:
        monkeypatch.setattr(verification, "first_mismatch", fails)

    def build() -> World:
        buffer = torch.zeros(3, 4)
        return World(function=lambda x: work(x) + buffer.add_(x), buffer=buffer)

    twins = Twins(build)
    twins.calls_of(one, 8)
    assert twins.refused.code == "GR405"


def test_a_fault_of_the_capture_does_not_reach_the_person(monkeypatch: pytest.MonkeyPatch) -> None:
    from grape.runtime.capture.running import in_step

    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a fault")

    monkeypatch.setattr(in_step, "write_output_spec", fails)
    twins = Twins(lambda: World(function=work))
    twins.calls_of(one, 8)
    assert "a fault" in twins.refused.why


def test_other_threads_run_eagerly() -> None:
    served = graphed(work)
    with eager_to_graph():
        for _ in range(8):
            served(torch.ones(3, 4))
    evidence = served.evidence()
    assert evidence is not None
    replays, found = evidence.replays, []

    def other() -> None:
        with torch.no_grad():
            found.append(served(torch.full((3, 4), 2.0)))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert torch.equal(found[0], work(torch.full((3, 4), 2.0)))
    assert served.evidence().replays == replays > 0  # type: ignore[union-attr]


def test_recursion_runs_eagerly_inside() -> None:
    @grape.graph
    def function(x: torch.Tensor, depth: int) -> torch.Tensor:
        return work(x) if depth == 0 else work(function(x, depth - 1)) + 1

    with eager_to_graph():
        for i in range(10):
            x = torch.full((3, 4), float(i))
            assert torch.equal(function(x, 2), work(work(work(x)) + 1) + 1)
    function.release()


def test_release_and_again() -> None:
    twins = Twins(lambda: World(function=work))
    for _ in range(3):
        twins.warm(one)
        twins.graphed.release()


def test_a_kept_result_survives_later_graphs() -> None:
    """Results of one shape stay as they are while other shapes are captured into the same pool."""
    twins = Twins(lambda: World(function=lambda x: work(x) + 1))
    for rows in (3, 5, 2, 3, 7, 5, 3):
        for _ in range(6):
            twins.call(lambda w, rows=rows: ((torch.full((rows, 4), float(len(twins.results))),), {}))
    assert twins.replays > 10


def test_gradients_are_refused() -> None:
    with torch.enable_grad():
        net = nn.Linear(4, 4)
        assert refused(lambda x: net(x).tanh() * 2 + 1).code == "GR405"


# -- States of a device's generator ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "noted"),
    [
        (lambda saved: torch.cuda.set_rng_state(saved), True),
        (lambda saved: torch.cuda.random.set_rng_state(saved), True),
        (lambda saved: (state := torch.cuda.get_rng_state(), torch.rand(3), torch.cuda.set_rng_state(state)), True),
        (lambda saved: (torch.cuda.get_rng_state(), torch.cuda.set_rng_state(saved)), True),
        (lambda saved: (state := torch.cuda.get_rng_state(), torch.cuda.set_rng_state(state)), False),
        (lambda saved: torch.cuda.get_rng_state(), False),
    ],
    ids=["saved", "through the module", "fork around a draw", "another state", "fork around nothing", "read"],
)
def test_a_state_of_the_generator_that_is_set_is_an_effect_unless_that_changes_nothing(
    body: Callable[[torch.Tensor], Any], noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device's generator is the CPU's here. `saved` is its very state: a replay in another would not set it."""
    for owner in (torch.cuda, torch.cuda.random):
        monkeypatch.setattr(owner, "get_rng_state", lambda: torch.get_rng_state())
        monkeypatch.setattr(owner, "set_rng_state", lambda new_state: torch.set_rng_state(new_state))
    before = (torch.cuda.get_rng_state, torch.cuda.set_rng_state)
    saved = torch.get_rng_state()
    with EffectWatch(PositionFinder()) as watch:
        body(saved)
    assert [name for name, _ in watch.found] == (["set_rng_state"] if noted else [])
    assert (torch.cuda.get_rng_state, torch.cuda.set_rng_state) == before
    assert all(at is not None for _, at in watch.found)


_DRAWS_FIRST = """
import sys
import numpy, torch
assert "numpy.random" not in sys.modules
from grape.runtime.guarding.effects import EffectWatch
from grape.tracing import PositionFinder, positions

def watched(call):
    with EffectWatch(PositionFinder()) as watch:
        call()
    return watch.found, watch.direct

print(watched(lambda: torch.ones(2)), "numpy.random" in sys.modules)
print(watched(lambda: numpy.random.rand()))
print(watched(lambda: numpy.random.rand()))
"""


def test_the_output_in_a_watched_call_is_of_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with EffectWatch(PositionFinder()) as watch:
        assert isinstance(sys.stdout, io.StringIO) and isinstance(sys.stdout, io.TextIOBase)
        print("said", file=sys.stdout)
    assert sys.stdout.getvalue() == "said\n" and watch.found


def test_what_stands_for_functions_while_a_call_is_watched_has_their_names() -> None:
    def names() -> list[str]:
        there = (open, input, time.sleep, warnings.warn, torch.get_rng_state)
        return [text for function in there for text in (function.__qualname__, str(function.__module__))]

    plain = names()
    with EffectWatch(PositionFinder()):
        assert type(open) is not type(len)
        assert names() == plain


def test_what_dies_in_a_watched_call_is_no_code_of_it() -> None:
    """Whatever the garbage collector finds may die in any call."""
    names: dict[str, Any] = {}
    source = "class Dies:\n    def __del__(self): died.append(1)\ndied = []\ndef f(held): held.clear()\n"
    exec(compile(source, "<ipython-input-1>", "exec"), names)
    held = [names["Dies"]()]
    with EffectWatch(PositionFinder()) as watch:
        names["f"](held)
    assert names["died"] == [1]
    assert {code.co_name for code in watch.calls.own} == {"f"}


def test_generators_that_nobody_asked_for_are_not_imported() -> None:
    done = subprocess.run([sys.executable, "-c", _DRAWS_FIRST], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "([], False) False",
        "([('numpy.random', None)], False)",  # it came meanwhile: a library may have imported it once
        "([('numpy.random', None)], True)",
    ]
