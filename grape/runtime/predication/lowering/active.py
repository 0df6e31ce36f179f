"""What this thread runs: a body, a loop's iteration, a lowered program. Refusals count though somebody caught them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ...backends.protocol import CaptureFailed


def refuse(why: str, code: str = "GR405") -> CaptureFailed:
    """The refusal of a lowering, to be raised. It counts also where the person's code catches it."""
    return noted(CaptureFailed(code, why))


def noted(failure: CaptureFailed) -> CaptureFailed:
    """A refusal that is about to be raised, made to count also where the person's code catches it."""
    if active.lowering is not None:
        active.refusals.append(failure)
    return failure


class _Active(threading.local):
    def __init__(self) -> None:
        self.lowering: object | None = None
        """A `Lowering`; `active_lowering` gives it."""
        self.depth = 0
        self.loops = 0
        self.iterations = 0
        self.refusals: list[CaptureFailed] = []


active = _Active()


@contextmanager
def as_body() -> Iterator[None]:
    """Take what runs inside as a body that the device may skip."""
    active.depth += 1
    try:
        yield
    finally:
        active.depth -= 1


@contextmanager
def as_loop() -> Iterator[None]:
    """Take what runs inside as an iteration of a loop that a capture can leave to the device."""
    active.loops += 1
    active.iterations += 1
    try:
        yield
    finally:
        active.loops -= 1


def in_loop() -> bool:
    """True where this thread runs an iteration of a loop that a capture can leave to the device."""
    return active.loops > 0


def iterations() -> int:
    """How many iterations of such loops this thread has run as ordinary Python."""
    return active.iterations


def inside_body() -> bool:
    """True where this thread runs a body that the device may skip."""
    return active.depth > 0
