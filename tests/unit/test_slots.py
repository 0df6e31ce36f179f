"""Slots: memory that is lent to the person's program, and who lives in it (R4 and R13 in OWNERSHIP.md)."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.backends.reference.memory import Room
from grape.runtime.buffers import slots as slots_module
from grape.runtime.buffers.slots import Slot, SlotStore
from grape.runtime.replaying.outputs import Outputs

LARGE = 300 * 1024
"""More than a slot of fixed size holds."""


@pytest.fixture
def backend() -> ReferenceBackend:
    return ReferenceBackend()


@pytest.fixture
def store(backend: ReferenceBackend) -> Iterator[SlotStore]:
    made = SlotStore(backend)
    yield made
    made.clear()
    assert all(slot.occupied for slot in made)


def live_in(slot: Slot, *shape: int) -> Tensor:
    """What a prediction does: a tensor that is handed to the person."""
    template = slot.template(shape or (4,), torch.float32)
    assert template is not None
    keeper, cdata, idle = template
    out = keeper.data
    slot.occupy(keeper, cdata, idle)
    return out.fill_(7.0)


def test_nobody_lives_in_a_new_slot(backend: ReferenceBackend) -> None:
    slot = Slot(backend, 100)
    assert not slot.occupied
    assert slot.template((4,), torch.float32) is not None
    assert not slot.occupied  # a template is Grape's own


HOLDERS: dict[str, Callable[[Tensor], Any]] = {
    "the tensor": lambda t: t,
    "a view": lambda t: t[1:],
    "a view of a view": lambda t: t.view(2, 2).t()[:, :1],
    "an alias": lambda t: t.detach(),
    "its data": lambda t: t.data,
    "the storage": lambda t: t.untyped_storage(),
    "the storage of a view": lambda t: t[1:].untyped_storage(),
    "numpy": lambda t: t.numpy(),
    "dlpack": lambda t: torch.utils.dlpack.to_dlpack(t),
    "another dtype": lambda t: t.view(torch.int32),
    "autograd": lambda t: t * torch.ones(4, requires_grad=True),
    "a gradient of a leaf": lambda t: torch.ones(4).requires_grad_(),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_refers_to_the_occupant_keeps_the_slot(backend: ReferenceBackend, holder: str) -> None:
    slot = Slot(backend, 100)
    out = live_in(slot)
    held = HOLDERS[holder](out)
    if holder == "a gradient of a leaf":
        held.grad = out
    del out
    assert slot.occupied
    del held
    gc.collect()
    assert not slot.occupied


def test_the_next_occupant_is_another(backend: ReferenceBackend) -> None:
    slot = Slot(backend, 100)
    first = live_in(slot)
    del first
    second = live_in(slot, 2, 2)
    assert slot.occupied and second.data_ptr() == slot.address
    slot.vacate()
    assert not slot.occupied and slot.keeper is None and not slot.predicted


def test_a_slot_forgets_the_prediction_with_its_occupant(backend: ReferenceBackend) -> None:
    slot = Slot(backend, 100)
    first = live_in(slot)
    slot.predicted = True
    del first
    live_in(slot)
    assert not slot.predicted


def test_a_large_slot_grows_in_place(backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Room, "LIMIT", 2**20)
    slot = Slot(backend, LARGE)
    address, held = slot.address, live_in(slot, LARGE // 4)
    assert slot.nbytes == LARGE
    assert slot.hold(2 * LARGE) and slot.nbytes == 2 * LARGE and slot.address == address
    assert bool((held == 7).all())
    assert slot.hold(LARGE) and slot.nbytes == 2 * LARGE
    assert not slot.hold(100 * LARGE) and slot.nbytes == 2 * LARGE
    slot.release()


def test_a_small_slot_keeps_its_size(backend: ReferenceBackend) -> None:
    slot = Slot(backend, 600)
    assert slot.nbytes == 1024
    assert slot.hold(1024) and not slot.hold(1025)
    assert Slot(backend, 0).nbytes == 512


@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
def test_a_template_has_exactly_its_bytes(
    backend: ReferenceBackend, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    slot = Slot(backend, 512)
    template = slot.template(shape, dtype)
    assert template is not None
    tensor, cdata, idle = template
    plain = torch.empty(shape, dtype=dtype)
    assert (tensor.shape, tensor.dtype, tensor.stride()) == (plain.shape, dtype, plain.stride())
    assert tensor.untyped_storage().nbytes() == plain.untyped_storage().nbytes()
    assert cdata == tensor.untyped_storage()._cdata and idle == torch._C._storage_Use_Count(cdata)
    again = slot.template(shape, dtype)
    assert again is not None and again[0] is tensor


def test_a_template_that_does_not_fit(backend: ReferenceBackend) -> None:
    slot = Slot(backend, 512)
    assert slot.template((129,), torch.float32) is None
    assert slot.template((128,), torch.float32) is not None


def test_templates_of_inference_mode_are_their_own(backend: ReferenceBackend) -> None:
    slot = Slot(backend, 512)
    with torch.inference_mode():
        inside = slot.template((4,), torch.float32)
        assert inside is not None and inside[0].data.is_inference() == torch.empty(4).is_inference()
    outside = slot.template((4,), torch.float32)
    assert outside is not None and not outside[0].data.is_inference()


@pytest.mark.parametrize("holder", ["the tensor", "a view", "the storage"])
def test_the_occupant_outlives_the_templates(
    backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch, holder: str
) -> None:
    monkeypatch.setattr(slots_module, "_TEMPLATES", 2)
    slot = Slot(backend, 512)
    held = HOLDERS[holder](live_in(slot))
    for size in range(5, 10):
        slot.template((size,), torch.float32)
    assert len(slot._templates) <= 2
    assert slot.occupied
    del held
    assert not slot.occupied


def test_a_role_keeps_its_slot(store: SlotStore) -> None:
    owner = object()
    slot = store.slot((owner, "in", "x"), LARGE)
    assert store.slot((owner, "in", "x"), 2 * LARGE) is slot
    assert store.slot((owner, "in", "y"), LARGE) is not slot
    assert store.slot((object(), "in", "x"), LARGE) is not slot
    assert store.nbytes == sum(one.nbytes for one in store) == 4 * LARGE


def test_an_outgrown_slot_lives_on_with_its_graphs(store: SlotStore) -> None:
    owner = object()
    old = store.slot((owner, "in", "x"), 512)
    new = store.slot((owner, "in", "x"), 513)
    assert new is not old and set(store) == {old, new} and store.nbytes == 512 + 1024
    held = live_in(old)
    assert store.occupants() == {held.untyped_storage()._cdata: old}
    store.drop(owner)
    assert set(store) == {old} and bool((held == 7).all())
    del held
    store.sweep()
    assert not set(store)


def test_vacant_passes_by_slots_in_which_something_lives(store: SlotStore) -> None:
    owner = object()
    first = store.vacant((owner, "in", "x"), 512)
    held = live_in(first)
    second = store.vacant((owner, "in", "x"), 512)
    assert second is not first and not second.occupied
    also = live_in(second)
    assert store.vacant((owner, "in", "x"), 512) not in (first, second)
    del held
    assert store.vacant((owner, "in", "x"), 512) is first
    del also


def test_vacant_where_an_outgrown_slot_is_occupied(store: SlotStore) -> None:
    owner = object()
    held = live_in(store.vacant((owner, "in", "x"), 512))
    larger = store.vacant((owner, "in", "x"), 2048)
    live_in(larger, 512)
    assert bool((held == 7).all())


def test_drop_keeps_what_somebody_holds(store: SlotStore) -> None:
    mine, theirs = object(), object()
    slot, empty = store.slot((mine, "out", "a", 0), LARGE), store.slot((mine, "out", "b", 0), LARGE)
    other = store.slot((theirs, "out", "a", 0), LARGE)
    held = live_in(slot, 1000)[3:]
    store.drop(mine)
    assert empty.nbytes == 0  # given back
    assert set(store) == {slot, other} and slot.nbytes == LARGE
    assert bool((held == 7).all())
    assert store.slot((mine, "out", "a", 0), LARGE) is not slot  # nobody writes where it lies
    del held
    store.sweep()
    assert slot not in set(store) and slot.nbytes == 0 and other.nbytes == LARGE


def test_drop_keeps_what_a_graph_uses(store: SlotStore) -> None:
    owner = object()
    slot = store.slot((owner, "out", "a", 0), LARGE)
    slot.graphs = 1  # of another region, which reads what lies there
    store.drop(owner)
    assert set(store) == {slot} and slot.nbytes == LARGE
    slot.graphs = 0
    store.sweep()
    assert not set(store) and slot.nbytes == 0


def test_clear_keeps_what_somebody_holds(store: SlotStore) -> None:
    slot = store.slot((object(), "in", "x"), LARGE)
    held = live_in(slot)
    store.clear()
    assert set(store) == {slot} and bool((held == 7).all())
    del held
    store.clear()
    assert not set(store) and slot.nbytes == 0


def test_a_forgotten_store_bequeaths_what_somebody_holds(backend: ReferenceBackend, store: SlotStore) -> None:
    gone = SlotStore(backend)
    owner = object()
    outgrown = gone.slot((owner, "in", "x"), 512)
    first = live_in(outgrown)
    gone.slot((owner, "in", "x"), 1024)
    slot, empty = gone.slot((owner, "in", "y"), LARGE), gone.slot((owner, "in", "z"), LARGE)
    second = live_in(slot)

    def left() -> list[Slot]:
        return [one for one in slots_module._orphans if one in (slot, outgrown, empty)]

    del gone
    gc.collect()
    assert empty.nbytes == 0
    assert left() in ([slot, outgrown], [outgrown, slot])
    assert bool((first == 7).all()) and bool((second == 7).all()) and slot.nbytes == LARGE
    del first
    store.sweep()
    assert left() == [slot]
    del second
    store.sweep()
    assert not left() and slot.nbytes == 0


def _outputs(backend: ReferenceBackend, slot: Slot) -> tuple[Outputs, list[Tensor]]:
    """Two views of one result in a slot, and a result in the pool."""
    storage = slot.storage(64)
    whole = torch.empty(0).set_(storage, 0, (16,), (1,))
    made = [whole[:8], whole[8:], torch.arange(4.0)]
    return Outputs(backend, made, {storage._cdata: slot}), made


@pytest.mark.parametrize("kept", [0, 1])
def test_a_result_in_place_keeps_its_slot(backend: ReferenceBackend, kept: int) -> None:
    slot = Slot(backend, 64)
    outputs, made = _outputs(backend, slot)
    outputs.lend()
    assert outputs.slots == [slot] and not slot.occupied and outputs.nbytes == 16
    for _ in range(2):
        results = outputs.hand_out()
        assert [t.data_ptr() - slot.address for t in results[:2]] == [0, 32]
        assert torch.equal(results[2], made[2])
        held = results[kept]
        del results
        assert slot.occupied
        del held
        assert not slot.occupied


EVALUATORS: dict[str, Callable[[Callable[[], None]], Callable[[], None]]] = {
    "CPython": lambda body: body,
    "Dynamo": torch._dynamo.run,  # it compiles nothing, but evaluates every frame
}


@pytest.mark.parametrize("evaluator", EVALUATORS)
@pytest.mark.parametrize("holder", ["the tensor", "a view", "the storage"])
def test_a_result_in_place_outlives_its_graph(backend: ReferenceBackend, holder: str, evaluator: str) -> None:
    """The keeper holds every reference that was counted: else a living result seems dead when the entry goes."""
    slot = Slot(backend, 64)

    def body() -> None:
        outputs, made = _outputs(backend, slot)
        outputs.lend()
        held = HOLDERS[holder](outputs.hand_out()[0])
        del outputs, made
        gc.collect()
        assert slot.occupied
        del held
        assert not slot.occupied

    EVALUATORS[evaluator](body)()


@pytest.mark.parametrize("evaluator", EVALUATORS)
@pytest.mark.parametrize("holder", ["the tensor", "a view", "the storage"])
def test_graphs_that_share_a_slot_take_turns(backend: ReferenceBackend, holder: str, evaluator: str) -> None:
    """Whichever handed out the last result, whoever holds it is seen, and who held an earlier one is not."""
    slot = Slot(backend, 64)

    def body() -> None:
        one, other = _outputs(backend, slot)[0], _outputs(backend, slot)[0]
        one.lend()
        other.lend()
        for outputs in (one, one, other, other, one):
            held = HOLDERS[holder](outputs.hand_out()[0])
            assert slot.occupied
            del held
            assert not slot.occupied

    EVALUATORS[evaluator](body)()


def test_a_result_that_was_copied_is_the_callers_own(backend: ReferenceBackend) -> None:
    outputs, made = _outputs(backend, Slot(backend, 64))
    outputs.lend()
    copy = outputs.hand_out()[2]
    made[2].fill_(-1)
    assert copy.tolist() == [0, 1, 2, 3]
