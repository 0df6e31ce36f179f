"""What a loop waited for its `DataLoader`."""

from __future__ import annotations

from dataclasses import dataclass

from ..location import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderWait:
    """The batches that one line took from loaders that are set up alike.

    `host_ms` is what the CPU was in the loader for all of them; `wait_ms` the part of it in which the device had
    nothing to do. On the CPU, where nothing runs meanwhile, they are equal.
    """

    at: Position | None
    inner: Position | None
    batches: int
    host_ms: float
    wait_ms: float
    workers: int
    pinned: bool
    collates: bool
    """The loader has a collate function of its own."""
    tensors: bool
    """The dataset is a `TensorDataset`, collated as torch does, in the order of its items or shuffled."""
    draws: bool | None
    """Making a batch moved a random generator of this process; None where nobody looked."""
    on_cpu: bool
    """All tensors of the first batch lay in CPU memory."""
    cpus: int
    """Cores that the process may use."""
    forks: bool
    """Worker processes are forked: they need not be sent the dataset."""

    @property
    def ms_per_batch(self) -> float:
        return self.wait_ms / max(1, self.batches)
