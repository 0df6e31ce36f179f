"""The tape with a host beside it: tensors of float64 stand for those in CPU memory, all others for those of a device.

On the tape everything is on the CPU, so what a region does beside its device cannot happen. Here the recorder is told
that a float64 tensor is elsewhere, and a capture runs operators on such tensors at once, as one on a GPU does. All
else is the runtime's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from grape.model import TensorView
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.backends.reference.capture import CaptureMode
from grape.runtime.backends.reference.memory import bare
from grape.runtime.capture.proof import judging
from grape.tracing import Recorder

HOST = torch.float64
_view, _dispatch = Recorder._view, CaptureMode._dispatch


class HostedTape(ReferenceBackend):
    """Its captures leave the CPU's generator to the region's code, as those of a GPU do."""

    def capture(self, body: Callable[[], Any]) -> Any:
        before = torch.get_rng_state()
        left = before

        def hosted() -> Any:
            nonlocal left
            mark = torch.get_rng_state()
            torch.set_rng_state(before)
            try:
                return body()
            finally:
                left = torch.get_rng_state()
                torch.set_rng_state(mark)

        try:
            return super().capture(hosted)
        finally:
            torch.set_rng_state(left)


def _labelled(self: Recorder, tensor: torch.Tensor) -> TensorView:
    view = _view(self, tensor)
    return replace(view, device="host") if tensor.dtype == HOST else view


def _hosted(self: CaptureMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor)]
    dtypes = {tensor.dtype for tensor in tensors} or {kwargs.get("dtype")}
    if dtypes == {HOST}:
        with bare():
            return func(*args, **kwargs)
    return _dispatch(self, func, args, kwargs)


@contextmanager
def a_host() -> Iterator[None]:
    """Inside, float64 is the host."""
    with (
        mock.patch.object(Recorder, "_view", _labelled),
        mock.patch.object(CaptureMode, "_dispatch", _hosted),
        mock.patch.object(judging, "_on_other_devices", lambda trace, backend: None),
    ):
        yield
