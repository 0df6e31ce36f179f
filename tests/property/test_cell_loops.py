"""Cells with random loops leave what the plain cell leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from unittest import mock

import pytest
import torch
import torch._dynamo  # imported by the first dispatch mode in some versions; it wraps functions of torch for good

from grape.outlining import loop, trial
from grape.sessions import close_engine, engine

from .cell_loops import random_cell, random_function_cell, run_cell

PARTS = 6


@pytest.fixture(autouse=True)
def a_clean_engine() -> Iterator[None]:
    yield
    close_engine()


@contextmanager
def trials() -> Iterator[None]:
    """Loops are tried with their graphs and as written, an iteration each, as soon as anything replays."""
    with ExitStack() as stack:
        for module, name, value in (
            (trial, "BACKENDS", ("tape",)),
            (trial, "REPLAYS", 1),
            (trial, "BLOCK", 1),
            (trial, "BLOCKS", 4),
            (trial, "perf_counter", lambda: 0.0),
            (loop, "_TRY_EVERY", 1),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("make", "each"), [(random_cell, 16), (random_function_cell, 8)])
def test_a_hoisted_cell_leaves_what_the_plain_one_leaves(make: Callable[[int], str], each: int, part: int) -> None:
    replayed = 0
    for seed in range(part * each, (part + 1) * each):
        source = make(seed)
        plain, _ = run_cell(source, outline=False, times=2)
        with trials() if seed % 2 else nullcontext():
            outlined, replays = run_cell(source, outline=True, times=2)
        engine().reset()
        where = f"seed {seed}:\n{source}"
        assert outlined.error == plain.error, where
        assert outlined.printed == plain.printed, where
        assert outlined.names == plain.names, where
        assert outlined.values == plain.values, where
        assert outlined.shared == plain.shared, where
        assert outlined.random == plain.random, where
        replayed += replays > 0
    assert torch.is_grad_enabled()
    assert replayed >= each // 8
