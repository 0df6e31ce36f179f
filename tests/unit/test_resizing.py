"""A result in place grows as an ordinary tensor does: the same bits, views that follow, and no slot is touched."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from grape.runtime import GraphedFunction
from grape.runtime.alias import predictor as predictor_module
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.buffers import growable, handed_out
from grape.runtime.buffers.slots import SlotStore
from grape.runtime.regions import replays
from tests.property.programs import eager_to_graph, same


def step(x: Tensor, weight: Tensor) -> Tensor:
    return torch.tanh(x @ weight) + 1


@pytest.fixture
def graphed(monkeypatch: pytest.MonkeyPatch) -> Iterator[GraphedFunction]:
    monkeypatch.setattr(replays, "MIN_BYTES", 1)
    monkeypatch.setattr(predictor_module, "MIN_BYTES", 1)
    made = GraphedFunction(step, backend=ReferenceBackend(poison=True), tolerance=0.0)
    yield made
    made.release()


def _grown(y: Tensor) -> Any:
    y.resize_(5, 4)
    y[2:] = 7.0
    return y.clone()


def _grown_by_a_tuple(y: Tensor) -> Any:
    y.resize_((6, 4))
    y[2:] = 7.0
    return y.clone()


def _grown_as(y: Tensor) -> Any:
    y.resize_as_(torch.empty(9, 4))
    y[2:] = 7.0
    return y.clone()


def _grown_under_a_view(y: Tensor) -> Any:
    view = y.view(4, 2)
    y.resize_(5, 4)
    y[:] = 3.0
    return view.clone(), view.data_ptr() == y.data_ptr()


def _grown_storage(y: Tensor) -> Any:
    y.untyped_storage().resize_(4 * y.nbytes)
    return y.clone(), y.untyped_storage().nbytes()


def _emptied_storage(y: Tensor) -> Any:
    y.untyped_storage().resize_(0)
    return y.untyped_storage().nbytes()


def _emptied_and_back(y: Tensor) -> Any:
    y.untyped_storage().resize_(0)
    y.untyped_storage().resize_(32)
    y[:] = 2.0
    return y.clone(), y.untyped_storage().nbytes()


def _written_by_an_operator(y: Tensor) -> Any:
    torch.add(torch.ones(3, 7), 1, out=y)
    return y.clone(), y.untyped_storage().nbytes()


def _smaller(y: Tensor) -> Any:
    y.resize_(1, 4)
    return y.clone()


WAYS = [
    _grown,
    _grown_by_a_tuple,
    _grown_as,
    _grown_under_a_view,
    _grown_storage,
    _emptied_storage,
    _emptied_and_back,
    _written_by_an_operator,
    _smaller,
]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("keep", [False, True], ids=["let go", "kept"])
def test_a_result_in_place_is_resized(graphed: GraphedFunction, way: Callable[[Tensor], Any], keep: bool) -> None:
    torch.manual_seed(0)
    weight = torch.randn(4, 4)
    states = [torch.ones(2, 4), torch.ones(2, 4)]
    kept: tuple[list[Any], list[Any]] = ([], [])
    in_slots = 0
    for number in range(40):
        for side, function in enumerate((step, graphed)):
            states[side] = function(states[side], weight)
        region: Any = graphed._region
        if number > 25 and number % 4 == 0:
            in_slots += any(slot.cdata == states[1].untyped_storage()._cdata for slot in region.context.store)
            before = [state.clone() for state in states]
            results = [way(state) for state in states]
            same(results[0], results[1], f"after call {number}")
            if keep:
                for side, state in enumerate(states):
                    kept[side].append(state)
            states = before
        same(states[0], states[1], f"state after call {number}")
        if way is not _emptied_storage:
            same(kept[0], kept[1], f"what is kept after call {number}")
    assert in_slots and region.replays > 5


def _shared(y: Tensor) -> None:
    y.share_memory_()


@pytest.mark.parametrize("way", [_grown, _shared])
def test_a_result_that_has_moved_out_of_its_slot_is_an_argument(way: Callable[[Tensor], Any]) -> None:
    """A graph that is captured for it does not read the slot, where it lies no more."""
    graphed = GraphedFunction(step, backend=ReferenceBackend(poison=True), tolerance=0.0)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 4, generator=generator)
    moved = 0
    with torch.no_grad(), eager_to_graph(in_place=True):
        for number in range(30):
            x = torch.randn(2, 4, generator=generator)
            results = [step(x, weight), graphed(x, weight)]
            region: Any = graphed._region
            moved += any(slot.cdata == results[1].untyped_storage()._cdata for slot in region.context.store)
            for result in results:
                way(result)
                result[1:] = number
            after = [function(result, weight) for function, result in zip((step, graphed), results, strict=True)]
            same(after[0], after[1], f"after call {number}")
            del result, results, after
    assert moved and region.replays > 5 and region.refused is None
    graphed.release()


def test_a_lent_storage_is_like_an_ordinary_one(graphed: GraphedFunction) -> None:
    weight, state = torch.eye(4), torch.ones(2, 4)
    for _ in range(30):
        state = graphed(state, weight)
    region: Any = graphed._region
    assert any(slot.cdata == state.untyped_storage()._cdata for slot in region.context.store)
    storage = state.untyped_storage()
    assert storage.resizable() and storage.nbytes() == 32 and state.storage_offset() == 0


def test_memory_that_is_not_grapes_raises_as_ever() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(RuntimeError, match="not resizable"):
        torch.from_numpy(numpy.ones(4)).resize_(8)


def test_where_torch_has_other_storages_nothing_leaves_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growable, "_fields", lambda: None)
    graphed = GraphedFunction(step, backend=ReferenceBackend(poison=True), tolerance=0.0)
    weight, state, other = torch.eye(4), torch.ones(2, 4), torch.ones(2, 4)
    for number in range(30):
        state, other = graphed(state, weight), step(other, weight)
        same(other, state, f"after call {number}")
    region: Any = graphed._region
    assert region.replays > 5
    assert not any(slot.cdata == state.untyped_storage()._cdata for slot in region.context.store)
    graphed.release()


def test_streams_are_heard_of_in_the_dispatcher() -> None:
    """Of CPU tensors torch knows no streams, and says so as ever."""
    stream, heard = torch.Stream(device="cpu"), torch._C._dispatch_has_kernel_for_dispatch_key

    def raises() -> None:
        with pytest.raises(NotImplementedError, match=r"record_stream.*CPU"):
            torch.ones(2).record_stream(stream)

    gc.collect()
    for _ in range(2):
        assert not heard("aten::record_stream", "BackendSelect")
        store = SlotStore(ReferenceBackend())
        handed_out._watch(store)
        assert heard("aten::record_stream", "BackendSelect")
        raises()
        with torch.inference_mode():
            raises()
        del store
        assert not heard("aten::record_stream", "BackendSelect")
        raises()
