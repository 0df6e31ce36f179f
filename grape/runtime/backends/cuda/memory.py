"""Counts what a private pool of the allocator holds, and makes device memory that grows without moving.

A reservation is a range of addresses; physical memory is mapped behind its beginning as it is needed. So what a graph
remembers stays true when a later shape needs more. See "Virtual Memory Management" in the CUDA driver API.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

__all__ = ["CudaReservation", "pool_bytes", "reserve", "segments"]

_ROOM = 64
"""A range is so many times larger than what is needed first; addresses cost nothing."""
_driver: object = None
_keep_alive = ctypes.pythonapi.Py_IncRef
_keep_alive.argtypes, _keep_alive.restype = [ctypes.py_object], None


def pool_bytes(pool: tuple[int, int]) -> int:
    """Bytes that the allocator holds for a private pool, in use or not."""
    return sum(segment["total_size"] for segment in segments(pool))


def segments(pool: tuple[int, int]) -> list[dict[str, Any]]:
    """The allocator's segments of a private pool.

    `memory_snapshot` gives up a reference that it does not own to each number of the pool's id (pytorch #196366, in
    2.11 to 2.13), and past pool 256 that frees the number while it is in use. So each gets a reference more; where
    torch is mended, that keeps one small object for each pool.
    """
    for number in pool:
        _keep_alive(number)
    found: list[dict[str, object]] = torch.cuda.memory_snapshot(pool)
    return found


def _load() -> object:
    global _driver
    if _driver is None:
        try:
            from cuda.bindings import driver
        except ImportError:
            _driver = False
        else:
            _driver = driver
    return _driver or None


def reserve(device: torch.device, nbytes: int) -> CudaReservation | None:
    """A range on `device` with at least `nbytes` mapped; None without bindings or support of the driver.

    Raises torch.OutOfMemoryError.
    """
    driver = _load()
    if driver is None:
        return None
    total = torch.cuda.get_device_properties(device).total_memory
    made = CudaReservation.open(driver, device, min(max(nbytes * _ROOM, 1 << 28), max(2 * nbytes, total)))
    if made is not None:
        made.grow(nbytes)
    return made


class CudaReservation:
    """Implements `Reservation`."""

    def __init__(self, driver: Any, device: torch.device, address: int, limit: int, granularity: int) -> None:
        self._driver = driver
        self._device = device
        self._limit = limit
        self._granularity = granularity
        self._handles: list[tuple[int, int, object]] = []
        self.address = address
        self.nbytes = 0

    @classmethod
    def open(cls, driver: Any, device: torch.device, limit: int) -> CudaReservation | None:
        properties = _properties(driver, device)
        flag = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        error, granularity = driver.cuMemGetAllocationGranularity(properties, flag)
        if int(error):
            return None
        limit = -(-limit // granularity) * granularity
        error, address = driver.cuMemAddressReserve(limit, 0, 0, 0)
        return cls(driver, device, int(address), limit, int(granularity)) if not int(error) else None

    def grow(self, nbytes: int) -> bool:
        if nbytes <= self.nbytes:
            return True
        if nbytes > self._limit:
            return False
        # An eighth more than asked for: a cache grows by a little at each call, and every mapping costs 50 us.
        wanted = min(self._limit, -(-(nbytes + self.nbytes // 8) // self._granularity) * self._granularity)
        size = wanted - self.nbytes
        handle = self._create(size)
        if handle is None:
            torch.cuda.empty_cache()
            handle = self._create(size)
        if handle is None:
            raise torch.OutOfMemoryError(f"no {size:,} bytes of device memory for a slot")
        driver, start = self._driver, self.address + self.nbytes
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = self._device.index
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        (error,) = driver.cuMemMap(start, size, 0, handle, 0)
        if not int(error):
            self._handles.append((start, size, handle))
            (error,) = driver.cuMemSetAccess(start, size, [access], 1)
        else:
            driver.cuMemRelease(handle)
        if int(error):
            raise torch.OutOfMemoryError(f"the driver could not map {size:,} bytes: error {int(error)}")
        self.nbytes = wanted
        return True

    def _create(self, size: int) -> object:
        error, handle = self._driver.cuMemCreate(size, _properties(self._driver, self._device), 0)
        return handle if not int(error) else None

    def release(self) -> None:
        driver, handles, self._handles = self._driver, self._handles, []
        for start, size, handle in handles:
            driver.cuMemUnmap(start, size)
            driver.cuMemRelease(handle)
        if self._limit:
            driver.cuMemAddressFree(self.address, self._limit)
        self._limit = self.nbytes = 0


def _properties(driver: Any, device: torch.device) -> Any:
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device.index
    return properties
