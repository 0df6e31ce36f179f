"""Events of torch's profiler (kineto) as `grape.model.Event`s. Knows kineto's vocabulary; does not import torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ..model import DEVICE_WORK, Category, Event, Lane, Position
from .names import short_name
from .positions import PositionOf

_ACTIVITIES: dict[str, tuple[Lane, Category]] = {
    "cpu_op": ("host", "operator"),
    "user_annotation": ("host", "annotation"),
    "python_function": ("host", "python"),
    "cuda_runtime": ("launch", "runtime"),
    "cuda_driver": ("launch", "runtime"),
    "kernel": ("device", "kernel"),
    "gpu_memcpy": ("device", "memcpy"),
    "gpu_memset": ("device", "memset"),
    "gpu_user_annotation": ("device", "annotation"),
}
"""Everything else (profiler overhead, synchronization records, memory and flow events) is no span of the program."""

_RUNTIME_CALL = re.compile(r"cu(?:da)?[A-Z]")
_GRAPH_LAUNCH = re.compile(r"cu(?:da)?GraphLaunch")
_BYTES = re.compile(r'"bytes":\s*(\d+)')


class KinetoEvent(Protocol):
    """An event of torch's profiler, as each version of torch has it."""

    def name(self) -> str: ...

    def start_ns(self) -> int: ...

    def duration_ns(self) -> int: ...

    def correlation_id(self) -> int: ...

    def device_type(self) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One stretch between start and stop, by the host's real-time clock in nanoseconds.

    `stop_ns` is when stopping began, `end_ns` when the device had finished. `device` is the index of the device whose
    work counts; None takes every device's.
    """

    start_ns: int
    stop_ns: int
    end_ns: int
    device: int | None = None

    @property
    def wall_ns(self) -> int:
        return max(0, self.end_ns - self.start_ns)


@dataclass(slots=True)
class _Span:
    """One event on the way. `own` numbers an operator; `link` is the number of the operator that issued this."""

    name: str
    lane: Lane
    category: Category
    start_ns: int
    end_ns: int
    stream: int = -1
    thread: int = 0
    correlation: int = 0
    bytes: int = 0
    own: int = 0
    link: int = 0


def convert(
    raw: Iterable[KinetoEvent],
    window: Window,
    *,
    position_of: PositionOf | None = None,
    inner_of: PositionOf | None = None,
    demangle: Callable[[str], str] | None = None,
) -> tuple[Event, ...] | None:
    """The events of one window, ordered by start, in nanoseconds since its start and clipped to it.

    A graph replay additionally yields one event of category "graph" that spans its kernels. None where `window` has a
    device but no call into CUDA was recorded at all, not even the wait at its end: CUPTI did not work.
    """
    spans = [span for event in raw if (span := _span(event, window, demangle)) is not None]
    if window.device is not None and not any(span.lane == "launch" for span in spans):
        return None
    spans = [span for span in spans if _within(span, window)]
    spans += _graphs(spans)
    spans.sort(key=lambda span: (span.start_ns, -span.end_ns))
    positions, inner = _positions(spans, position_of), _positions(spans, inner_of)
    return tuple(_event(span, positions.get(span.own or span.link), inner.get(span.own or span.link)) for span in spans)


_Read = TypeVar("_Read")


def _read(event: KinetoEvent, name: str, default: _Read) -> _Read:
    """An attribute of a kineto event, which is a method; `default` where this torch has it not."""
    method: Callable[[], _Read] | None = getattr(event, name, None)
    return default if method is None else method()


def _span(event: KinetoEvent, window: Window, demangle: Callable[[str], str] | None) -> _Span | None:
    name = str(event.name())
    kind = _kind(event, name)
    if kind is None:
        return None
    lane, category = kind
    on_device = lane == "device"
    if on_device and window.device is not None and _read(event, "device_index", window.device) != window.device:
        return None
    start = event.start_ns() - window.start_ns
    resource = _read(event, "device_resource_id", 0)
    own = event.correlation_id()
    operator = category == "operator"
    return _Span(
        name=short_name(name, demangle=demangle) if on_device else name,
        lane=lane,
        category=category,
        start_ns=start,
        end_ns=start + event.duration_ns(),
        stream=resource if on_device else -1,
        thread=0 if on_device else resource,
        correlation=0 if lane == "host" else own,
        bytes=_bytes(event) if category in ("memcpy", "memset") else 0,
        own=own if operator else 0,
        link=0 if operator else _read(event, "linked_correlation_id", 0),
    )


def _kind(event: KinetoEvent, name: str) -> tuple[Lane, Category] | None:
    if _read(event, "is_hidden_event", False):
        return None
    activity = _read(event, "activity_type", "")
    if activity:
        return _ACTIVITIES.get(activity)
    annotation = _read(event, "is_user_annotation", False)
    device_type = event.device_type()
    if getattr(device_type, "name", str(device_type)) != "CPU":
        if annotation:
            return "device", "annotation"
        if name.endswith(" Sync"):
            return None
        word = name.partition(" ")[0].lower()
        return "device", "memcpy" if word == "memcpy" else "memset" if word == "memset" else "kernel"
    if annotation:
        return "host", "annotation"
    if _read(event, "is_python_function", False):
        return "host", "python"
    if _RUNTIME_CALL.match(name):
        return "launch", "runtime"
    return ("host", "operator") if "::" in name else None


def _bytes(event: KinetoEvent) -> int:
    found = _BYTES.search(_read(event, "metadata_json", "") or "")
    return int(found.group(1)) if found else int(_read(event, "nbytes", 0))


def _within(span: _Span, window: Window) -> bool:
    """False for what the recorder itself did (the wait at the end); clips the rest to the window."""
    wall, stop = window.wall_ns, window.stop_ns - window.start_ns
    waits = span.lane == "launch" and "Synchronize" in span.name
    if span.lane != "device" and (span.start_ns >= stop or (waits and span.end_ns > stop)):
        return False
    if span.end_ns < 0 or span.start_ns > wall:
        return False
    span.start_ns, span.end_ns = max(0, span.start_ns), min(wall, span.end_ns)
    return True


def _graphs(spans: Sequence[_Span]) -> list[_Span]:
    """One span for each graph replay: the kernels of one launch share its correlation. A launch by the driver's own
    function is not among what kineto tells, and nothing but a graph launches several kernels at once.
    """
    seen = {s.correlation: bool(_GRAPH_LAUNCH.match(s.name)) for s in spans if s.lane == "launch"}
    nodes: dict[int, list[_Span]] = {}
    for span in spans:
        if span.lane == "device" and span.category in DEVICE_WORK and seen.get(span.correlation, span.correlation > 0):
            nodes.setdefault(span.correlation, []).append(span)
    return [
        _Span(
            name=f"CUDA graph, {len(group)} nodes" if len(group) > 1 else "CUDA graph, 1 node",
            lane="device",
            category="graph",
            start_ns=min(node.start_ns for node in group),
            end_ns=max(node.end_ns for node in group),
            stream=group[0].stream,
            correlation=correlation,
            link=group[0].link,
        )
        for correlation, group in nodes.items()
        if correlation in seen or len(group) > 1
    ]


def _positions(spans: Sequence[_Span], position_of: PositionOf | None) -> Mapping[int, Position]:
    """Positions by the number of the operator; what an operator issued has its position."""
    operators = [span for span in spans if span.category == "operator"]
    if position_of is None or not operators:
        return {}
    places = position_of([_event(span, None) for span in operators])
    return {span.own: at for span, at in zip(operators, places, strict=True) if at is not None and span.own}


def _event(span: _Span, position: Position | None, inner: Position | None = None) -> Event:
    return Event(
        name=span.name,
        lane=span.lane,
        category=span.category,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        stream=span.stream,
        thread=span.thread,
        correlation=span.correlation,
        bytes=span.bytes,
        position=position,
        inner=inner,
    )
