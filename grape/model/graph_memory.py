"""Memory of graphs, store by store, and the memory that they would hold if each shape had everything to itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphMemory:
    """Bytes and counts of graphs: of one region, or of all.

    On the device: `pool_bytes` (workspace and results of all regions' graphs, which share one pool),
    `placeholder_bytes` (arguments, and results handed out in place) and `executable_bytes`. On the host:
    `record_bytes` (a compressed record for each graph, and what those differ from) and `host_graph_bytes` (the working
    set: whole graphs, prepared writes, tensors over results in slots). `graphs` share `executables` within `classes`;
    `alone` cannot share.
    """

    pool_bytes: int
    placeholder_bytes: int
    executable_bytes: int
    record_bytes: int
    host_graph_bytes: int
    graphs: int
    classes: int
    alone: int
    executables: int
    switches: int
    evictions: int
    refused_updates: int
    per_graph_bytes: int
    """An estimate: what the graphs would hold on the device with placeholders, results and an executable for each.

    Workspace is taken to be shared as it is, and an executable to be as large as the one of its class that was made.
    """

    @property
    def device_bytes(self) -> int:
        return self.pool_bytes + self.placeholder_bytes + self.executable_bytes

    @property
    def host_bytes(self) -> int:
        return self.record_bytes + self.host_graph_bytes

    def to_dict(self) -> dict[str, int]:
        counts = asdict(self)
        counts["estimated_per_graph_bytes"] = counts.pop("per_graph_bytes")
        return counts
