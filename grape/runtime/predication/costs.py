"""What control flow on the device costs, predicted: a conditional node skips work, a select does all of it.

Times are device time, measured where `NodeCosts` says. They decide between two right ways, never about results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["H200", "BodyWork", "Choice", "NodeCosts", "choose", "crossover", "node_ns", "select_ns"]

Choice = Literal["node", "select"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCosts:
    """Nanoseconds of one graph activity on one machine. `kernel_ns`: a kernel that does next to nothing.

    `bytes_per_ns`: how fast a kernel that only moves memory moves it. `launch_ns`: what the host spends on a launch of
    a graph; None where it was not measured. `source` says where the figures come from.
    """

    if_taken_ns: float
    if_skipped_ns: float
    kernel_ns: float
    bytes_per_ns: float
    launch_ns: float | None = None
    source: str = "H200, driver 580, torch 2.11.0+cu130"


H200 = NodeCosts(if_taken_ns=9_600, if_skipped_ns=5_200, kernel_ns=1_200, bytes_per_ns=4_000)
"""One H200, driver 580, CUDA 13: 32 and 128 IF nodes in a row, and plain nodes in a chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyWork:
    """What a body does: `kernels`, the `nbytes` that they read and write, and its writes to memory from before it.

    `selectable` is False for a body with an operator that must not run on values that do not occur.
    """

    kernels: int = 0
    nbytes: int = 0
    writes: int = 0
    written_nbytes: int = 0
    selectable: bool = True


def _work_ns(costs: NodeCosts, work: BodyWork) -> float:
    return max(work.kernels * costs.kernel_ns, work.nbytes / costs.bytes_per_ns)


def node_ns(costs: NodeCosts, bodies: tuple[BodyWork, ...]) -> float:
    """Bodies as IF nodes, of which one is taken: each is taken equally often."""
    taken = costs.if_taken_ns + (len(bodies) - 1) * costs.if_skipped_ns
    if len(bodies) == 1:
        return (costs.if_taken_ns + costs.if_skipped_ns + _work_ns(costs, bodies[0])) / 2
    return taken + sum(_work_ns(costs, body) for body in bodies) / len(bodies)


def select_ns(costs: NodeCosts, bodies: tuple[BodyWork, ...]) -> float:
    """All bodies run; each write to memory from before them is a copy of the old contents and a select more."""
    total = 0.0
    for body in bodies:
        # The copy reads and writes once, the select reads twice and writes once.
        total += _work_ns(costs, body)
        total += max(2 * body.writes * costs.kernel_ns, 5 * body.written_nbytes / costs.bytes_per_ns)
    return total


def choose(costs: NodeCosts, bodies: tuple[BodyWork, ...]) -> Choice:
    """The cheaper way to carry out `if` with these bodies: one (a predicated block), or two (both branches).

    The selects that merge the results are the same for both.
    """
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
