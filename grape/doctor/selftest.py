"""Trials: is the profiler able to see the device, does a replay equal eager, do the parts that need a driver's help.

Each of the latter runs whether Grape uses that part on this machine or not, so that the page can say what would work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from .check import Check

if TYPE_CHECKING:
    import torch


def profiler() -> Iterator[Check]:
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
    kind = "CUDA graph" if on_gpu else "graph, rehearsed on the CPU"
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

    from ..profiling.private_streams import private_stream

    device = torch.device("cuda", torch.cuda.current_device())
    with torch.no_grad():
        x, weight = torch.ones(8, 8, device=device), torch.eye(8, device=device)
        stream, graph = private_stream(device, "self-test"), torch.cuda.CUDAGraph(keep_graph=True)
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

    from ..runtime.backends.reference.backend import ReferenceBackend

    backend = ReferenceBackend()
    try:
        with torch.no_grad():
            x, weight = torch.ones(8, 8), torch.eye(8)
            graph, output = backend.capture(lambda: _program(x, weight))
            return _compare(x, weight, output, graph.replay)
    finally:
        backend.close()


def shared_executables() -> Iterator[Check]:
    """One executable does the work of two sizes of a small network, switched whole and node by node."""
    yield _trial(
        name="shared executables",
        trial=_share,
        works="one executable serves two shapes",
        effect="each shape keeps an executable of its own",
    )


def conditional_bodies() -> Iterator[Check]:
    """An IF and a WHILE body, with a product and an allocation in each."""
    yield _trial(
        name="conditional bodies",
        trial=_branch_and_loop,
        works="IF and WHILE bodies equal eager",
        effect="branches become selects, loops that only data ends stay eager",
    )


def _trial(*, name: str, trial: Callable[[torch.device], str | None], works: str, effect: str) -> Check:
    import torch

    if not torch.cuda.is_available():
        return Check(name=name, ok=None, found="no CUDA device", effect="only used with an NVIDIA GPU")
    with torch.no_grad():
        problem = trial(torch.device("cuda", torch.cuda.current_device()))
    if problem is None:
        return Check(name=name, ok=True, found=works)
    return Check(
        name=name, ok=False, found=problem, needs="a newer driver, or a report of this page as a bug", effect=effect
    )


def _share(device: torch.device) -> str | None:
    import torch

    from ..runtime.backends.cuda.backend import CudaBackend
    from ..runtime.backends.cuda.executables.updatable import UpdatableCudaGraph

    backend = CudaBackend(device)
    if not backend.updatable:
        return "cuda.bindings are missing"
    weight = torch.linspace(-1, 1, 64 * 64, device=device).reshape(64, 64)

    def network(x: torch.Tensor) -> torch.Tensor:
        return ((x @ weight).relu() + 1).sum(dim=1)

    try:
        places = [torch.zeros(rows, 64, device=device) for rows in (32, 48)]
        network(places[0])  # what a library does once, it does outside of a capture
        made = [backend.capture(partial(network, place)) for place in places]
        graphs = [graph for graph, _ in made if isinstance(graph, UpdatableCudaGraph)]
        if len(graphs) < 2 or graphs[0].topology is None:
            return "the nodes of a graph cannot be read"
        if graphs[0].topology != graphs[1].topology:
            return "two sizes of one network have other nodes; nothing to switch was tried"
        executable = graphs[0].instantiate()
        ways: dict[str, Callable[[int], bool]] = {
            "from a graph": lambda which: executable.update_from(graphs[which]),
            "node by node": lambda which: executable.update_prepared(
                [executable.prepare(list(enumerate(graphs[which].parameters())))], graphs[which].attachment
            ),
        }
        for step, (way, which) in enumerate((way, which) for way in ways for which in (1, 0)):
            if not ways[way](which):
                return f"an update {way} is refused"
            places[which].copy_(torch.arange(places[which].numel(), device=device).view_as(places[which]) % 7 - step)
            executable.replay()
            if not torch.equal(made[which][1], network(places[which])):
                return f"after an update {way} a replay differs from eager"
        executable.release()
        return None
    finally:
        backend.close()


def _branch_and_loop(device: torch.device) -> str | None:
    import torch

    from ..runtime.backends.cuda.backend import CudaBackend

    backend = CudaBackend(device, conditional_bodies=True)
    backend.prepare_bodies()
    if not backend.conditional_bodies:
        return "cuda.bindings, NVRTC or a driver for CUDA 12.4 are missing"
    weight = torch.eye(16, device=device) * 2
    x, rounds = torch.zeros(16, 16, device=device), torch.zeros((), device=device)

    def program() -> torch.Tensor:
        value, left = x.clone(), rounds.clone()
        with backend.if_body(x[0, 0] > 0):
            value.copy_((value @ weight).relu() + 1)
        on = left > 0
        with backend.while_body(on):
            value.copy_(value @ weight + torch.ones(16, 16, device=device))
            left.sub_(1)
            torch.gt(left, 0, out=on)
        return value * 1

    def eager(positive: bool, times: int) -> torch.Tensor:
        value = x.clone()
        if positive:
            value.copy_((value @ weight).relu() + 1)
        for _ in range(times):
            value.copy_(value @ weight + torch.ones(16, 16, device=device))
        return value * 1

    try:
        graph, result = backend.capture(program)
        for positive, times in ((True, 0), (False, 3), (True, 5), (False, 0)):
            x.fill_(0.5 if positive else -0.5)
            rounds.fill_(times)
            graph.replay()
            if not torch.equal(result, eager(positive, times)):
                return f"a replay differs from eager (IF {'taken' if positive else 'not taken'}, {times} rounds)"
        return None
    finally:
        backend.close()
