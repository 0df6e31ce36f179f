"""A forked process without the device leaves what its parent had there alone."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import pytest
import torch

from grape.profiling import spare_children

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")


class Left:
    """Part of a cycle, as a timer with its event may be."""

    def __init__(self, collected: Callable[[], None]) -> None:
        self.collected = collected
        self.myself = self

    def __del__(self) -> None:
        self.collected()


@pytest.mark.parametrize("device_is_lost", [True, False])
def test_what_was_garbage_before_a_fork_stays_where_the_device_is_lost(
    monkeypatch: pytest.MonkeyPatch, device_is_lost: bool
) -> None:
    spare_children()
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: device_is_lost)
    gc.collect()
    gc.disable()
    try:
        collected: list[bool] = []
        Left(lambda: collected.append(True))
        child = os.fork()
        if not child:
            gc.collect()
            os._exit(1 if collected else 0)
        _, status = os.waitpid(child, 0)
    finally:
        gc.enable()
    assert os.waitstatus_to_exitcode(status) == (0 if device_is_lost else 1)
