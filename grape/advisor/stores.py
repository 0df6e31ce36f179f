"""How findings speak of the memory that a region's graphs hold."""

from __future__ import annotations

from ..model import RegionEvidence
from ..model.sizes import size_text


def held_text(region: RegionEvidence, graph_bytes: int) -> str:
    """``7 MB``; where graphs share, with what they would hold if they did not. Empty where they hold nothing."""
    memory = region.graph_memory
    if memory is None:
        return size_text(graph_bytes) if graph_bytes else ""
    alone = f"about {size_text(memory.per_graph_bytes)}, an estimate, if they shared workspace only"
    pool = f", {size_text(memory.pool_bytes)} of it in the pool of all graphs," if memory.pool_bytes else ""
    return (
        f"{size_text(memory.device_bytes)} on the device{pool} and {size_text(memory.host_bytes)} on the host ({alone})"
    )


def held_evidence(region: RegionEvidence) -> tuple[tuple[str, object], ...]:
    """The account of the region's graphs, where there is one."""
    return (("graph_memory", region.graph_memory.to_dict()),) if region.graph_memory is not None else ()
