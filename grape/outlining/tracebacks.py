"""A traceback through a run, as the plain loop would have left it."""

from __future__ import annotations

import functools
import types
from collections.abc import Collection

from ..runtime.dispatch.trampoline import prune_traceback


@functools.lru_cache(maxsize=64)
def _offsets(code: types.CodeType) -> dict[tuple[int | None, ...], list[int]]:
    """The offsets of instructions, by their place in the source."""
    found: dict[tuple[int | None, ...], list[int]] = {}
    for index, position in enumerate(code.co_positions()):
        found.setdefault(position, []).append(2 * index)
    return found


def mend_traceback(error: BaseException, frame: types.FrameType, codes: Collection[types.CodeType]) -> int | None:
    """Make one entry of the entries of `frame` and of the run's own frame, whose code is one of `codes`; its line.

    The person's code holds every statement of a run also as written: the entry points there. None where the exception
    did not come through the run's statements.
    """
    prune_traceback(error)
    outer = error.__traceback__
    if outer is None or outer.tb_frame is not frame or outer.tb_next is None:
        return None
    inner = outer.tb_next
    if inner.tb_frame.f_code not in codes:
        return None
    offset = _same_place(frame.f_code, inner.tb_frame.f_code, inner.tb_lasti)
    error.__traceback__ = types.TracebackType(
        inner.tb_next, frame, outer.tb_lasti if offset is None else offset, inner.tb_lineno
    )
    return inner.tb_lineno


def frame_of_run(error: BaseException, codes: Collection[types.CodeType]) -> types.FrameType | None:
    """The frame of the run, whose code is one of `codes`, that the exception came through."""
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code not in codes:
        entry = entry.tb_next
    return entry.tb_frame if entry is not None else None


def _same_place(code: types.CodeType, run: types.CodeType, offset: int) -> int | None:
    """Where `code` has the instruction that `run` has at `offset`, by its place in the source."""
    place = list(run.co_positions())[offset // 2]
    found = _offsets(code).get(place, [])
    same = [one for one in found if code.co_code[one] == run.co_code[offset]]
    return (same or found)[-1] if found else None
