"""Values that leave a call by other ways than operators."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FunctionType, TracebackType
from typing import Any

import torch

from ..model.call import Args, Kwargs
from .busy import grape_works
from .positions import PositionFinder, is_grape_code
from .recorder import Recorder
from .unseen import UnseenMode
from .warned import warnings_of_the_caller

SPARSE = "a tensor without a storage"
"""Stands among the escapes of a call that works on sparse or similar tensors, which no trace can name."""

COMPILED = "code that torch.compile made"
"""Stands among the escapes of a call that runs some: nobody watches the rest of it."""

HIGHER_ORDER = "a higher-order operator"
"""Stands among the escapes of a call that runs one: what that is made of, no mode sees."""

OTHERWISE = "a function that torch computes otherwise below a dispatch mode"
"""Stands among the escapes of a call that runs one: Grape's mode steps aside, and sees none of it (`blocks`)."""

_ESCAPES = frozenset(
    {
        torch.Tensor.numpy,
        torch.Tensor.tolist,
        torch.Tensor.__array__,
        torch.Tensor.data_ptr,
        torch.Tensor.untyped_storage,
        torch.Tensor.__dlpack__,
        torch.Tensor.backward,
        torch.Tensor.register_hook,
        torch.Tensor.storage_offset,
        torch.Tensor.is_shared,
        *(getattr(torch.Tensor, name).__get__ for name in ("_base", "_version")),
    }
)
"""Functions that take a tensor out of the dispatcher's sight: values, places in memory and callbacks that no trace
shows."""

_ESCAPES_OF_PYTHON = {f.__code__: f.__name__ for f in _ESCAPES if isinstance(f, FunctionType)}

_NAMES = frozenset(f.__name__ if f.__name__ != "__get__" else f.__self__.__name__ for f in _ESCAPES)


def _looks_for_itself(code: CodeType) -> bool:
    """True of Grape's code that names what it reads. What only calls what it was given reads for the person."""
    return is_grape_code(code.co_filename) and not _NAMES.isdisjoint(code.co_names)


class EscapeWatch(UnseenMode):
    """Notes calls that read a tensor behind the dispatcher's back into the recorder in charge."""

    def __init__(self, positions: PositionFinder, recorder: Callable[[], Recorder | None]) -> None:
        super().__init__()
        self._positions, self._recorder = positions, recorder

    def __torch_function__(self, func: Any, types: object, args: Args = (), kwargs: Kwargs | None = None) -> object:
        if func in _ESCAPES and not _looks_for_itself(sys._getframe(1).f_code):
            self._note(func.__name__ if func.__name__ != "__get__" else func.__self__.__name__)
        try:
            with warnings_of_the_caller():
                return func(*args, **(kwargs or {}))
        except BaseException as error:
            error.__traceback__ = below_dispatch(error.__traceback__)
            raise

    def passed_by(self, code: CodeType) -> None:
        name = _ESCAPES_OF_PYTHON.get(code)
        if name is not None:
            self._note(name)

    def note_compiled(self) -> None:
        """Leave before the compiler sees the mode, unless one of the person's lies on top or another thread calls."""
        with grape_works():
            if self.leave():
                self._note(COMPILED)

    def _note(self, name: str) -> None:
        recorder = self._recorder()
        if recorder is not None:
            user, inner = self._positions.find(1)
            frame = user or inner
            recorder.escapes.append((name, self._positions.at(frame) if frame else None))


def below_dispatch(entry: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames that a plain call of an operator does not have: the tracer's, and torch's one."""
    while entry is not None and (
        is_grape_code(file := entry.tb_frame.f_code.co_filename) or file.endswith("torch/_ops.py")
    ):
        entry = entry.tb_next
    return entry
