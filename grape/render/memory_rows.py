"""Rows about the memory of the cell and of its graphs."""

from __future__ import annotations

from ..model import GraphMemory, ReportData
from .summary import Bar
from .units import count, nbytes, plural
from .verdict.verdict import ran_torch


def memory_title(report: ReportData) -> str:
    """Whose memory the bars show: the tape's tensors lie in the memory of the process."""
    return "process memory" if report.evidence.backend == "tape" else "GPU memory"


def memory_bars(report: ReportData) -> tuple[Bar, ...]:
    """Peaks of the cell and what graphs hold, on one scale. Empty where nothing was recorded or nothing ran.

    On the tape allocated and reserved bytes are the same: what the whole process holds, libraries included.
    """
    memory = report.memory
    if not report.regions and not ran_torch(report.evidence):
        return ()
    held = report.evidence.graph_memory
    graphs: tuple[tuple[str, int], ...] = (("graphs", sum(region.graph_bytes for region in report.regions)),)
    if held is not None:
        graphs = (
            ("graph pool", held.pool_bytes),
            ("placeholders", held.placeholder_bytes),
            ("executables", held.executable_bytes),
            ("graph records, host", held.host_bytes),
        )
    sizes: tuple[tuple[str, int], ...] = (
        ("peak allocated", memory.peak_allocated_bytes),
        ("peak reserved", memory.peak_reserved_bytes),
        *graphs,
        ("device, all in use", max(memory.device_used_bytes, default=0)),
    )
    if report.evidence.backend == "tape":
        sizes = (("peak resident", memory.peak_allocated_bytes), *graphs)
    most = max(size for _, size in sizes)
    return tuple(
        Bar(label=label, value=nbytes(size), share=size / most, tone="memory") for label, size in sizes if size > 0
    )


def graph_stores(held: GraphMemory) -> tuple[str, ...]:
    """Two lines about what graphs hold, and for how many shapes."""
    alone = f", {count(held.alone)} that cannot share" if held.alone else ""
    changes = ((held.switches, "switched"), (held.evictions, "given back"))
    done = "".join(f", {what} {plural(times, 'time')}" for times, what in changes if times)
    refused = f", {plural(held.refused_updates, 'update')} refused by the device" if held.refused_updates else ""
    return (
        f"on the device: pool {nbytes(held.pool_bytes)}, placeholders {nbytes(held.placeholder_bytes)}, "
        f"executables {nbytes(held.executable_bytes)}; on the host: records {nbytes(held.record_bytes)}, "
        f"working set {nbytes(held.host_graph_bytes)}",
        f"{plural(held.graphs, 'graph')} in {count(held.classes)} class{'' if held.classes == 1 else 'es'}{alone}; "
        f"{plural(held.executables, 'executable')}{done}{refused}; one for each graph, with inputs and results of its "
        f"own, would take about {nbytes(held.per_graph_bytes)} on the device (estimate)",
    )
