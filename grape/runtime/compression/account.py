"""The memory that the graphs of many shapes cost, store by store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAccount:
    """Bytes by store. `executable_bytes` are on the device; `record_bytes`, `base_bytes`, `graph_bytes` (whole graphs),
    `prepared_bytes` (writes that are laid out for the device) and `kept_bytes` (what users keep for launches, an
    estimate) on the host.

    `alone` counts the shapes that share no executable. `refused` counts shapes that a device stopped accepting.
    """

    shapes: int
    classes: int
    alone: int
    executables: int
    executable_bytes: int
    record_bytes: int
    base_bytes: int
    graphs: int
    graph_bytes: int
    prepared_bytes: int
    kept_bytes: int
    launches: int
    switches: int
    instantiations: int
    evictions: int
    refused: int
    all_resident_bytes: int
    """The need of an executable for each shape on the device: an estimate."""

    @property
    def working_set_bytes(self) -> int:
        """Bytes that `graph_budget_bytes` bounds, and the graphs and base writes of the classes."""
        return self.graph_bytes + self.prepared_bytes + self.kept_bytes
