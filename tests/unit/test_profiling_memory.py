"""The memory curve: thinning, allocator peaks, NVML's device, the CPU. CUDA and NVML are played by fakes here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grape.model import MemoryCurve
from grape.profiling import MemorySampler, memory
from grape.profiling.devices import nvml
from grape.profiling.memory import _CudaReader, _Samples

CPU = torch.device("cpu")
MB = 2**20


def wait_for(condition: Callable[[], object]) -> None:
    """However busy the machine is, the sampling thread gets its turn within a minute."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_the_resident_memory_of_a_process_that_grows() -> None:
    sampler = MemorySampler(CPU, interval_s=0.005)
    sampler.start()
    wait_for(lambda: sampler._samples.at_ns)
    block = bytearray(128 * MB)
    block[::4096] = b"x" * len(block[::4096])
    taken = len(sampler._samples.at_ns)
    wait_for(lambda: len(sampler._samples.at_ns) > taken)
    curve = sampler.stop()
    assert len(curve.at_ns) >= taken + 2
    assert len(curve.at_ns) == len(curve.allocated_bytes) == len(curve.reserved_bytes)
    assert curve.device_used_bytes == ()
    assert curve.at_ns == tuple(sorted(curve.at_ns)) and curve.at_ns[0] >= 0
    assert curve.peak_allocated_bytes - curve.allocated_bytes[0] > 50 * MB


def test_a_short_cell_has_a_first_and_a_last_sample() -> None:
    sampler = MemorySampler(CPU, interval_s=60)
    sampler.start()
    curve = sampler.stop()
    assert len(curve.at_ns) == 2


def test_the_person_counts_no_thread_of_the_sampler() -> None:
    before = threading.enumerate()
    sampler = MemorySampler(CPU, interval_s=0.001)
    sampler.start()
    wait_for(lambda: len(sampler._samples.at_ns) > 2)
    assert threading.enumerate() == before
    sampler.stop()
    taken = len(sampler._samples.at_ns)
    time.sleep(0.02)
    assert len(sampler._samples.at_ns) == taken


def test_stop_without_start_and_twice() -> None:
    sampler = MemorySampler(CPU)
    assert sampler.stop() == MemoryCurve()
    sampler.start()
    sampler.start()
    first = sampler.stop()
    assert sampler.stop() == first
    sampler.start()
    assert sampler.stop().at_ns != first.at_ns


def test_at_most_so_many_samples_over_the_whole_time() -> None:
    sampler = MemorySampler(CPU, interval_s=0.0005, most=8)
    began = time.perf_counter_ns()
    sampler.start()
    started = time.perf_counter_ns()
    wait_for(lambda: sampler._samples.at_ns)
    seen = time.perf_counter_ns()
    time.sleep(0.1)
    ended = time.perf_counter_ns()
    curve = sampler.stop()
    assert 2 <= len(curve.at_ns) <= 8
    assert curve.at_ns[0] <= seen - began and curve.at_ns[-1] >= ended - started


def test_thinning_keeps_the_peaks() -> None:
    samples = _Samples()
    for i, value in enumerate([1, 9, 2, 3, 7]):
        samples.add(i, value, 10 * value, 100 * value)
    samples.halve()
    assert samples.curve() == MemoryCurve(
        at_ns=(0, 2, 4), allocated_bytes=(9, 3, 7), reserved_bytes=(90, 30, 70), device_used_bytes=(900, 300, 700)
    )


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_device_memory_is_all_there_or_empty(missing: int) -> None:
    samples = _Samples()
    for i in range(3):
        samples.add(i, 1, 1, None if i == missing else 5)
    assert samples.curve().device_used_bytes == ()
    samples.halve()
    assert samples.curve().device_used_bytes == ()
    assert len(samples.curve().at_ns) == 2


def test_a_failing_reader_ends_the_curve_and_not_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([(1, 2, None), (3, 4, None)])
    monkeypatch.setattr(memory, "_read_resident", lambda last: next(readings))
    sampler = MemorySampler(CPU, interval_s=0.001)
    sampler.start()
    ended = sampler._ended
    assert ended is not None
    wait_for(ended.is_set)
    assert sampler.stop().allocated_bytes == (1, 3)


def test_no_proc_no_curve(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(memory, "_STATM", tmp_path / "missing")
    sampler = MemorySampler(CPU)
    sampler.start()
    assert sampler.stop() == MemoryCurve()


def test_cuda_is_not_initialized_by_sampling() -> None:
    sampler = MemorySampler(torch.device("cuda"), interval_s=0.001)
    before = torch.cuda.is_initialized()
    sampler.start()
    time.sleep(0.01)
    curve = sampler.stop()
    assert torch.cuda.is_initialized() is before
    assert before or curve == MemoryCurve()


class Allocator:
    """Plays torch's statistics: (allocated now, allocated peak) a reading; twice that is reserved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *readings: tuple[int, int]) -> None:
        self.readings = iter(readings)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", self.stats)

    def stats(self, device: torch.device) -> dict[str, Any]:
        assert device == torch.device("cuda", 1)
        now, peak = next(self.readings)
        return {
            f"{store}_bytes": {"all": {"current": now * k, "peak": peak * k}}
            for store, k in (("allocated", 1), ("reserved", 2))
        }


def test_a_spike_between_two_samples_is_seen_by_the_allocators_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "device_handle", lambda device: None)
    # An old peak of 50 is not this cell's; the rise to 80 is; a reset by the person brings 15, then 30.
    Allocator(monkeypatch, (10, 50), (10, 50), (20, 80), (5, 80), (12, 15), (10, 30))
    read = _CudaReader(1)
    assert [read() for _ in range(6)] == [
        (10, 20, None),
        (10, 20, None),
        (80, 160, None),
        (5, 10, None),
        (12, 24, None),
        (30, 60, None),
    ]


class Nvml:
    """Plays pynvml on a machine of two devices, numbered the other way round than CUDA does."""

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return {"GPU-aaaa": "nvml 1", "MIG-bbbb": "nvml 2"}[uuid]

    def nvmlDeviceGetHandleByPciBusId(self, address: str) -> str:
        return f"at {address}"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        if handle == "nvml 2":
            raise RuntimeError("NVMLError_NotSupported")
        return SimpleNamespace(used=123, free=1, total=124)


@pytest.fixture
def fake_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_library", Nvml())
    monkeypatch.setattr(nvml, "_tried", True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)


PCI = {"pci_domain_id": 0, "pci_bus_id": 0x1B, "pci_device_id": 0}


@pytest.mark.usefixtures("fake_nvml")
@pytest.mark.parametrize(
    ("properties", "handle"),
    [
        ({"uuid": "aaaa"}, "nvml 1"),
        ({"uuid": "GPU-aaaa"}, "nvml 1"),
        ({"uuid": "bbbb"}, "nvml 2"),
        ({"uuid": "unknown", **PCI}, "at 00000000:1b:00.0"),
        (PCI, "at 00000000:1b:00.0"),
        ({"uuid": "unknown"}, None),
        ({}, None),
    ],
)
def test_the_nvml_device_is_the_one_with_cudas_address(
    properties: dict[str, Any], handle: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**properties))
    assert nvml.device_handle(torch.device("cuda", 0)) == handle


@pytest.mark.usefixtures("fake_nvml")
def test_used_bytes_or_none() -> None:
    assert nvml.used_bytes("nvml 1") == 123
    assert nvml.used_bytes("nvml 2") is None
    assert nvml.device_handle(CPU) is None


@pytest.mark.usefixtures("fake_nvml")
def test_nvml_stands_beside_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    Allocator(monkeypatch, (10, 10))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="aaaa"))
    assert _CudaReader(1)() == (10, 20, 123)


def test_without_nvml_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    monkeypatch.setattr(nvml, "_tried", False)
    monkeypatch.setattr(nvml, "_library", None)
    assert nvml.nvml() is None
    assert nvml.used_bytes("any") is None
