"""Which results of a capture are written into slots, and into which of the two sides of their role."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.buffers.placeholders import Placeholders
from grape.runtime.buffers.slots import Slot, SlotStore
from grape.runtime.capture.running.redirect import out_form, redirect
from grape.runtime.guarding.structure import flatten
from grape.tracing import PositionFinder, Tracer, record

aten = torch.ops.aten
OUT_FORMS = {
    aten.add.Tensor: aten.add.out,
    aten.mm.default: aten.mm.out,
    aten.cat.default: aten.cat.out,
    aten.index_select.default: aten.index_select.out,
    aten.sum.dim_IntList: aten.sum.IntList_out,
    aten.bitwise_and.Tensor: aten.bitwise_and.Tensor_out,
    aten.sum.default: None,  # overloads of TorchScript have no kernels at all
    aten.index_put.default: None,
    aten.clone.default: None,  # its `out=` form is generated: a result made elsewhere, then copied
    aten.embedding.default: None,
    aten.topk.default: None,  # two results
    aten.native_layer_norm.default: None,
    aten.add_.Tensor: None,
    aten.view.default: None,
}


@pytest.mark.parametrize("function", OUT_FORMS, ids=str)
def test_out_forms(function: Any) -> None:
    assert out_form(function) is OUT_FORMS[function]


class Bench:
    """One call of a function, traced, and what `redirect` makes of it."""

    def __init__(self, function: Callable[..., Any], *leaves: Tensor) -> None:
        self.function, self.leaves, self.owner = function, leaves, object()
        self.backend = ReferenceBackend()
        self.store = SlotStore(self.backend)
        self.in_place: set[str] | None = None
        self.plain: set[Any] = set()
        self.next: list[Any] = []

    def side(self, path: str, *role: Any, nbytes: int = 48) -> Slot:
        return self.store.slot((self.owner, "out", path, *role), nbytes)

    def live_in(self, slot: Slot) -> Tensor:
        template = slot.template((3, 4), torch.float32)
        assert template is not None
        out = template[0].data
        slot.occupy(*template)
        return out.fill_(1.0)

    def redirect(self) -> dict[str, tuple[Tensor, Slot]]:
        tracer = Tracer(PositionFinder())
        layout = flatten((self.leaves, {}), "args")
        with torch.no_grad():
            result, call, _ = record(
                tracer, self.backend.device, layout.leaves, lambda: self.function(*self.leaves), keep=True
            )
        after = flatten((result, self.leaves, {}), "result")
        placeholders = Placeholders(self.store, self.owner, self.backend.device, layout.leaves, layout.paths, ())
        request: Any = SimpleNamespace(
            backend=self.backend,
            store=self.store,
            owner=self.owner,
            in_place=set(after.paths) if self.in_place is None else self.in_place,
            plain=self.plain,
            next=self.next,
        )
        chosen = redirect(call, after, request, placeholders)
        for target, slot in chosen.values():
            assert target.data_ptr() == slot.address and not slot.occupied
        return {call.trace.ops[ordinal].name: found for ordinal, found in chosen.items()}


def x() -> Tensor:
    return torch.arange(12.0).view(3, 4)


REDIRECTED: dict[str, tuple[int, Callable[[Tensor], Any]]] = {
    "a sum": (1, lambda a: a + 1),
    "of several operators the last": (1, lambda a: ((a + 1) * 2).tanh()),
    "a product": (1, lambda a: a @ a.t()),
    "two results": (2, lambda a: (a + 1, a * 2)),
    "a view of all of it": (1, lambda a: (a + 1).view(4, 3)),
    "a part of it": (1, lambda a: torch.cat([a, a])[1:]),
    "written in place after": (1, lambda a: (a * 2).add_(1)),
    "one result twice": (1, lambda a: [b := a + 1, b.t()]),
    "in a dict": (1, lambda a: {"h": a + 1}),
    "an argument": (0, lambda a: a),
    "a view of an argument": (0, lambda a: a[1:]),
    "no out form": (0, lambda a: a.clone()),
    "two outputs": (0, lambda a: a.topk(2)),
    "empty": (0, lambda a: a[:0] + 1),
    "expanded": (1, lambda a: (a[:1] + 1).expand(3, 4)),
    "random": (0, lambda a: torch.rand_like(a)),
    "a sum of all": (0, lambda a: a.sum()),
    "a number": (0, lambda a: (a + 1).shape[0]),
}


@pytest.mark.parametrize("name", REDIRECTED)
def test_results_that_are_written_into_slots(name: str) -> None:
    count, function = REDIRECTED[name]
    chosen = Bench(function, x()).redirect()
    assert len(chosen) == count
    assert len({slot.address for _, slot in chosen.values()}) == count


def test_targets_have_the_layout_of_the_result() -> None:
    chosen = Bench(lambda a: a.t() + 1, x()).redirect()
    ((target, _),) = chosen.values()
    eager = x().t() + 1
    assert (target.shape, target.stride(), target.dtype) == (eager.shape, eager.stride(), eager.dtype)
    assert target.untyped_storage().nbytes() == eager.untyped_storage().nbytes()


def test_results_that_somebody_keeps_are_not_redirected() -> None:
    bench = Bench(lambda a: (a + 1, a * 2), x())
    bench.in_place = {"result[0][1]"}
    (name,) = bench.redirect()
    assert "mul" in name


def test_operators_that_are_not_the_same_in_their_out_form() -> None:
    bench = Bench(lambda a: (a + 1, a * 2), x())
    bench.plain = {aten.add.Tensor}
    assert len(bench.redirect()) == 1


def _entry(writes: Sequence[Slot] = (), reads: Sequence[Slot] = ()) -> Any:
    placeholders = SimpleNamespace(slots=dict(enumerate(reads)))
    return SimpleNamespace(outputs=SimpleNamespace(slots=list(writes)), placeholders=placeholders)


def chosen_slot(bench: Bench) -> Slot:
    ((_, slot),) = bench.redirect().values()
    return slot


def test_the_first_side_that_is_free() -> None:
    bench = Bench(lambda a: a + 1, x())
    sides = [bench.side("result[0]", number) for number in (0, 1)]
    assert chosen_slot(bench) is sides[0]
    held = bench.live_in(sides[0])
    assert chosen_slot(bench) is sides[1]
    del held
    assert chosen_slot(bench) is sides[0]


def test_where_both_sides_are_occupied_there_are_more() -> None:
    bench = Bench(lambda a: a + 1, x())
    sides = [bench.side("result[0]", number) for number in (0, 1)]
    held = [bench.live_in(side) for side in sides]
    third = chosen_slot(bench)
    assert third not in sides
    held.append(bench.live_in(third))
    assert chosen_slot(bench) not in (*sides, third)
    assert all(bool((one == 1).all()) for one in held)
    del held[1]
    assert chosen_slot(bench) is sides[1]


def test_not_where_an_argument_is_read() -> None:
    bench = Bench(lambda a: a + 1, x())
    sides = [bench.side("result[0]", number) for number in (0, 1)]
    bench.leaves = (bench.live_in(sides[0]),)
    assert chosen_slot(bench) is sides[1]
    bench.leaves = (bench.live_in(sides[1]),)
    assert chosen_slot(bench) is sides[0]


@pytest.mark.parametrize("number", [0, 1])
def test_not_where_the_next_graph_writes_but_where_it_reads(number: int) -> None:
    bench = Bench(lambda a: a + 1, x())
    sides = [bench.side("result[0]", side) for side in (0, 1)]
    bench.next = [_entry(writes=[sides[number]])]
    assert chosen_slot(bench) is sides[1 - number]
    bench.next = [_entry(reads=[sides[number]])]
    assert chosen_slot(bench) is sides[number]
    bench.next = [_entry(reads=[sides[number]], writes=[sides[1 - number]])]
    assert chosen_slot(bench) is sides[number]


def test_a_further_slot_where_the_next_graph_writes_and_only_there() -> None:
    """One that would not be chosen is not made: it would hold as much memory as the result."""
    bench = Bench(lambda a: a + 1, x())
    sides = [bench.side("result[0]", side) for side in (0, 1)]
    bench.next = [_entry(reads=[sides[0]], writes=[sides[1]]), _entry(reads=[sides[1]], writes=[sides[0]])]
    assert chosen_slot(bench) is sides[0]
    made = {slot.address for slot in bench.store}
    bench.next = [_entry(writes=sides)]
    further = chosen_slot(bench)
    assert further.address not in made
    held = bench.live_in(further)
    assert chosen_slot(bench) not in (*sides, further)
    assert bool((held == 1).all())
