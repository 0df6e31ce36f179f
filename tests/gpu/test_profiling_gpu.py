"""Profiling on a real GPU: kernels, graph replays, busy share, memory curves, timers."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from grape.model import Measured, Timeline
from grape.profiling import CudaCallTimer, MemorySampler, TimelineRecorder
from grape.profiling.devices import cupti
from grape.profiling.devices.nvml import device_handle, used_bytes
from grape.runtime.backends.cuda.backend import CudaBackend

pytestmark = pytest.mark.gpu

GB = 2**30


@pytest.fixture
def device() -> torch.device:
    torch.cuda.init()
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def matrix(device: torch.device) -> torch.Tensor:
    made = torch.randn(2048, 2048, device=device, dtype=torch.float16)
    made @ made
    torch.cuda.synchronize()
    return made


def record(device: torch.device, work: Callable[[], object]) -> Timeline:
    recorder = TimelineRecorder(device)
    recorder.start()
    work()
    recorder.stop()
    timeline = recorder.timeline()
    assert timeline is not None, recorder.unavailable
    return timeline


def captured(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        work()
    return graph


def test_the_kernels_of_a_matmul(device: torch.device, matrix: torch.Tensor) -> None:
    timeline = record(device, lambda: [matrix @ matrix for _ in range(20)])
    kernels = [e for e in timeline.events if e.category == "kernel"]
    assert len(kernels) >= 20
    assert 0 < timeline.gpu_busy_share <= 1
    assert all(0 <= e.start_ns <= e.end_ns <= timeline.wall_ns for e in timeline.events)
    launches = {e.correlation for e in timeline.events if e.lane == "launch"}
    assert {kernel.correlation for kernel in kernels} <= launches
    assert all(len(kernel.name) <= 80 for kernel in kernels)
    assert "aten::mm" in {e.name for e in timeline.events if e.category == "operator"}


def test_a_busy_gpu_is_busy_and_an_idle_one_is_not(device: torch.device) -> None:
    large = torch.randn(8192, 8192, device=device, dtype=torch.float16)
    large @ large
    small = torch.zeros(8, device=device)

    def idle() -> None:
        for _ in range(20):
            small.add_(1)
            time.sleep(0.001)

    assert record(device, lambda: [large @ large for _ in range(10)]).gpu_busy_share > 0.8
    assert record(device, idle).gpu_busy_share < 0.1


def test_earlier_work_and_the_recorders_own_wait_are_not_in_the_window(
    device: torch.device, matrix: torch.Tensor
) -> None:
    for _ in range(200):
        matrix @ matrix
    timeline = record(device, lambda: torch.zeros(8, device=device))
    assert len(timeline.device_events()) == 1
    assert not [e.name for e in timeline.events if "Synchronize" in e.name]


def test_annotations_are_not_device_work(device: torch.device, matrix: torch.Tensor) -> None:
    def work() -> None:
        with torch.profiler.record_function("mine"):
            matrix @ matrix
            time.sleep(0.01)
            matrix @ matrix

    timeline = record(device, work)
    assert ("mine", "host") in {(e.name, e.lane) for e in timeline.events}
    assert {e.category for e in timeline.device_events()} <= {"kernel", "memcpy", "memset"}
    assert timeline.gpu_busy_share < 0.2


def test_copies_carry_their_bytes(device: torch.device) -> None:
    source = torch.zeros(2**20).pin_memory()
    timeline = record(device, lambda: source.to(device, non_blocking=True).zero_().cpu())
    copies = {e.name.split(" ")[1]: e.bytes for e in timeline.device_events() if e.category == "memcpy"}
    # torch 2.11 reports no bytes for copies; later versions do
    known = 0 if torch.__version__ < "2.12" else 4 * 2**20
    assert copies == {"HtoD": known, "DtoH": known}


def test_a_graph_replay_is_a_graph_event(device: torch.device, matrix: torch.Tensor) -> None:
    x = torch.zeros(1024, device=device)

    def work() -> None:
        for _ in range(10):
            x.add_(1)

    graph = captured(work)
    timeline = record(device, lambda: [graph.replay() for _ in range(3)])
    replays = [e for e in timeline.events if e.category == "graph"]
    assert [e.name for e in replays] == ["CUDA graph, 10 nodes"] * 3
    assert timeline.calls == 1 and timeline.kernels_per_call == 30
    kernels = [e for e in timeline.events if e.category == "kernel"]
    assert all(any(g.start_ns <= k.start_ns and k.end_ns <= g.end_ns for g in replays) for k in kernels)
    assert any(e.name.startswith("cudaGraphLaunch") for e in timeline.events if e.lane == "launch")


def test_recording_is_cheap_after_the_first_time(device: torch.device, matrix: torch.Tensor) -> None:
    recorder = TimelineRecorder(device)
    costs_ms: list[tuple[float, float]] = []
    for _ in range(5):
        torch.cuda.synchronize()
        t0 = time.perf_counter()
        recorder.start()
        t1 = time.perf_counter()
        for _ in range(300):
            matrix.add_(0)
        t2 = time.perf_counter()
        recorder.stop()
        costs_ms.append(((t1 - t0) * 1e3, (time.perf_counter() - t2) * 1e3))
    assert min(start for start, _ in costs_ms) < 20
    assert min(stop for _, stop in costs_ms) < 30


def test_no_recording_inside_a_capture(device: torch.device) -> None:
    x = torch.zeros(8, device=device)
    recorder = TimelineRecorder(device)

    def work() -> None:
        if torch.cuda.is_current_stream_capturing():
            recorder.start()
        x.add_(1)
        recorder.stop()

    graph = captured(work)
    assert recorder.unavailable == "a CUDA graph is being captured" and recorder.timeline() is None
    x.zero_()
    graph.replay()
    assert x.tolist() == [1.0] * 8


def test_the_memory_curve_grows_with_an_allocation(device: torch.device) -> None:
    torch.cuda.empty_cache()
    sampler = MemorySampler(device, interval_s=0.005)
    sampler.start()
    time.sleep(0.1)
    block = torch.zeros(GB, dtype=torch.uint8, device=device)
    torch.cuda.synchronize()
    time.sleep(0.1)
    curve = sampler.stop()
    del block
    assert curve.allocated_bytes[-1] - curve.allocated_bytes[0] >= GB
    assert curve.reserved_bytes[-1] - curve.reserved_bytes[0] >= GB
    if device_handle(device) is not None and used_bytes(device_handle(device)) is not None:
        assert curve.device_used_bytes[-1] - curve.device_used_bytes[0] >= 0.9 * GB
        assert max(curve.device_used_bytes) <= 1.01 * torch.cuda.get_device_properties(device).total_memory


def test_a_spike_between_two_samples_is_seen(device: torch.device) -> None:
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    size = torch.cuda.max_memory_allocated(device) + 64 * 2**20
    if size > free:
        pytest.skip("not enough free memory for a new peak")
    sampler = MemorySampler(device, interval_s=60)
    sampler.start()
    time.sleep(0.2)
    torch.empty(size, dtype=torch.uint8, device=device)
    curve = sampler.stop()
    assert len(curve.at_ns) == 2 and curve.peak_allocated_bytes >= size
    assert torch.cuda.max_memory_allocated(device) >= size


def test_sampling_does_not_disturb_a_capture(device: torch.device) -> None:
    x = torch.zeros(1024, device=device)
    sampler = MemorySampler(device, interval_s=0.0005)
    sampler.start()

    def work() -> None:
        for _ in range(200):
            x.add_(1)
        time.sleep(0.02)

    graph = captured(work)
    curve = sampler.stop()
    x.zero_()
    graph.replay()
    assert torch.equal(x, torch.full_like(x, 200))
    assert len(curve.at_ns) > 5


def test_timers_agree_with_the_wall_clock(device: torch.device, matrix: torch.Tensor) -> None:
    def loop() -> None:
        for _ in range(repeats):
            matrix @ matrix

    repeats = 20
    torch.cuda.synchronize()
    begin = time.perf_counter()
    loop()
    torch.cuda.synchronize()
    repeats = max(1, round(repeats * 5e-3 / (time.perf_counter() - begin)))
    measured: list[float] = []
    wall: list[float] = []
    for _ in range(25):
        timer = CudaCallTimer(device)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        timer.start()
        loop()
        timer.stop()
        torch.cuda.synchronize()
        wall.append((time.perf_counter() - begin) * 1e3)
        measured.append(timer.elapsed_ms())
    on_device, on_host = Measured.of(measured), Measured.of(wall)
    assert on_device is not None and on_host is not None
    assert on_device.median_ms == pytest.approx(on_host.median_ms, rel=0.2)


def test_a_timer_costs_little_and_does_not_wait(device: torch.device) -> None:
    large = torch.randn(8192, 8192, device=device, dtype=torch.float16)
    large @ large
    timers = [CudaCallTimer(device) for _ in range(200)]
    for _ in range(2):  # the second round takes its events from the pool
        torch.cuda.synchronize()
        for _ in range(20):
            large @ large
        times_us = []
        for timer in timers:
            begin = time.perf_counter_ns()
            timer.start()
            timer.stop()
            times_us.append((time.perf_counter_ns() - begin) / 1e3)
        assert all(timer.elapsed_ms() >= 0 for timer in timers)
    cost = Measured.of(times_us)
    assert cost is not None and cost.median_ms < 50


def test_the_doctor_finds_what_a_gpu_needs() -> None:
    from grape.doctor import checks

    found = {check.name: check for check in checks()}
    for name in ("torch", "torch.cuda.CUDAGraph", "torch's CUDA", "GPU 0", "NVIDIA driver", "profiler", "self-test"):
        assert found[name].ok, found[name]
    assert found["self-test"].found == "CUDA graph: replays equal eager"


def test_cupti_comes_and_goes(device: torch.device, matrix: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles of eager work, of a backward in autograd's thread and of replays, each after CUPTI was taken out; graphs
    made before, between and after, with bodies and without."""
    monkeypatch.setattr(cupti, "MOST", 1000)
    x = torch.randn(64, 64, device=device, requires_grad=True)
    backend = CudaBackend(device)
    backend.prepare_bodies()
    flag, total = torch.ones((), dtype=torch.bool, device=device), torch.zeros((), device=device)

    def with_body() -> None:
        with backend.if_body(flag):
            total.add_(1)

    graphs, bodies, replayed = [captured(lambda: matrix @ matrix)], [], 0
    for _ in range(12):
        assert len([e for e in record(device, lambda: matrix @ matrix).events if e.category == "kernel"]) >= 1
        cupti.detach()  # a second time does no harm
        backward = record(device, lambda: (x @ x).sum().backward())
        assert sum(e.category == "kernel" for e in backward.events) >= 3
        graphs.append(captured(lambda: matrix @ matrix))
        bodies.append(backend.capture(with_body)[0])
        for graph in graphs:
            found = record(device, graph.replay)
            assert sum(e.category == "kernel" for e in found.events) >= 1
        for graph in bodies:
            graph.replay()
            replayed += 1
    torch.cuda.synchronize()
    assert total.item() == replayed
    backend.close()


def test_launches_cost_what_they_did_before_a_profile(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupti, "_times", 0)
    net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(100)]).to(device).requires_grad_(False)
    x = torch.randn(4, 64, device=device)

    def fastest() -> float:
        times = []
        for _ in range(60):
            torch.cuda.synchronize()
            began = time.perf_counter()
            net(x)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        return sorted(times)[5]

    fastest()
    before = fastest()
    record(device, lambda: net(x))
    assert fastest() < 1.15 * before
