"""Profiles host, device and memory: torch.profiler to timelines, memory curves, times of calls."""

from .calibration import machine_costs
from .forks import spare_children
from .line_events import LineEvents
from .line_memory import LineMemory, allocated_by
from .loaders import LoaderWatch
from .memory import MemorySampler
from .replays import place_nodes
from .timeline import TimelineRecorder
from .timing import CallTimer, CudaCallTimer, HostCallTimer

__all__ = [
    "CallTimer",
    "CudaCallTimer",
    "HostCallTimer",
    "LineEvents",
    "LineMemory",
    "LoaderWatch",
    "MemorySampler",
    "TimelineRecorder",
    "allocated_by",
    "machine_costs",
    "place_nodes",
    "spare_children",
]
