"""GR502 serial-branches: operators that need nothing of each other wait for each other.

Sees: which operators of a replayed region need which, by the memory that they read and write; where its graph has
branches, what a launch takes with them and as one chain. Costs: the device is not filled by small kernels that come one
behind the other. Fix: a graph with branches, which Grape makes of calls that record no gradients, write nothing from
outside and draw no random numbers. Wrong when: the kernels fill the device each by itself; where there are no branches
yet nothing was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ....model import CellEvidence, Finding, RegionEvidence, Trace
from ....model.overlap import expected_gain, longest_chain
from ....model.times.machine import H200, MachineCosts
from ...words import milliseconds

CODE = "GR502"

LEAST = 1.3
"""Expected; below that nothing is said of graphs without branches."""


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    if not evidence.cuda:
        return
    for region in evidence.regions:
        if region.outcome == "replayed":
            yield from _applied(region) if region.overlapped is not None else _left(region)


def _applied(region: RegionEvidence) -> Iterator[Finding]:
    found = region.overlapped
    if found is None or not found.applied:  # measured: there is nothing to gain
        return
    gain = found.chained_ms / found.branched_ms
    yield Finding(
        code=CODE,
        severity="hint",
        message=f"operators of `{region.name}` run beside each other in its graph: {found.operators} in {found.lanes} "
        f"lanes, {gain:.2f}x faster on the device ({milliseconds(found.chained_ms)} -> "
        f"{milliseconds(found.branched_ms)})",
        at=region.at,
        end_line=region.end_line,
        region=region.name,
        evidence=(
            ("operators", found.operators),
            ("longest_chain", found.chain),
            ("lanes", found.lanes),
            ("chained_ms", found.chained_ms),
            ("branched_ms", found.branched_ms),
        ),
    )


def _left(region: RegionEvidence) -> Iterator[Finding]:
    trace = region.traces[-1] if region.traces else None
    why = _in_the_way(trace) if trace is not None else None
    if trace is None or why is None:
        return
    gain = expected_gain(trace)
    if gain < LEAST:
        return
    reason, advice = why
    operators = sum(op.kind in ("compute", "random") for op in trace.ops)
    yield Finding(
        code=CODE,
        severity="hint",
        message=f"operators of `{region.name}` that need nothing of each other wait for each other: of {operators} the "
        f"longest chain has {longest_chain(trace)}, and its graph has no branches, because the call {reason}",
        at=region.at,
        end_line=region.end_line,
        region=region.name,
        evidence=(("operators", operators), ("longest_chain", longest_chain(trace)), ("expected_at_most", gain)),
        advice=advice,
    )


def _in_the_way(trace: Trace) -> tuple[str, str | None] | None:
    """What the call does that a graph with branches cannot have, and what to do about it."""
    if trace.needs_grad:
        return "records gradients", "where nobody asks for them, call it under `torch.no_grad()`"
    if any(op.draws for op in trace.ops):
        return "draws random numbers", "call `.eval()` on the module, where its dropout is not wanted"
    born: set[int] = set()
    for op in trace.ops:
        if not born.issuperset(op.written):
            return "writes a tensor from outside", None
        born.update(op.born)
    return None
