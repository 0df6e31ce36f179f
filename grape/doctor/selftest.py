"""Trials: is the profiler able to see the device, and does a replay equal eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from .check import Check

if TYPE_CHECKING:
    import torch

__all__ = ["profiler", "replay"]


def profiler() -> Iterator[Check]:
    """Profile one operator."""
    import torch

    from ..profiling import TimelineRecorder

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    recorder = TimelineRecorder(device)
    tensor = torch.zeros(8, device=device)
    recorder.start()
    try:
        tensor.add_(1)
    finally:
        recorder.stop()
    timeline = recorder.timeline()
    sees = timeline is not None and (device.type == "cpu" or bool(timeline.device_events()))
    what = "kernels (CUPTI) and operators" if device.type == "cuda" else "operators; there is no GPU to see"
    yield Check(
        name="profiler",
        ok=sees,
        found=f"sees {what}" if sees else recorder.unavailable or "CUPTI reported no kernel",
        needs="no other profiler in this process, and permission to trace the GPU",
        effect="no timelines and no launch-bound finding; times and graphs work",
    )


def replay() -> Iterator[Check]:
    """Capture a tiny graph on the device that Grape would use, and replay it on other inputs."""
    import torch

    on_gpu = torch.cuda.is_available()
    problem = _on_gpu() if on_gpu else _on_tape()
    kind = "CUDA graph" if on_gpu else "graph on the CPU reference"
    yield Check(
        name="self-test",
        ok=problem is None,
        found=f"{kind}: {problem or 'replays equal eager'}",
        needs="a driver and a torch that go together" if on_gpu else "a report of this page as a bug",
        effect="graphs cannot be trusted here; use %%grape --profile",
    )


def _program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return ((x @ weight).relu() + 1).sum(dim=1)


def _compare(x: torch.Tensor, weight: torch.Tensor, output: torch.Tensor, run: Callable[[], None]) -> str | None:
    """None where replays on changed inputs give what eager gives, else what went wrong."""
    import torch

    for step in (1, 2):
        x.copy_(torch.arange(64.0).reshape(8, 8).mul(0.1 * step).sub(3))
        run()
        if not torch.equal(output, _program(x, weight)):
            return f"replay {step} differs from eager"
    return None


def _on_gpu() -> str | None:
    import torch

    device = torch.device("cuda", torch.cuda.current_device())
    with torch.no_grad():
        x, weight = torch.ones(8, 8, device=device), torch.eye(8, device=device)
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph(keep_graph=True)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            _program(x, weight)
            stream.synchronize()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                output = _program(x, weight)
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        graph.instantiate()
        return _compare(x, weight, output, graph.replay)


def _on_tape() -> str | None:
    import torch

    from ..runtime.backends.tape import TapeBackend

    backend = TapeBackend()
    try:
        with torch.no_grad():
            x, weight = torch.ones(8, 8), torch.eye(8)
            graph, output = backend.capture(lambda: _program(x, weight))
            return _compare(x, weight, output, graph.replay)
    finally:
        backend.close()
