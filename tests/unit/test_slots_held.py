"""Loops that hold what a replay returned: nothing is overwritten, and only then does a call run eagerly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from torch import Tensor

from grape.runtime import GraphedFunction
from grape.runtime.alias import predictor as predictor_module
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.buffers.slots import Slot
from grape.runtime.regions import replays
from grape.runtime.replaying.entry import Entry
from tests.property.programs import eager_to_graph, same

CALLS = 20


def step(x: Tensor, h: Tensor) -> Tensor:
    return torch.tanh(x @ h.t() @ h) + 1


class Loop:
    """The same loop eagerly and through Grape; what is kept must stay equal."""

    def __init__(self) -> None:
        self.graphed = GraphedFunction(step, backend=ReferenceBackend(poison=True), tolerance=0.0)
        self.kept: tuple[list[Any], list[Any]] = ([], [])

    @property
    def region(self) -> Any:
        return self.graphed._region

    def run(
        self,
        keep: Callable[[list[Any], Tensor, int], Any],
        feed: Callable[[Tensor, int], Tensor],
        inputs: Callable[[torch.Generator], Tensor] = lambda generator: torch.randn(3, 4, generator=generator),
    ) -> None:
        generator = torch.Generator().manual_seed(3)
        state = torch.randn(3, 4, generator=generator)
        states = [state.clone(), state.clone()]
        for number in range(CALLS):
            x = inputs(generator)
            for side, function in enumerate((step, self.graphed)):
                result = function(x, states[side])
                keep(self.kept[side], result, number)
                states[side] = feed(result, number)
                del result
            same(states[0], states[1], f"state after call {number}")
            same(self.kept[0], self.kept[1], f"what is kept after call {number}")


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    monkeypatch.setattr(replays, "MIN_BYTES", 1)
    monkeypatch.setattr(predictor_module, "MIN_BYTES", 1)
    monkeypatch.setattr(predictor_module, "WEIGHED", 1 << 30)
    made = Loop()
    with torch.no_grad(), eager_to_graph(in_place=True):
        yield made
    made.graphed.release()


def _keep_last(kept: list[Any], value: Any) -> None:
    kept[:] = [value]


SCALE = torch.ones(4, requires_grad=True)


def _save(kept: list[Any], result: Tensor, number: int) -> None:
    with torch.enable_grad():
        kept.append((result.detach() * SCALE).sum())


KEEPS: dict[str, tuple[bool, Callable[[list[Any], Tensor, int], Any]]] = {
    "nothing": (False, lambda kept, result, number: None),
    "values": (False, lambda kept, result, number: kept.append(result.tolist())),
    "copies": (False, lambda kept, result, number: kept.append(result.clone())),
    "all": (True, lambda kept, result, number: kept.append(result)),
    "views": (True, lambda kept, result, number: kept.append(result[1:, :2])),
    "numpy": (True, lambda kept, result, number: kept.append(result.numpy())),
    "by autograd": (True, _save),
    "some": (True, lambda kept, result, number: kept.append(result) if number % 7 == 0 else None),
    "and dropped": (True, lambda kept, result, number: kept.append(result) if len(kept) < 3 else kept.clear()),
}
FEEDS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "itself": lambda result, number: result,
    "a copy": lambda result, number: result.clone(),
    "computed": lambda result, number: result * 0.5,
    "a part": lambda result, number: torch.cat([result[1:], result[:1]]),
}


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("keep", KEEPS)
def test_what_is_held_is_never_overwritten(loop: Loop, keep: str, feed: str) -> None:
    held, keeping = KEEPS[keep]
    loop.run(keeping, FEEDS[feed])
    if keep == "by autograd":
        for one, other in zip(*loop.kept, strict=True):
            same(*(torch.autograd.grad(total, SCALE)[0] for total in (one, other)), "gradient")
    assert loop.region.refused is None
    assert loop.region.replays > 5 or (held and loop.region.replay_counts.blocked > 5)


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("keep", KEEPS)
def test_what_was_let_go_of_is_made_again(loop: Loop, keep: str, feed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the working set has no room: each replay makes the tensors over slots anew, and none that is held is
    overwritten."""
    serve, rounds = Entry.serve, 0

    def forgetful(entry: Entry, *args: Any) -> Any:
        nonlocal rounds
        entry.let_go()
        assert not entry.kept_bytes
        rounds += 1
        return serve(entry, *args)

    monkeypatch.setattr(Entry, "serve", forgetful)
    held, keeping = KEEPS[keep]
    loop.run(keeping, FEEDS[feed])
    if keep == "by autograd":
        for one, other in zip(*loop.kept, strict=True):
            same(*(torch.autograd.grad(total, SCALE)[0] for total in (one, other)), "gradient")
    assert rounds > 5 and any(entry.outputs.slots for entry in loop.region.entries)
    assert loop.region.refused is None
    assert loop.region.replays > 5 or (held and loop.region.replay_counts.blocked > 5)


@pytest.mark.parametrize("keep", KEEPS)
def test_calls_are_blocked_only_where_results_are_held(loop: Loop, keep: str) -> None:
    held, keeping = KEEPS[keep]
    loop.run(keeping, FEEDS["a copy"])
    assert bool(loop.region.replay_counts.blocked) is held


def test_state_that_is_fed_back_is_not_copied(loop: Loop) -> None:
    x = torch.randn(3, 4)
    for _ in range(8):  # until there are two graphs that read what the other wrote
        loop.run(KEEPS["nothing"][1], FEEDS["itself"], lambda generator: x)
    region = loop.region
    replays, copied = region.replays, region.replay_counts.copied_bytes
    loop.run(KEEPS["nothing"][1], FEEDS["itself"], lambda generator: x)
    assert region.replays >= replays + CALLS - 2
    assert region.replay_counts.copied_bytes - copied <= x.nbytes  # the state that the loop begins with
    writes = {slot.address for entry in region.entries for slot in entry.outputs.slots}
    reads = {slot.address for entry in region.entries for slot in entry.placeholders.slots.values()}
    assert len(writes) >= 2 and writes <= reads


def test_a_predicted_tensor_that_is_held_blocks_its_placeholder(loop: Loop) -> None:
    """The person keeps what a position wrote into the placeholder: the next argument may not be copied there."""
    held: tuple[list[Tensor], list[Tensor]] = ([], [])
    source = torch.arange(12.0).view(3, 4)
    occupied = 0
    for number in range(3 * CALLS):
        source = source + 1
        for side, function in enumerate((step, loop.graphed)):
            state = torch.index_select(source, 0, torch.tensor([2, 0, 1]))
            function(source, state)
            if side and loop.region.entries and number > CALLS and not held[1]:
                slots: list[Slot] = [s for e in loop.region.entries for s in e.placeholders.slots.values()]
                if any(slot.address == state.data_ptr() and slot.predicted for slot in slots):
                    held[0].append(source[[2, 0, 1]])
                    held[1].append(state)
            if side and held[1]:
                occupied += 1
        same(held[0], held[1], f"what is held after call {number}")
    assert occupied > 10
    assert loop.region.replay_counts.blocked


def test_a_sum_is_handed_out_in_place(loop: Loop) -> None:
    """Its operator has overloads without kernels; asking for those once refused the region."""
    graphed = GraphedFunction(lambda x: (x * 2 + 1).tanh().sum(), backend=ReferenceBackend(poison=True), tolerance=0.0)
    for number in range(8):
        x = torch.full((4,), float(number))
        assert torch.equal(graphed(x), (x * 2 + 1).tanh().sum())
    evidence = graphed.evidence()
    assert evidence is not None and evidence.refused is None and evidence.replays
    graphed.release()


def _pure(x: Tensor) -> Tensor:
    return (x.tanh() + torch.ones(4)) * 2


def _effectful(x: Tensor) -> Tensor:
    return (x.add_(1).tanh() + torch.ones(4)) * 2


@pytest.mark.parametrize("function", [_pure, _effectful])
def test_modes_that_are_looked_at_while_the_device_works(function: Callable[[Tensor], Tensor]) -> None:
    """The default dtype is no part of the quick check: the entry itself must notice."""
    graphed = GraphedFunction(function, backend=ReferenceBackend(poison=True), tolerance=0.0)
    with torch.no_grad(), eager_to_graph():
        for number in range(12):
            given = [torch.full((4,), float(number)) for _ in range(2)]
            if number == 8:
                assert graphed._region is not None and graphed._region.replays
            torch.set_default_dtype(torch.float64 if number >= 8 else torch.float32)
            try:
                results = [function(given[0]), graphed(given[1])]
            finally:
                torch.set_default_dtype(torch.float32)
            same(results[0], results[1], f"call {number}")
            same(given[0], given[1], f"argument of call {number}")
    assert sum(shape.calls for shape in graphed.evidence().shapes) == 12
    graphed.release()


@pytest.mark.parametrize("draw", ["rand_like", "dropout", "attention"])
def test_a_replay_that_is_discarded_draws_nothing(draw: str) -> None:
    """State that changed is noticed while the device works, but not where a replay moves the random stream."""
    state = {"scale": 1.0}
    draws: dict[str, Callable[[Tensor], Tensor]] = {
        "rand_like": torch.rand_like,
        "dropout": lambda x: torch.nn.functional.dropout(x, 0.5),
        "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    }
    drawn = draws[draw]

    def function(x: Tensor) -> Tensor:
        return (drawn(x) * state["scale"]).tanh() + x

    graphed = GraphedFunction(function, backend=ReferenceBackend(poison=True), tolerance=0.0)
    with torch.no_grad(), eager_to_graph():
        for number in range(14):
            x = torch.full((1, 2, 3, 4), 0.1 * number)
            if number == 9:
                assert graphed._region is not None and graphed._region.replays
                state["scale"] = 2.0
            outcomes = []
            for call in (function, graphed):
                torch.manual_seed(number)
                outcomes.append((call(x), torch.get_rng_state()))
            same(*outcomes, f"call {number}")
    graphed.release()


def test_arguments_that_share_memory_while_results_are_held() -> None:
    """A graph of others may serve them. One that is captured for them, because that one is blocked, is theirs alone."""

    def mix(a: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(a) - b * 0.5

    graphed = GraphedFunction(mix, backend=ReferenceBackend(poison=True), tolerance=0.0)
    generator = torch.Generator().manual_seed(3)
    kept: tuple[list[Tensor], list[Tensor]] = ([], [])
    with torch.no_grad(), eager_to_graph(in_place=True):
        for number in range(24):
            both = torch.randn(4, 8, generator=generator)
            given = (both[:3], both[1:]) if 6 <= number < 12 else (both[:3].clone(), both[1:].clone())
            for side, function in zip(kept, (mix, graphed), strict=True):
                side.append(function(*given))
            same(*kept, f"results after call {number}")
            if number >= 6:
                kept[0].pop(), kept[1].pop()
        evidence = graphed.evidence()
    assert evidence is not None and evidence.refused is None and len(evidence.shapes) == 2
    assert evidence.replays > 8
    graphed.release()
