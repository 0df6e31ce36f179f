"""GR303 starved-loop: a loop waits for its `DataLoader`.

Sees: the time that a line waits for batches while the device has nothing to do; how the loader is set up. Costs: that
time; work on the batches could fill it. Fix: take rows of a `TensorDataset` a batch at a time; else have worker
processes make the batches, in pinned memory. Wrong when: the machine has no core left for workers, or the dataset reads
from a disk that is as slow for several of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....model import CellEvidence, Finding, LoaderWait
from ....model.times.machine import H200, MachineCosts
from ...code.source import cell_source
from ...words import library, milliseconds, via

CODE = "GR303"

_SHARE = 0.1
"""Of the cell; a loop that waits less is busy."""
_LEAST_MS = 5.0
_BATCHES = 4
"""Of fewer batches nothing is said: the first ones are cold."""
_WORKERS = 4
_BARS = frozenset({"tqdm", "rich", "fastprogress", "alive_progress"})
"""Libraries through which a loop goes over a loader without being theirs."""


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    return [_finding(evidence, wait) for wait in evidence.loaders if _starves(evidence, wait)]


def _starves(evidence: CellEvidence, wait: LoaderWait) -> bool:
    if wait.batches < _BATCHES or wait.wait_ms < _LEAST_MS or _share(evidence, wait) < _SHARE:
        return False
    return wait.at is not None and (_home(wait) is not None or cell_source(evidence).takes_batches(wait.at))


def _share(evidence: CellEvidence, wait: LoaderWait) -> float:
    """Of the cell, without what looking on took of it."""
    return wait.wait_ms / max(wait.wait_ms, evidence.wall_ms - evidence.looked_ms)


def _home(wait: LoaderWait) -> str | None:
    """The library whose loop it is; None for the person's own."""
    home = library(wait.at, wait.inner)
    return None if home in _BARS else home


def _finding(evidence: CellEvidence, wait: LoaderWait) -> Finding:
    share = _share(evidence, wait)
    whose = via(wait.at, wait.inner) if _home(wait) else ""
    return Finding(
        code=CODE,
        severity="costly",
        message=f"the loop waits {milliseconds(wait.ms_per_batch)} for each of {wait.batches} batches, "
        f"{share:.0%} of the cell: {_why(evidence, wait)}{whose}",
        at=wait.at,
        evidence=(
            ("executions", wait.batches),
            ("wait_ms", wait.wait_ms),
            ("share", share),
            ("loader_ms", wait.host_ms),
            ("num_workers", wait.workers),
            ("pin_memory", wait.pinned),
            ("collates", wait.collates),
            ("tensor_dataset", wait.tensors),
            ("draws", wait.draws),
            ("on_cpu", wait.on_cpu),
            ("workers_here", _workers_here(wait)),
            *((("in_library", str(wait.inner)),) if _home(wait) else ()),
        ),
        predicted_ms_per_call=wait.ms_per_batch,
        advice=_advice(evidence, wait),
    )


def _why(evidence: CellEvidence, wait: LoaderWait) -> str:
    if wait.workers:
        count = f"{wait.workers} worker process{'es' if wait.workers > 1 else ''}"
        return f"{count} cannot make them fast enough"
    made = "collated by a function of yours" if wait.collates else "made"
    items = "item by item" if not wait.collates else "in Python"
    return f"they are {made} {items} in this process (`num_workers=0`), while {_idle(evidence)}"


def _idle(evidence: CellEvidence) -> str:
    return "the GPU has nothing to do" if evidence.cuda else "nothing else is computed"


def _workers_here(wait: LoaderWait) -> int:
    """So many worker processes would find a core beside this one; 0 where they could not have the dataset."""
    return min(_WORKERS, wait.cpus - 1) if wait.forks else 0


def _advice(evidence: CellEvidence, wait: LoaderWait) -> str:
    pinned = " and `pin_memory=True`" if evidence.cuda and wait.on_cpu and not wait.pinned else ""
    if _home(wait):
        return f"look for the library's option that sets `num_workers`{pinned.replace(' and', ', and')}"
    if wait.tensors:
        return "take a batch of rows at once: `sampler=BatchSampler(RandomSampler(data), ...)`, `batch_size=None`"
    if wait.workers:
        more = f"`num_workers={2 * wait.workers}`" if wait.cpus > wait.workers else "cheaper items"
        return f"{more}{pinned}; or do the work on a batch at once on the device"
    if not wait.on_cpu:
        return "keep the items in one tensor on the device and index it a batch at a time"
    draws = "; random numbers of the items will be others" if wait.draws else ""
    return f"let worker processes make them: `num_workers={max(2, _workers_here(wait))}`{pinned}{draws}"
