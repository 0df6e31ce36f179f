"""Attempts to make a replay wrong: what a program may do with results, arguments and state behind Grape's back."""

from __future__ import annotations

import contextvars
import copy
import ctypes
import functools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from torch import nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from grape.runtime import GraphedFunction
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.guarding.environment import environment
from grape.runtime.regions.region import Region
from grape.tracing import Tracer
from tests.property.programs import Twins, World, eager_to_graph

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
TIMES = 8
"""Calls after a change: of these some are eager for the sake of the comparison, the others would replay."""


class Driver:
    """Twins of `function(x, w)`, warmed up: a graph replays, and every result may be handed out in place."""

    def __init__(self, function: Callable[..., Any], argument: Callable[[], torch.Tensor] | None = None) -> None:
        def build() -> World:
            return World(function=lambda x, w: function(x, w), w=torch.randn(4, 4))

        self.argument = argument or (lambda: torch.randn(3, 4))
        self.seed = 0
        self.twins = Twins(build, in_place=True)
        with torch.no_grad():
            self.warm()

    def warm(self) -> None:
        for _ in range(10):
            self.once()
            if self.twins.replays:
                return
        raise AssertionError(self.twins.refused)

    def once(self, argument: Callable[[], torch.Tensor] | None = None) -> tuple[Any, Any]:
        """The eager result and Grape's, which nothing here keeps."""
        self.seed += 1

        def call(world: World) -> Arguments:
            torch.manual_seed(self.seed)
            return ((argument or self.argument)(), world.w), {}

        self.twins.call(call, keep=False)
        last, self.twins.last = self.twins.last, (None, None)
        return last

    def go_on(self, argument: Callable[[], torch.Tensor] | None = None) -> None:
        with torch.no_grad():
            for _ in range(TIMES):
                self.once(argument)


def work(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = (x @ w).tanh() + 1
    return y * 2, y - 1


# -- results -----------------------------------------------------------------------------------------------------------

EXPORTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "numpy": lambda r: r.numpy(),
    "dlpack": torch.from_dlpack,
    "storage": lambda r: r.untyped_storage(),
    "typed storage": lambda r: r.storage(),
    "view of data": lambda r: r.data[1:],
    "deepcopy": copy.deepcopy,
    "pickle": lambda r: pickle.loads(pickle.dumps(r)),
    "adopted": lambda r: setattr(taken := torch.empty(0), "data", r) or taken,
    "hook of a parameter": lambda r: nn.Parameter(r, requires_grad=False),
    "in an exception": lambda r: RuntimeError(r),
    "bytes": lambda r: memoryview(r.numpy()),
}


def _bytes(export: Any) -> bytes:
    if isinstance(export, RuntimeError):
        export = export.args[0]
    if isinstance(export, torch.TypedStorage):
        export = export.untyped()
    if isinstance(export, torch.UntypedStorage):
        return bytes(export.tolist())
    return bytes(np.ascontiguousarray(export.numpy() if isinstance(export, torch.Tensor) else export).tobytes())


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("name", EXPORTS)
def test_what_is_all_that_is_kept_of_a_result_is_not_overwritten(name: str) -> None:
    driver = Driver(work)
    kept: list[tuple[Any, Any]] = []
    with torch.no_grad():
        for number in range(12):
            results = driver.once()
            if number % 3 == 0:
                mine, theirs = (EXPORTS[name](result[0]) for result in results)
                kept.append((mine, theirs))
                del mine, theirs
            del results
            for one, other in kept:
                assert _bytes(one) == _bytes(other)
    assert driver.twins.replays > 2


def test_a_result_that_moved_into_shared_memory() -> None:
    """`share_memory_`, which a queue between processes calls, gives the storage other memory."""
    driver = Driver(work)
    with torch.no_grad():
        for _ in range(TIMES):
            for result in driver.once()[1]:
                result.share_memory_()
                del result
    assert driver.twins.replays > 3


# -- what surrounds a call ---------------------------------------------------------------------------------------------


def test_precision_set_through_the_new_interface() -> None:
    """The older getters raise from then on; the person's call must not."""
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("this torch has no such setting")
    driver = Driver(work)
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        driver.go_on()
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_forward_mode_tangents() -> None:
    driver = Driver(work)
    with torch.no_grad():
        x, tangent = torch.randn(3, 4), torch.randn(3, 4)
    for _ in range(TIMES):
        with forward_ad.dual_level(), eager_to_graph(in_place=True):
            functions = (
                (driver.twins.eager.function, driver.twins.eager.w),
                (driver.twins.graphed, driver.twins.world.w),
            )
            pairs = [forward_ad.unpack_dual(f(forward_ad.make_dual(x, tangent), w)[0]) for f, w in functions]
            assert pairs[1].tangent is not None
            assert torch.equal(pairs[0].tangent, pairs[1].tangent)


class _Seen(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.matmuls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.matmuls += func is torch.Tensor.__matmul__ or func is torch.Tensor.matmul
        return func(*args, **(kwargs or {}))


def test_a_function_mode_above_a_default_device() -> None:
    """With a default device there is a mode already: one more must still be noticed."""
    with torch.device("cpu"):
        driver = Driver(work)
        with _Seen() as seen, torch.no_grad(), eager_to_graph(in_place=True):
            for number in range(TIMES):
                driver.twins.graphed(torch.randn(3, 4), driver.twins.world.w)
                assert seen.matmuls > number


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_a_library_that_replaces_a_kernel_of_torch() -> None:
    """A graph has what the kernel did when it was captured; one on the CPU asks the dispatcher each time, though."""
    before = environment(torch.device("cpu"))
    library = torch.library.Library("aten", "IMPL")
    library.impl("sin", lambda x: x * 3, "CPU")
    try:
        replaced = environment(torch.device("cpu"))
    finally:
        library._destroy()
    assert replaced != before and environment(torch.device("cpu")) == before
    beside = torch.library.Library("hostile_runtime", "DEF")
    beside.define("other(Tensor x) -> Tensor")
    beside.impl("other", lambda x: x, "CPU")
    assert environment(torch.device("cpu")) == before
    beside._destroy()


def test_an_inference_tensor_that_the_region_would_write() -> None:
    """Eager refuses to write an inference tensor outside of inference mode: so does the replay's call."""

    def writes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.mul_(0.5)
        return (x @ w).tanh()

    def inference_tensor() -> torch.Tensor:
        with torch.inference_mode():
            return torch.randn(3, 4)

    Driver(writes).go_on(inference_tensor)


@pytest.mark.parametrize("around", [False, True])
def test_results_that_a_call_makes_in_another_inference_mode_than_its_own(
    around: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Twins, "versions", False)  # copies of results made under inference mode count

    def makes(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (x @ w).tanh()
        with torch.inference_mode(not around), torch.no_grad():
            hidden = torch.cat([x, y]) * 2
            return y, hidden, *(() if around else (hidden[1:], y.t())), x[:1]

    with torch.inference_mode(around):
        driver = Driver(makes)
        driver.go_on()
    assert driver.twins.replays > 3


def test_a_view_that_a_call_makes_outside_of_its_own_inference_mode_is_refused() -> None:
    """A replay would return a tensor that is no view of another."""

    def makes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x @ w).tanh()
        with torch.inference_mode(False), torch.no_grad():
            return torch.cat([y, y])[1:]

    with torch.inference_mode(), pytest.raises(AssertionError, match="would differ from the eager one in its"):
        Driver(makes)


# -- state that has no operator ----------------------------------------------------------------------------------------

_variable: contextvars.ContextVar[float] = contextvars.ContextVar("scale", default=1.0)
_number = ctypes.c_float(1.0)
_view = memoryview(bytearray(8)).cast("d")
_steps = iter(())


HIDDEN: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "context variable": (lambda x, w: ((x @ w).tanh() + 1) * _variable.get(), lambda v: _variable.set(v)),
    "ctypes": (lambda x, w: ((x @ w).tanh() + 1) * _number.value, lambda v: setattr(_number, "value", v)),
    "memoryview": (lambda x, w: ((x @ w).tanh() + 1) * (_view[0] + 1), lambda v: _view.__setitem__(0, v)),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_number_kept_where_python_has_no_attributes(name: str) -> None:
    function, change = HIDDEN[name]
    change(1.0)
    served = GraphedFunction(function, backend=ReferenceBackend(poison=True), tolerance=0.0)
    x, w = torch.ones(3, 4), torch.ones(4, 4)
    with torch.no_grad(), eager_to_graph():
        for call in range(12):
            change(1.0 + call // 6)
            assert torch.equal(served(x, w), function(x, w))
    change(1.0)
    evidence = served.evidence()
    assert evidence is not None and evidence.refused is not None
    assert "whose state nobody can compare" in evidence.refused.why


def test_an_iterator_that_gives_equal_numbers_is_moved_on_by_every_call() -> None:
    globals()["_steps"] = iter([1.0] * 40)
    served = GraphedFunction(
        lambda x: (x * 2 + 1).tanh() * next(_steps), backend=ReferenceBackend(poison=True), tolerance=0.0
    )
    with torch.no_grad(), eager_to_graph():
        for _ in range(20):
            served(torch.ones(3, 4))
    assert len(list(_steps)) == 20


def test_an_attribute_of_an_argument() -> None:
    def with_attribute() -> torch.Tensor:
        x = torch.randn(3, 4)
        x.scale = 3.0  # type: ignore[attr-defined]
        return x

    driver = Driver(lambda x, w: ((x @ w).tanh() + 1) * getattr(x, "scale", 1.0))
    driver.go_on(with_attribute)
    driver.go_on()


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x @ self.weight).tanh() + 1) * getattr(self.weight, "scale", 1.0)


class _Normalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(self.linear(x).tanh()) * 2
        return result


def modules(make: Callable[[], nn.Module]) -> tuple[Twins, Callable[[World], Arguments]]:
    seeds = iter(range(1000))
    twins = Twins(lambda: World(function=make()), in_place=True)
    arguments: dict[int, torch.Tensor] = {}

    def call(world: World) -> Arguments:
        if world is twins.eager:
            arguments[0] = torch.randn(3, 4, generator=torch.Generator().manual_seed(next(seeds)))
        return (arguments[0].clone(),), {}

    return twins, call


def go_on(twins: Twins, call: Callable[[World], Arguments]) -> None:
    before = twins.replays
    for _ in range(TIMES):
        twins.call(call, keep=False)
        twins.last = (None, None)
    assert twins.replays > before


@pytest.mark.parametrize("first", [None, 2.0])
def test_an_attribute_of_a_parameter(first: float | None) -> None:
    twins, call = modules(_Scaled)
    if first is not None:
        twins.both(lambda world: setattr(world.function.weight, "scale", first))
    with torch.no_grad():
        go_on(twins, call)
        twins.both(lambda world: setattr(world.function.weight, "scale", 5.0))
        go_on(twins, call)


def test_running_statistics_that_no_schema_says_are_written() -> None:
    """`native_batch_norm` writes them in training: verification must not count a call twice, replays must count."""
    twins, call = modules(_Normalized)
    with torch.no_grad():
        go_on(twins, call)
        go_on(twins, call)
    assert twins.replays > 3


@pytest.mark.parametrize("name", ["batch_norm", "instance_norm"])
def test_running_statistics_that_a_normalization_writes_in_inference_mode(name: str) -> None:
    """There it reaches a dispatch mode whole, as another operator than those that it is made of."""

    def build() -> World:
        world = World(mean=torch.zeros(3), variance=torch.ones(3))

        def normalize(x: torch.Tensor) -> torch.Tensor:
            with torch.inference_mode():
                hidden = torch.tanh(x * 2)
                if name == "batch_norm":
                    return torch.nn.functional.batch_norm(hidden, world.mean, world.variance, training=True) + 1
                return torch.nn.functional.instance_norm(hidden, world.mean, world.variance) + 1

        world.function = normalize
        return world

    seeds = iter(range(1000))
    arguments: dict[int, torch.Tensor] = {}
    twins = Twins(build)
    twins.versions = False  # a traced call does not count as eager code in inference mode does

    def call(world: World) -> Arguments:
        if world is twins.eager:
            arguments[0] = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(next(seeds)))
        return (arguments[0].clone(),), {}

    twins.warm(call)
    twins.calls_of(call, TIMES)
    assert twins.replays > 3


def _share(world: World) -> None:
    world.function.share_memory()


def _resize(world: World) -> None:
    storage, saved = world.function.weight.untyped_storage(), world.function.weight.clone()
    nbytes = storage.nbytes()
    storage.resize_(0)
    storage.resize_(nbytes * 1000)
    world.function.weight.copy_(saved)


@pytest.mark.parametrize("move", [_share, _resize])
def test_a_parameter_whose_storage_is_given_other_memory(move: Callable[[World], None]) -> None:
    twins, call = modules(_Scaled)
    with torch.no_grad():
        go_on(twins, call)
        twins.both(move)
        go_on(twins, call)


# -- where a tensor lies -----------------------------------------------------------------------------------------------

PLACES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "storage_offset": lambda x, w: ((x @ w).tanh() + 1) * (1 + x.storage_offset()),
    "_base": lambda x, w: ((x @ w).tanh() + 1) * (1 if x._base is None else 2),
    "_version": lambda x, w: ((x @ w).tanh() + 1) * (1 + x._version),
    "as_strided": lambda x, w: (torch.as_strided(x, (2, 4), (4, 1), 0) @ w).tanh() + 1,
}


@pytest.mark.parametrize("name", PLACES)
def test_a_call_that_asks_where_its_argument_lies(name: str) -> None:
    twins = Twins(lambda: World(function=lambda x, w: PLACES[name](x, w), w=torch.ones(4, 4)), in_place=True)

    def at_the_beginning(world: World) -> Arguments:
        return (torch.arange(12.0).view(3, 4), world.w), {}

    def further_on(world: World) -> Arguments:
        return (torch.arange(20.0).view(5, 4)[2:].add_(1), world.w), {}

    with torch.no_grad():
        twins.calls_of(at_the_beginning, TIMES)
        twins.calls_of(further_on, TIMES)


# -- several regions ---------------------------------------------------------------------------------------------------


def test_memory_that_another_regions_graph_reads_is_not_given_back() -> None:
    """The first region's result is read where it lies by the second's graph, which outlives the first (R1)."""
    weight = torch.randn(4, 4)

    def first(x: torch.Tensor) -> torch.Tensor:
        return ((x @ weight).tanh() + 1) * 2

    def second(h: torch.Tensor) -> torch.Tensor:
        return ((h @ weight).tanh() - 1) * 3

    served = GraphedFunction(first, backend=ReferenceBackend(poison=True), tolerance=0.0)
    one = served._make_region()
    other = Region(one.context, second, second, "second", one.at)
    with torch.no_grad(), eager_to_graph(in_place=True):
        for _ in range(TIMES):
            x = torch.randn(3, 4)
            assert torch.equal(other.call((one.call((x,), {}),), {}), second(first(x)))
        entry = other.entries[0]
        assert entry.placeholders.forwarded == [0]
        one.release()
        slot = entry.placeholders.slots[0]
        assert slot in list(one.context.store)
        assert slot.nbytes > 0
        replays = other.replays
        for _ in range(TIMES):
            h = torch.randn(3, 4)
            assert torch.equal(other.call((h,), {}), second(h))
        assert other.replays > replays
        other.release()
        assert slot not in list(one.context.store)


# -- interrupts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["listen", "watch"])
def test_an_interrupt_while_the_tracer_is_set_up_leaves_no_mode(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixture `nothing_survives` looks at the stack of modes."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Tracer, step, interrupted)
    served = GraphedFunction(work, backend=ReferenceBackend(poison=True), tolerance=0.0)
    with pytest.raises(KeyboardInterrupt), torch.no_grad():
        served(torch.ones(3, 4), torch.ones(4, 4))


def _table(name: str) -> Callable[[], dict[str, list[int]]]:
    table: dict[str, list[int]] = {"calls": []}
    if name == "reached":
        return lambda: table
    return functools.cache(lambda: {"calls": []})  # what a cache holds is out of sight


@pytest.mark.parametrize("name", ["reached", "hidden"])
def test_a_container_from_outside_is_returned_itself(name: str) -> None:
    table = _table(name)
    w = torch.randn(4, 4)

    def pair(x: torch.Tensor) -> Any:
        y = torch.tanh(x @ w)
        return y * 2, {"made": y.sum(), "found": table()}

    graphed = GraphedFunction(pair, backend=ReferenceBackend(poison=True), tolerance=0.0)
    with torch.no_grad(), eager_to_graph():
        for _ in range(20):
            assert graphed(torch.randn(3, 4))[1]["found"] is table()
    evidence = graphed.evidence()
    assert evidence is not None and bool(evidence.replays) == (name == "reached")
