"""Traces, regions and cells by hand, as small as a test of a rule needs them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from grape.model import (
    CellEvidence,
    Event,
    HostRead,
    Measured,
    OpRecord,
    Position,
    Reason,
    Refused,
    RegionEvidence,
    ShapeCount,
    TensorView,
    Timeline,
    Trace,
)

CELL = "In[4]"
LIBRARY = "/usr/lib/python3.11/site-packages/somelib/masks.py"


def at(line: int, *, file: str = CELL, function: str = "<module>") -> Position:
    return Position(file=file, line=line, function=function)


def because(code: str, text: str, at: Position | None = None) -> Refused:
    """A refusal with a sentence of the test's own, for a code of which one reason is free to say anything."""
    free = {reason.code: reason for reason in Reason if reason.sentence == "{what}"}
    return Refused.because(free[code], at, what=text)


def view(storage: int, shape: Sequence[int] = (4,), *, device: str = "cuda:0", dtype: str = "float32") -> TensorView:
    """A contiguous tensor of four-byte elements."""
    stride = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    return TensorView(storage, 0, tuple(shape), tuple(stride), dtype, device, 4 * math.prod(shape))


def op(
    name: str,
    kind: str = "compute",
    *,
    args: Sequence[Any] = (),
    outputs: Sequence[TensorView] = (),
    born: Sequence[int] = (),
    line: int | None = 1,
    inner: Position | None = None,
    host_ns: int = 0,
) -> OpRecord:
    """An operator of the cell's line `line`; its ordinal is set by `trace`."""
    user = at(line) if line is not None else None
    return OpRecord(
        0, name, kind, tuple(args), (), tuple(outputs), (), tuple(born), user, inner or user, host_ns=host_ns
    )


def item(*, line: int = 1, inner: Position | None = None, host_ns: int = 0) -> OpRecord:
    return op(
        "aten._local_scalar_dense.default", "host-read", args=[view(0, ())], line=line, inner=inner, host_ns=host_ns
    )


def trace(
    *ops: OpRecord,
    reads: Sequence[tuple[int, str | None, Any, int]] = (),
    arguments: Sequence[int] = (),
    needs_grad: bool = False,
    wall_ns: int = 0,
) -> Trace:
    """`reads` are (index of the operator, construct, value, wait in ns)."""
    numbered = tuple(
        OpRecord(i, o.name, o.kind, o.args, o.kwargs, o.outputs, o.written, o.born, o.user, o.inner, host_ns=o.host_ns)
        for i, o in enumerate(ops)
    )
    return Trace(
        ops=numbered,
        host_reads=tuple(
            HostRead(ordinal=i, value=value, wait_ns=wait, construct=construct, position=numbered[i].user)
            for i, construct, value, wait in reads
        ),
        argument_storages=tuple(arguments),
        needs_grad=needs_grad,
        wall_ns=wall_ns,
    )


def region(name: str = "step", *, line: int = 1, calls: int = 10, **fields: Any) -> RegionEvidence:
    fields.setdefault("outcome", "observed")
    fields.setdefault("refused", None)
    fields.setdefault("replays", 0)
    fields.setdefault("at", at(line))
    fields.setdefault("end_line", None)
    return RegionEvidence(name=name, calls=calls, **fields)


def cell(
    *regions: RegionEvidence, source: str = "", trace: Trace | None = None, cuda: bool = True, **fields: Any
) -> CellEvidence:
    fields.setdefault("wall_ms", 1000.0)
    return CellEvidence(
        file=CELL,
        source=source,
        device="NVIDIA H200" if cuda else "cpu",
        backend="cuda" if cuda else "tape",
        regions=regions,
        trace=trace,
        cuda=cuda,
        **fields,
    )


def timeline(*spans: tuple[int, int] | tuple[int, int, str, int], wall_us: int, calls: int = 1) -> Timeline:
    """Device events from (start us, end us) for kernels, (start us, end us, name, bytes) for copies."""
    events = []
    for span in spans:
        copy = len(span) == 4
        events.append(
            Event(
                name=span[2] if len(span) == 4 else "kernel",
                lane="device",
                category="memcpy" if copy else "kernel",
                start_ns=span[0] * 1000,
                end_ns=span[1] * 1000,
                stream=7,
                bytes=span[3] if len(span) == 4 else 0,
            )
        )
    return Timeline(events=tuple(events), wall_ns=wall_us * 1000, calls=calls)


def ms(median: float, iqr: float = 0.0, n: int = 30) -> Measured:
    return Measured(median_ms=median, q1_ms=median - iqr / 2, q3_ms=median + iqr / 2, n=n)


def shapes(
    *calls: dict[str, tuple[int, ...]], counts: Sequence[int] | None = None, **fields: Any
) -> tuple[ShapeCount, ...]:
    """One `ShapeCount` per dict, in the order of the calls; `counts` says how often each came (once)."""
    return tuple(
        ShapeCount(shapes=tuple(shape.items()), calls=counts[order] if counts else 1, order=order, **fields)
        for order, shape in enumerate(calls)
    )
