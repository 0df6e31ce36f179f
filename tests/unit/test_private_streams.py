"""Streams of Grape's own. The driver is played; that nobody else is given one is tested on a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from grape.profiling import private_streams
from grape.profiling.private_streams import private_stream

DEVICE = torch.device("cuda", 0)
GLOBAL, RELAXED = 0, 2


class Played:
    """The driver's two functions. A stream's address is made in whatever mode the thread is."""

    def __init__(self) -> None:
        self.mode, self.made, self.error = GLOBAL, 0, 0
        self.has_context = False

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        cell = ctypes.cast(mode, ctypes.POINTER(ctypes.c_int))
        self.mode, cell[0] = cell[0], self.mode
        return 0

    def cuStreamCreate(self, stream: Any, flags: int) -> int:
        assert self.mode == RELAXED, "a thread that captures may not make streams"
        assert self.has_context and flags == 1, "it would wait for the default stream"
        self.made += 1
        ctypes.cast(stream, ctypes.POINTER(ctypes.c_void_p))[0] = 4096 * self.made
        return self.error


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    played = Played()
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "init", lambda: None)
        patch.setattr(torch.cuda, "device", nullcontext)
        patch.setattr(torch.cuda, "mem_get_info", lambda device: setattr(played, "has_context", True))
        patch.setattr(torch.cuda, "ExternalStream", lambda address, device: (address, device))
        patch.setattr(torch.cuda, "Stream", lambda device: ("of torch", device))
        patch.setattr(private_streams, "driver_library", lambda: played)
        private_stream.cache_clear()
        yield played
        private_stream.cache_clear()


def test_each_use_has_one_of_its_own(driver: Played) -> None:
    one, other = private_stream(DEVICE, "one"), private_stream(DEVICE, "other")
    assert (one, other) == ((4096, DEVICE), (8192, DEVICE))
    assert private_stream(DEVICE, "one") is one and driver.made == 2
    assert private_stream(torch.device("cuda", 1), "one") != one
    assert driver.mode == GLOBAL


def test_one_that_cannot_be_made_raises_and_the_mode_is_as_before(driver: Played) -> None:
    driver.error = 2
    with pytest.raises(RuntimeError, match="cuStreamCreate failed with error 2"):
        private_stream(DEVICE, "one")
    assert driver.mode == GLOBAL
    driver.error = 0
    assert private_stream(DEVICE, "one") == (8192, DEVICE), "an error is not kept"


def test_without_a_driver_torch_is_asked(driver: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise OSError

    monkeypatch.setattr(private_streams, "driver_library", missing)
    assert private_stream(DEVICE, "one") == ("of torch", DEVICE)
