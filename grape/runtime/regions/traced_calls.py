"""Which traced calls tell of the cell that runs, and in which of its lines.

A region lives longer than a cell. What was seen in an earlier one is told of this one only where it holds here as well:
the cell is the same again, or it calls the region with the same guard key, under which equal operators run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...model import Position, Trace
from .context import CellName
from .region_state import RegionState
from .specialization import Specialization


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall:
    """A call of `shape`, traced in `cell`."""

    trace: Trace
    shape: Specialization
    cell: CellName

    def holds_in(self, cell: CellName, run: int) -> bool:
        return self.cell.source == cell.source or self.shape.run == run


def traces_of_cell(region: RegionState, traced: Iterable[TracedCall]) -> tuple[Trace, ...]:
    """The traces that tell of the cell that runs, with the lines of this cell."""
    context = region.context
    cell, run = context.cell, context.run
    return tuple(_placed(one, region, cell) for one in traced if one.holds_in(cell, run))


def _placed(call: TracedCall, region: RegionState, cell: CellName) -> Trace:
    """Lines of another cell that called the region become the line of this one that does."""
    then = call.cell.shown
    if call.cell == cell:
        return call.trace
    same = call.cell.source == cell.source
    own = range(0) if region.root_is_module else range(region.at.line, (region.end_line or region.at.line) + 1)

    def here(at: Position | None) -> Position | None:
        if at is None or at.file != then:
            return at
        if same:
            return replace(at, file=cell.shown)
        return at if at.file == region.at.file and at.line in own else region.at

    ops = tuple([replace(op, user=here(op.user), inner=here(op.inner)) for op in call.trace.ops])
    reads = tuple([replace(read, position=here(read.position)) for read in call.trace.host_reads])
    return replace(call.trace, ops=ops, host_reads=reads)
