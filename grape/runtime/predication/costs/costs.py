"""Predicts the cost of control flow on the device: a conditional node skips work, a select does all of it.

In a graph whose kernels need one another a kernel costs a constant and, on top of it, the time of its bytes: the first
is latency that nothing overlaps. Times are device time, measured where `NodeCosts` says. They decide between two right
ways, never about results; what both ways do alike (the opposite of the condition, the merge of results) is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Choice = Literal["node", "select"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCosts:
    """Nanoseconds of one graph activity on one machine, and bytes per nanosecond.

    `if_taken_ns`, `if_skipped_ns`: an IF node with the kernel that sets its condition, without what its body does.
    `kernel_ns`: an elementwise kernel over a few KB. `bytes_per_ns`: what such a kernel reads and writes beyond that,
    where it fits in a cache of `cache_nbytes`; `memory_bytes_per_ns` where it does not. `keep_ns`: a copy of a few KB
    and the select that gives them back; `kept_bytes_per_ns`: written bytes that are kept so. This select is another
    kernel than the others, because its predicate has one element. `source` says where the figures come from.
    """

    if_taken_ns: float
    if_skipped_ns: float
    kernel_ns: float
    bytes_per_ns: float
    memory_bytes_per_ns: float
    cache_nbytes: int
    keep_ns: float
    kept_bytes_per_ns: float
    source: str = "H200, driver 580, torch 2.11.0+cu130"


H200 = NodeCosts(
    if_taken_ns=8_330,
    if_skipped_ns=5_610,
    kernel_ns=1_320,
    bytes_per_ns=9_600,
    memory_bytes_per_ns=4_180,
    cache_nbytes=60 << 20,
    keep_ns=2_940,
    kept_bytes_per_ns=843,
)
"""One H200, driver 580, CUDA 13: fitted to the rows of up to 12 kernels in `benchmarks/results/predication_costs.json`,
from what was calibrated there."""

_KEPT_TRAFFIC = 5
"""Bytes that keeping one byte moves: the copy reads and writes it, the select reads two and writes one."""


@dataclass(slots=True, kw_only=True)
class BodyWork:
    """The work of a body: `kernels`, the `nbytes` that they read and write, and its writes to memory from before it.

    `writes` counts pieces of memory, each once, and `written_nbytes` their bytes. `selectable` is False for a body with
    an operator that must not run on values that do not occur, `marked` for one that leaves no mark (`arms.py`).
    """

    kernels: int = 0
    nbytes: int = 0
    writes: int = 0
    written_nbytes: int = 0
    selectable: bool = True
    marked: bool = True


def _work_ns(costs: NodeCosts, work: BodyWork) -> float:
    """The body's kernels, and the one that leaves its mark."""
    cached = work.nbytes <= costs.cache_nbytes * max(work.kernels, 1)
    moved = work.nbytes / (costs.bytes_per_ns if cached else costs.memory_bytes_per_ns)
    return (work.kernels + work.marked) * costs.kernel_ns + moved


def _keep_ns(costs: NodeCosts, work: BodyWork) -> float:
    """Of copies of the old contents, and of the selects that give them back."""
    rate = costs.kept_bytes_per_ns
    if _KEPT_TRAFFIC * work.written_nbytes > costs.cache_nbytes * max(work.writes, 1):
        rate = min(rate, costs.memory_bytes_per_ns / _KEPT_TRAFFIC)
    return work.writes * costs.keep_ns + work.written_nbytes / rate


def node_ns(costs: NodeCosts, bodies: Sequence[BodyWork]) -> float:
    """Bodies as IF nodes, of which one is taken: each is taken equally often, and one body alone half of the time."""
    taken = costs.if_taken_ns + (len(bodies) - 1) * costs.if_skipped_ns
    if len(bodies) == 1:
        return (costs.if_taken_ns + costs.if_skipped_ns + _work_ns(costs, bodies[0])) / 2
    return taken + sum(_work_ns(costs, body) for body in bodies) / len(bodies)


def select_ns(costs: NodeCosts, bodies: Sequence[BodyWork]) -> float:
    """All bodies run, and the memory from before them that they write is kept and given back."""
    return sum(_work_ns(costs, body) + _keep_ns(costs, body) for body in bodies)


def choose(costs: NodeCosts, bodies: Sequence[BodyWork]) -> Choice:
    """The cheaper way to carry out `if` with these bodies: one (a predicated block), or two (both branches)."""
    if not all(body.selectable for body in bodies):
        return "node"
    return "select" if select_ns(costs, bodies) <= node_ns(costs, bodies) else "node"


def crossover(costs: NodeCosts, *, branches: int = 1, most: int = 1024) -> int | None:
    """From how many small kernels per body on a conditional node is the cheaper way; None where up to `most` it is not.

    One branch is an `if` without `else` that writes one small tensor from before it; with two, results are merged.
    """
    for kernels in range(1, most + 1):
        body = BodyWork(kernels=kernels, writes=1 if branches == 1 else 0)
        if choose(costs, (body,) * branches) == "node":
            return kernels
    return None
