"""Alias prediction: where a position's result is written, when it is not, and that nobody notices."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from grape.model import Position
from grape.runtime.alias import predictor as predictor_module
from grape.runtime.alias.predictor import Predictor
from grape.runtime.alias.rules import CALLABLES
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.buffers.slots import Slot, SlotStore
from grape.runtime.regions.context import RegionContext
from grape.runtime.regions.region import Region
from grape.tracing import PositionFinder, Tracer

CPU = torch.device("cpu")
ROWS = 4


class _Region(Region):
    """Expects a call that one entry serves; what it measures is set by the test."""

    expected: Any = ()
    entries: Any = ()
    copy_ns: Any = 1e12
    device_bound: Any = False
    ours = True

    def __init__(self, entry: Any, predictor: Predictor) -> None:
        backend, tracer = ReferenceBackend(), Tracer(PositionFinder())
        context = RegionContext(backend=backend, tracer=tracer, store=SlotStore(backend), predictor=predictor)
        super().__init__(context, predictor.learn, predictor.learn, "region", Position(file="?", line=1, function=""))
        self.expected = self.entries = [entry]

    def on_its_stream(self) -> bool:
        return self.ours


class Bench:
    """A region that reads one argument from a slot, and a position that makes it."""

    def __init__(self, nbytes: int = 4096) -> None:
        self.slot = Slot(ReferenceBackend(), nbytes)
        self.predictor = Predictor(CPU, PositionFinder())
        placeholders = SimpleNamespace(slots={0: self.slot}, addresses=[self.slot.address])
        self.entry: Any = SimpleNamespace(paths=("args[0]",), placeholders=placeholders, index_of={"args[0]": 0}.get)
        self.region = _Region(self.entry, self.predictor)
        self.region.calls = 1
        self.order = torch.tensor([2, 0, 3, 1])
        self.source = torch.arange(ROWS * 4.0).view(ROWS, 4)

    def make(self, source: Tensor | None = None, order: Tensor | None = None) -> Tensor:
        """The position."""
        return torch.index_select(self.source if source is None else source, 0, self.order if order is None else order)

    def call(self, argument: Tensor) -> None:
        """The region is called."""
        self.region.calls += 1
        self.predictor.paused = True
        to_copy = [0] if argument.data_ptr() != self.slot.address else []
        self.predictor.learned(self.region, [argument], self.entry, to_copy)
        self.predictor.arrived(self.region, [argument])
        self.predictor.paused = False

    def learn(self) -> None:
        self.predictor.learn(self.region)
        self.call(self.make())

    def in_slot(self, tensor: Tensor) -> bool:
        return tensor.data_ptr() == self.slot.address

    @property
    def counts(self) -> tuple[int, int]:
        return self.region.replay_counts.alias_hits, self.region.replay_counts.alias_misses


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(predictor_module, "MIN_BYTES", 1)
    made = Bench()
    with torch.no_grad():
        yield made
    made.predictor.forget()


ORIGINALS = {(id(owner), name): getattr(owner, name) for owner, name, _ in CALLABLES}


def patched() -> list[str]:
    return [name for owner, name, _ in CALLABLES if getattr(owner, name) is not ORIGINALS[id(owner), name]]


def test_a_position_that_was_learned_writes_into_the_placeholder(bench: Bench) -> None:
    bench.learn()
    assert bench.region.origins["args[0]"].function == "Bench.make"
    for number in range(1, 4):
        bench.source += number
        made = bench.make()
        assert bench.in_slot(made) and bench.slot.predicted and bench.slot.occupied
        assert torch.equal(made, bench.source[bench.order])
        bench.call(made)
        del made
    assert bench.counts == (3, 0)


def test_only_the_callables_of_sites_stay_patched(bench: Bench) -> None:
    assert not patched()
    bench.predictor.learn(bench.region)
    assert len(patched()) == len(ORIGINALS) and bench.predictor.waits_for(bench.region)
    bench.call(bench.make())
    assert patched() == ["index_select"]
    bench.predictor.forget()
    assert not patched()
    assert "__add__" in vars(Tensor) or Tensor.__add__ is torch._C.TensorBase.__add__


def test_patches_that_somebody_replaced_are_left_alone(bench: Bench) -> None:
    bench.learn()
    wrapped = torch.index_select

    def theirs(*args: Any) -> Tensor:
        return wrapped(*args)

    try:
        torch.index_select = theirs  # type: ignore[assignment]
        bench.predictor.forget()
        assert torch.index_select is theirs
        assert torch.equal(bench.make(), bench.source[bench.order]) and not bench.in_slot(bench.make())
    finally:
        torch.index_select = ORIGINALS[id(torch), "index_select"]


def test_a_cell_that_ends_while_positions_are_learned(bench: Bench) -> None:
    bench.predictor.learn(bench.region)
    bench.make()
    bench.predictor.stop_learning()
    assert not patched() and not bench.predictor.waits_for(bench.region)


def test_not_where_code_is_compiled(bench: Bench) -> None:
    bench.predictor.allowed = False
    bench.predictor.learn(bench.region)
    assert not patched()


def test_a_misprediction_is_an_ordinary_tensor(bench: Bench) -> None:
    bench.learn()
    made = bench.make()
    assert bench.in_slot(made)
    bench.call(made.clone())  # another tensor is the argument
    assert bench.counts == (0, 1)
    assert torch.equal(made, bench.source[bench.order])


def test_positions_that_mispredict_are_demoted(bench: Bench) -> None:
    bench.learn()
    for _ in range(2):
        made = bench.make()
        assert bench.in_slot(made)
        bench.call(torch.zeros(ROWS, 4))
        del made
    assert bench.counts == (0, 2)
    assert dict(bench.predictor.demoted) == {bench.region: {"args[0]": "its result is not the argument"}}
    assert not patched() and not bench.in_slot(bench.make())


def test_a_position_that_is_mostly_right_stays(bench: Bench) -> None:
    bench.learn()
    for number in range(12):
        made = bench.make()
        assert bench.in_slot(made)
        bench.call(made if number % 4 else torch.zeros(ROWS, 4))
        del made
    assert bench.counts == (9, 3)


def test_an_occupant_that_lives_is_not_overwritten(bench: Bench) -> None:
    bench.learn()
    held = bench.make()[1:]
    before = held.clone()
    bench.source += 1
    bench.region.calls += 1
    second = bench.make()
    assert not bench.in_slot(second)
    assert torch.equal(second, bench.source[bench.order]) and torch.equal(held, before)
    del held
    bench.region.calls += 1
    assert bench.in_slot(bench.make())


def test_a_result_that_does_not_fit_is_not_foreseen(bench: Bench) -> None:
    bench.learn()
    wide = torch.randn(ROWS, 1000)
    for _ in range(4):
        assert torch.equal(bench.make(wide), wide[bench.order]) and not bench.slot.occupied
        bench.region.calls += 1
    assert dict(bench.predictor.demoted) == {bench.region: {"args[0]": "its result cannot be foreseen"}}
    assert not patched()


def test_other_shapes_and_dtypes_go_there_too(bench: Bench) -> None:
    bench.learn()
    for source in (torch.randn(ROWS, 7), torch.randn(9, 2).half(), torch.arange(8).view(4, 2), torch.randn(4, 0)):
        made = bench.make(source)
        assert bench.in_slot(made) or not made.numel()
        assert torch.equal(made, source[bench.order]) and made.dtype == source.dtype
        assert made.stride() == source.index_select(0, bench.order).stride()
        bench.call(made)
        del made


class _Seeing(TorchDispatchMode):
    seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        type(self).seen += "index_select.default" in str(func)
        return func(*args, **(kwargs or {}))


class _SeeingCalls(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _another_stream(bench: Bench) -> Any:
    bench.region.ours = False
    return nullcontext()


def _paused(bench: Bench) -> Any:
    bench.predictor.paused = True
    return nullcontext()


def _no_graph(bench: Bench) -> Any:
    bench.region.expected = []
    return nullcontext()


def _inside_the_slot(bench: Bench) -> Any:
    bench.entry.placeholders.addresses[0] += 16
    return nullcontext()


class _Deterministic:
    def __enter__(self) -> None:
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *error: object) -> None:
        torch.use_deterministic_algorithms(False)


PLACES: dict[str, Callable[[Bench], Any]] = {
    "autocast": lambda bench: torch.autocast("cpu", torch.bfloat16),
    "a dispatch mode": lambda bench: _Seeing(),
    "a function mode": lambda bench: _SeeingCalls(),
    "a default device": lambda bench: torch.device("cpu"),
    "deterministic algorithms": lambda bench: _Deterministic(),
    "another stream": _another_stream,
    "inside a region": _paused,
    "no graph expected": _no_graph,
    "the argument lies inside the slot": _inside_the_slot,
}


@pytest.mark.parametrize("place", PLACES)
def test_where_nothing_is_predicted(bench: Bench, place: str) -> None:
    bench.learn()
    _Seeing.seen = 0
    with PLACES[place](bench):
        made = bench.make()
        assert not bench.in_slot(made) and torch.equal(made, bench.source[bench.order])
    assert _Seeing.seen == (place == "a dispatch mode")
    assert not bench.slot.occupied


def test_nothing_is_predicted_where_autograd_follows(bench: Bench) -> None:
    bench.learn()
    leaf = bench.source.clone().requires_grad_()
    with torch.enable_grad():
        made = bench.make(leaf)
        assert made.requires_grad and not bench.in_slot(made)
        (gradient,) = torch.autograd.grad(made.sum(), leaf)
        assert torch.equal(gradient, torch.ones(ROWS, 4))
        bench.region.calls += 1
        plain = bench.make()
        assert bench.in_slot(plain) and not plain.requires_grad
    bench.region.calls += 1
    del made, plain
    without = bench.make(leaf)
    assert bench.in_slot(without) and not without.requires_grad


class _Mine(Tensor):
    """What a copy of it is, is its own affair."""


def test_nothing_is_predicted_for_a_subclass(bench: Bench) -> None:
    def make(source: Tensor) -> Tensor:
        return torch.clone(source)

    bench.predictor.learn(bench.region)
    bench.call(make(bench.source))
    made = make(bench.source)
    assert bench.in_slot(made)
    bench.call(made)
    del made
    made = make(bench.source.as_subclass(_Mine))
    assert type(made) is _Mine and not bench.in_slot(made)


def test_nothing_is_predicted_in_a_transform(bench: Bench) -> None:
    bench.learn()
    batch = torch.randn(2, ROWS, 4)
    made = torch.vmap(bench.make)(batch)
    assert torch.equal(made, batch[:, bench.order]) and not bench.slot.occupied


def test_nothing_is_predicted_in_another_thread(bench: Bench) -> None:
    bench.learn()
    results: list[Tensor] = []
    thread = threading.Thread(target=lambda: results.append(bench.make()))
    thread.start()
    thread.join()
    assert torch.equal(results[0], bench.source[bench.order]) and not bench.in_slot(results[0])
    assert bench.in_slot(bench.make())


def test_in_inference_mode_its_tensors_are_made(bench: Bench) -> None:
    bench.learn()
    with torch.inference_mode():
        made = bench.make()
        assert bench.in_slot(made) and made.is_inference()
    del made
    bench.region.calls += 1
    made = bench.make()
    assert bench.in_slot(made) and not made.is_inference()


@pytest.mark.parametrize("learned", [False, True], ids=["while learning", "at a site"])
@pytest.mark.parametrize("order", [torch.tensor([9]), torch.tensor([0.5]), torch.zeros(2, 2, dtype=torch.int64)])
def test_an_exception_is_the_persons_own(bench: Bench, learned: bool, order: Tensor) -> None:
    with pytest.raises((IndexError, RuntimeError)) as plain:
        bench.make(None, order)
    if learned:
        bench.learn()
    else:
        bench.predictor.learn(bench.region)
    with pytest.raises(type(plain.value)) as found:
        bench.make(None, order)
    assert str(found.value) == str(plain.value)
    frames = [
        [frame.name for frame in traceback.extract_tb(error.__traceback__)] for error in (plain.value, found.value)
    ]
    assert frames[0] == frames[1]
    assert found.value.__context__ is None and found.value.__cause__ is None
    assert not bench.slot.occupied
    bench.call(bench.make())
    bench.region.calls += 1
    assert bench.in_slot(bench.make())


def test_a_position_is_known_by_its_ordinal(bench: Bench) -> None:
    bench.predictor.learn(bench.region)
    made = [bench.make(), bench.make(), bench.make()]
    bench.call(made[1])
    del made
    for _ in range(2):
        made = [bench.make(), bench.make(), bench.make()]
        assert [bench.in_slot(one) for one in made] == [False, True, False]
        bench.call(made[1])
        del made
    assert bench.counts == (2, 0)


def test_another_position_is_not_predicted(bench: Bench) -> None:
    bench.learn()
    made = torch.index_select(bench.source, 0, bench.order)
    assert not bench.in_slot(made)
    assert bench.in_slot(bench.make())


NOT_LEARNED: dict[str, Callable[[Tensor], Tensor]] = {
    "a part": lambda made: made[1:],
    "a copy": lambda made: made + 0.0,
}


@pytest.mark.parametrize("name", NOT_LEARNED)
def test_results_that_are_not_the_argument_are_not_learned(bench: Bench, name: str) -> None:
    bench.predictor.learn(bench.region)
    made = bench.make()
    bench.call(NOT_LEARNED[name](made) if name == "a part" else torch.stack([made])[0].double().float())
    assert not bench.predictor._sites or all(s.name[1] != "index_select" for s in bench.predictor._sites.values())


def test_small_arguments_are_not_learned(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor_module, "MIN_BYTES", 65)
    bench.learn()
    assert not patched() and bench.region.origins["args[0]"].function == "Bench.make"


def test_an_eager_call_says_nothing(bench: Bench) -> None:
    bench.learn()
    for _ in range(6):
        made = bench.make()
        bench.region.calls += 1
        bench.predictor.passed(bench.region)
        bench.predictor.arrived(bench.region, [torch.zeros(4)])
        del made
    assert bench.counts == (0, 0) and bench.in_slot(bench.make())


@pytest.mark.parametrize(
    ("copy_ns", "rate", "bound", "stays"),
    [(1e12, 1.0, False, True), (0.0, 1e-9, False, True), (0.0, 1e12, False, False), (0.0, 1e12, True, True)],
    ids=["copies cost the host", "copies cost the device", "copies cost nothing", "the host has time"],
)
def test_a_site_is_weighed(bench: Bench, copy_ns: float, rate: float, bound: bool, stays: bool) -> None:
    bench.learn()
    bench.region.copy_ns, bench.region.device_bound, bench.predictor._bytes_per_ns = copy_ns, bound, rate
    for _ in range(predictor_module.WEIGHED):
        made = bench.make()
        assert bench.in_slot(made)
        bench.call(made)
        del made
    assert bench.in_slot(bench.make()) is stays
    assert [why for one in bench.predictor.demoted.values() for why in one.values()] == (
        [] if stays else ["copying is cheaper"]
    )
    assert patched() == (["index_select"] if stays else [])


def test_patches_of_two_predictors_end_in_any_order() -> None:
    """Each of several graphed functions has one: what is patched last is not always taken back first."""
    plain = {name: getattr(torch, name) for name in ("add", "cat", "index_select")}
    inherited = torch.Tensor.__dict__.get("clone")
    first, second, third = (Predictor(torch.device("cpu"), PositionFinder()) for _ in range(3))
    for predictor in (first, second, third):
        predictor.learn(SimpleNamespace())  # type: ignore[arg-type]
    assert torch.add is not plain["add"]
    for predictor in (first, third, second):
        predictor.forget()
    assert all(getattr(torch, name) is function for name, function in plain.items())
    assert torch.Tensor.__dict__.get("clone") is inherited
