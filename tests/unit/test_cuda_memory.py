"""Device memory that grows without moving, over a stand-in for the driver. No GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grape.runtime.backends.cuda.driver import Driver, DriverError
from grape.runtime.backends.cuda.memory import CudaReservation

DEVICE = torch.device("cuda", 0)
PAGE = 1 << 21


class Bindings(SimpleNamespace):
    """`log` is what was asked of the driver; `fails` gives the error of a function, by its name, once."""

    def __init__(self) -> None:
        enumeration = SimpleNamespace(
            CU_MEM_ALLOC_GRANULARITY_MINIMUM=0,
            CU_MEM_LOCATION_TYPE_DEVICE=1,
            CU_MEM_ALLOCATION_TYPE_PINNED=1,
            CU_MEM_ACCESS_FLAGS_PROT_READWRITE=3,
        )
        described: Any = lambda: SimpleNamespace(location=SimpleNamespace())  # noqa: E731
        super().__init__(
            CUmemAllocationGranularity_flags=enumeration,
            CUmemLocationType=enumeration,
            CUmemAllocationType=enumeration,
            CUmemAccess_flags=enumeration,
            CUmemAllocationProp=described,
            CUmemAccessDesc=described,
        )
        self.log: list[str] = []
        self.fails: dict[str, list[int]] = {}
        answers: dict[str, Any] = {"cuMemGetAllocationGranularity": PAGE, "cuMemAddressReserve": 1 << 40}
        for name in ("Create", "Map", "SetAccess", "Unmap", "Release", "AddressFree"):
            answers[f"cuMem{name}"] = f"handle of {name}" if name == "Create" else None
        for name, answer in answers.items():
            setattr(self, name, self._function(name, answer))

    def _function(self, name: str, answer: object) -> Any:
        def function(*args: object) -> tuple[object, ...]:
            errors = self.fails.get(name)
            error = errors.pop(0) if errors else 0
            numbers = " ".join(str(arg) for arg in args[:2] if isinstance(arg, int))
            self.log.append(f"{name.removeprefix('cuMem')} {numbers}".strip() + (f" fails {error}" if error else ""))
            return (error,) if answer is None else (error, None if error else answer)

        return function


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> Bindings:
    made = Bindings()
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: made.log.append("empty cache"))
    return made


def test_a_range_grows_in_place_and_gives_all_back(bindings: Bindings) -> None:
    made = CudaReservation(Driver(bindings), DEVICE, 10 * PAGE - 1)
    assert (made.address, made.nbytes) == (1 << 40, 0)
    assert made.grow(100) and made.nbytes == PAGE
    del bindings.log[:]
    assert made.grow(PAGE) and not bindings.log  # it has so much
    assert made.grow(3 * PAGE) and made.nbytes == 4 * PAGE  # and an eighth of what it had
    where = f"{made.address + PAGE} {3 * PAGE}"
    assert bindings.log == [f"Create {3 * PAGE}", f"Map {where}", f"SetAccess {where}"]
    assert not made.grow(10 * PAGE + 1) and made.nbytes == 4 * PAGE
    del bindings.log[:]
    made.release()
    made.release()
    assert [line.split()[0] for line in bindings.log] == ["Unmap", "Release", "Unmap", "Release", "AddressFree"]
    assert made.nbytes == 0


def test_an_exhausted_device_is_asked_once_more_and_then_raises(bindings: Bindings) -> None:
    made = CudaReservation(Driver(bindings), DEVICE, 10 * PAGE)
    bindings.fails["cuMemCreate"] = [2]
    assert made.grow(100) and "empty cache" in bindings.log
    bindings.fails["cuMemCreate"] = [2, 2]
    with pytest.raises(torch.OutOfMemoryError, match="for a slot"):
        made.grow(3 * PAGE)
    assert made.nbytes == PAGE


@pytest.mark.parametrize(("name", "released"), [("cuMemMap", True), ("cuMemSetAccess", False)])
def test_what_cannot_be_mapped_is_given_back(bindings: Bindings, name: str, released: bool) -> None:
    made = CudaReservation(Driver(bindings), DEVICE, 10 * PAGE)
    bindings.fails[name] = [801]
    with pytest.raises(torch.OutOfMemoryError, match="could not map 2,097,152 bytes: error 801"):
        made.grow(100)
    assert made.nbytes == 0 and ("Release" in bindings.log) is released
    made.release()
    assert bindings.log.count("Release") == 1


def test_a_device_without_such_ranges(bindings: Bindings) -> None:
    bindings.fails["cuMemAddressReserve"] = [801]
    with pytest.raises(DriverError):
        CudaReservation(Driver(bindings), DEVICE, PAGE)
