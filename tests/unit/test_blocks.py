"""Blocks that put the dispatch keys back at their end: a mode that was popped inside leaves none behind (A10)."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import pytest
import torch
import torch._dynamo  # it wraps functions of torch for good
from torch.utils._python_dispatch import TorchDispatchMode

from grape.tracing import OTHERWISE, PositionFinder, Recorder, Tracer, blocks

KEY = torch._C.DispatchKey.Python


def keys_as_they_are() -> Any:
    keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return torch._C._ForceDispatchKeyGuard(*keys)


BLOCKS: dict[str, Callable[[], Any]] = {
    "inference": lambda: torch.inference_mode(),
    "no inference": lambda: torch.inference_mode(False),
    "the guard itself": lambda: torch._C._InferenceMode(False),
    "as torch.compile calls": keys_as_they_are,
}


@pytest.fixture
def tracer() -> Iterator[Tracer]:
    made = Tracer(PositionFinder())
    made.enter()
    made.listen(Recorder(torch.device("cpu")))
    yield made
    made.leave()
    assert not made.on_stack and not torch._C._dispatch_tls_is_dispatch_key_included(KEY)


@pytest.mark.parametrize("block", BLOCKS)
def test_the_tracer_is_muted_inside_of_them_and_retires_behind_them(tracer: Tracer, block: str) -> None:
    with BLOCKS[block]():
        assert not tracer.retire() and tracer.on_stack and tracer.recorder is None
        torch.randn(2)
    torch.randn(2)
    assert tracer.retire()
    torch.randn(2)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_mode_that_was_popped_inside_leaves_torch_whole(tracer: Tracer, block: str) -> None:
    with BLOCKS[block]():
        tracer.leave()
    torch.randn(2)


def test_one_that_ends_after_the_cell(tracer: Tracer) -> None:
    def suspended() -> Iterator[None]:
        with torch.inference_mode(False):
            yield

    held = suspended()
    next(held)
    tracer.leave()
    del held
    gc.collect()
    torch.randn(2)


def test_blocks_of_other_threads_are_theirs(tracer: Tracer) -> None:
    seen = []

    def other() -> None:
        with torch.inference_mode(False):
            seen.append(blocks.saves_keys)

    with torch.inference_mode(False):
        thread = Thread(target=other)
        thread.start()
        thread.join()
        assert seen == [True] and blocks.saves_keys
    assert not blocks.saves_keys


class Persons(TorchDispatchMode):
    """Has a block of its own."""


def test_modes_of_the_person_are_known_while_they_are_there(tracer: Tracer) -> None:
    mode = Persons()
    assert not blocks.in_mode
    with mode, mode:
        assert blocks.in_mode
    assert not blocks.in_mode


class Meddling(TorchDispatchMode):
    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self.act, self.seen = act, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        self.act()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("how", ["mute", "retire", "leave"])
def test_a_mode_of_the_person_sees_all_though_the_tracer_ends_within_its_handler(tracer: Tracer, how: str) -> None:
    mode = Meddling(getattr(tracer, how))
    with mode:
        for _ in range(4):
            torch.zeros(2)
    assert mode.seen == 4
    torch.randn(2)


def test_nothing_is_patched_while_nobody_watches() -> None:
    before = TorchDispatchMode.__enter__, torch._C._InferenceMode.__enter__
    tracer = Tracer(PositionFinder())
    tracer.enter()
    assert TorchDispatchMode.__enter__ is not before[0]
    tracer.leave()
    assert (TorchDispatchMode.__enter__, torch._C._InferenceMode.__enter__) == before


def test_a_higher_order_operator_finds_no_muted_mode(tracer: Tracer) -> None:
    """torch.cond raises where it finds a mode that it did not come to."""
    x = torch.ones(3)
    tracer.mute()
    made = torch.ops.higher_order.cond(torch.tensor(True), torch.sin, torch.cos, (x,))
    assert torch.equal(made, x.sin()) and tracer.on_stack


@pytest.mark.parametrize("options", [{}, {"dim": -1}, {"ord": 2, "dim": -1}, {"ord": "fro"}, {"ord": 1}])
def test_norms_that_are_computed_the_same_are_seen(tracer: Tracer, options: dict[str, Any]) -> None:
    assert tracer.recorder is not None
    torch.linalg.norm(torch.ones(3, 3), **options)
    assert not tracer.recorder.escapes
    torch.linalg.norm(torch.ones(3, 3), 2)
    assert [name for name, _ in tracer.recorder.escapes] == [OTHERWISE]
