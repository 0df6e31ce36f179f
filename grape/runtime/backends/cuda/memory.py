"""Counts what a private pool of the allocator holds, and makes device memory that grows without moving.

A reservation is a range of addresses; physical memory is mapped behind its beginning as it is needed. So what a graph
remembers stays true when a later shape needs more. See "Virtual Memory Management" in the CUDA driver API.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import TypedDict

import torch

from .driver import Driver, DriverError, load

_ROOM = 64
"""A range is so many times larger than what is needed first; addresses cost nothing."""
_keep_alive = ctypes.pythonapi.Py_IncRef
_keep_alive.argtypes, _keep_alive.restype = [ctypes.py_object], None


class Segment(TypedDict):
    """A part of what `torch.cuda.memory_snapshot` says of memory that the allocator has in one piece."""

    address: int
    total_size: int


def pool_bytes(pool: tuple[int, int]) -> int:
    """Bytes that the allocator holds for a private pool, in use or not."""
    return sum(segment["total_size"] for segment in segments(pool))


def segments(pool: tuple[int, int]) -> list[Segment]:
    """The allocator's segments of a private pool.

    `memory_snapshot` gives up a reference that it does not own to each number of the pool's id (pytorch #196366, in
    2.11 to 2.13), and past pool 256 that frees the number while it is in use. So each gets a reference more; where
    torch is mended, that keeps one small object for each pool.
    """
    for number in pool:
        _keep_alive(number)
    found: list[Segment] = torch.cuda.memory_snapshot(pool)
    return found


def reserve(device: torch.device, nbytes: int) -> CudaReservation | None:
    """A range on `device` with at least `nbytes` mapped; None without bindings or support of the driver.

    Raises torch.OutOfMemoryError.
    """
    driver = load()
    if driver is None:
        return None
    total = torch.cuda.get_device_properties(device).total_memory
    try:
        made = CudaReservation(driver, device, min(max(nbytes * _ROOM, 1 << 28), max(2 * nbytes, total)))
    except DriverError:
        return None
    made.grow(nbytes)
    return made


class CudaReservation:
    """Implements `Reservation`. Raises `DriverError` where the device cannot have a range of `limit` bytes."""

    def __init__(self, driver: Driver, device: torch.device, limit: int) -> None:
        self._driver = driver
        self._device = device
        self._properties = _properties(driver, device)
        minimum = driver.types.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self._granularity = int(driver.call("cuMemGetAllocationGranularity", self._properties, minimum))
        self._limit = -(-limit // self._granularity) * self._granularity
        self._handles: list[tuple[int, int, object]] = []
        self.address = int(driver.call("cuMemAddressReserve", self._limit, 0, 0, 0))
        self.nbytes = 0

    def grow(self, nbytes: int) -> bool:
        if nbytes <= self.nbytes:
            return True
        if nbytes > self._limit:
            return False
        # An eighth more than asked for: a cache grows by a little at each call, and every mapping costs 50 us.
        wanted = min(self._limit, -(-(nbytes + self.nbytes // 8) // self._granularity) * self._granularity)
        size = wanted - self.nbytes
        handle = self._create(size)
        driver, start = self._driver, self.address + self.nbytes
        access = driver.types.CUmemAccessDesc()
        access.location.type = driver.types.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = self._device.index
        access.flags = driver.types.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        mapped = False
        try:
            driver.call("cuMemMap", start, size, 0, handle, 0)
            mapped = True
            self._handles.append((start, size, handle))
            driver.call("cuMemSetAccess", start, size, [access], 1)
        except DriverError as error:
            if not mapped:
                driver.succeeds("cuMemRelease", handle)
            raise torch.OutOfMemoryError(f"the driver could not map {size:,} bytes: error {error.code}") from error
        self.nbytes = wanted
        return True

    def _create(self, size: int) -> object:
        for _ in range(2):
            with suppress(DriverError):
                return self._driver.call("cuMemCreate", size, self._properties, 0)
            torch.cuda.empty_cache()
        raise torch.OutOfMemoryError(f"no {size:,} bytes of device memory for a slot")

    def release(self) -> None:
        driver, handles, self._handles = self._driver, self._handles, []
        for start, size, handle in handles:
            driver.succeeds("cuMemUnmap", start, size)
            driver.succeeds("cuMemRelease", handle)
        if self._limit:
            driver.succeeds("cuMemAddressFree", self.address, self._limit)
        self._limit = self.nbytes = 0


def _properties(driver: Driver, device: torch.device) -> object:
    properties = driver.types.CUmemAllocationProp()
    properties.type = driver.types.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.types.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device.index
    return properties
