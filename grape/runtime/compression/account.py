"""The memory that the graphs of many shapes cost, store by store."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StoreAccount", "StoreEstimate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreEstimate:
    """Bytes that were not measured: `nbytes` follows from the sizes of `measured` executables out of `of`."""

    nbytes: int
    measured: int
    of: int


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
    all_resident: StoreEstimate
    """The need of an executable for each shape on the device."""

    @property
    def host_bytes(self) -> int:
        return self.record_bytes + self.base_bytes + self.working_set_bytes

    @property
    def working_set_bytes(self) -> int:
        """Bytes that `graph_budget_bytes` bounds, and the graphs and base writes of the classes."""
        return self.graph_bytes + self.prepared_bytes + self.kept_bytes
