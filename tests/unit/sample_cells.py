"""TEST DATA. Reports of five kinds of cells, to look at and to check; nothing here was measured.

The evidence is built by hand, with figures like those of an NVIDIA H100; findings, verdict and pictures are made of it
by the code under test.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from grape.advisor import advise
from grape.model import (
    CellEvidence,
    CopyRecord,
    Event,
    LineTime,
    LineTimes,
    MemoryCurve,
    Position,
    RegionEvidence,
    Stop,
    Timeline,
)
from grape.model.stream import READ
from grape.render import Report, build_report
from tests.unit.sample_evidence import DECODE, cell, decode_lines, measured, region, tape_cell, took
from tests.unit.test_rules_gr303 import wait
from tests.unit.test_streams_evidence import STREAM

__all__ = ["CELLS"]

DEVICE = "NVIDIA H100 80GB HBM3"
FILE = "In[7]"


def at(line: int) -> Position:
    return Position(file=FILE, line=line, function="<module>")


def lines(*known: tuple[int, float] | tuple[int, float, int]) -> LineTimes:
    """(line, milliseconds, bytes that it lets memory grow by) each."""
    return LineTimes(
        lines=tuple(LineTime(line=one[0], ms=one[1], grown_bytes=int(one[2]) if len(one) > 2 else 0) for one in known),
        looks=4000,
    )


def calls(name: str, line: int, **changes: Any) -> RegionEvidence:
    return region(name, at=at(line), end_line=line, **changes)


def timeline(kernels: int, call_us: float, kernel_us: float, line: int, blocked_us: float = 0.0) -> Timeline:
    """One call of `kernels`, and at its end a wait of the host."""
    step = call_us / kernels
    events: list[Event] = []
    for number in range(kernels):
        start = round(number * step * 1e3)
        known = {"correlation": number + 1, "position": at(line)}
        events += [
            Event(
                name="aten::addmm", lane="host", category="operator", start_ns=start, end_ns=start + round(step * 900)
            ),
            Event(
                name="cudaLaunchKernel",
                lane="launch",
                category="runtime",
                start_ns=start + 100,
                end_ns=start + 2100,
                correlation=number + 1,
            ),
            Event(
                name="sm90_xmma_gemm",
                lane="device",
                category="kernel",
                start_ns=start + 2500,
                end_ns=start + 2500 + round(kernel_us * 1e3),
                stream=7,
                **known,
            ),
        ]
    end = round(call_us * 1e3)
    if blocked_us:
        name = "cudaStreamSynchronize"
        begin = end - round(blocked_us * 1e3)
        events.append(Event(name=name, lane="launch", category="runtime", start_ns=begin, end_ns=end))
    return Timeline(events=tuple(events), wall_ns=end, calls=1)


def gpu_cell(*regions: RegionEvidence, **changes: Any) -> CellEvidence:
    mb = 2**20
    memory = MemoryCurve(
        at_ns=(0, 100_000_000, 300_000_000),
        allocated_bytes=(400 * mb, 2100 * mb, 1900 * mb),
        reserved_bytes=(500 * mb, 2600 * mb, 2600 * mb),
        device_used_bytes=(3000 * mb, 5200 * mb, 5200 * mb),
    )
    wall_ms = changes["time"].wall_ms if "time" in changes else 300.0
    return cell(*regions, **{"file": FILE, "device": DEVICE, "memory": memory, "wall_ms": wall_ms, **changes})


def report_of(evidence: CellEvidence) -> Report:
    return build_report(evidence, advise(evidence))


def inference() -> Report:
    source = (
        "model.eval()\nscores = []\nwith torch.inference_mode():\n    for images in batches:\n"
        "        logits = model(images)\n        scores.append(logits.softmax(-1))\nscores = torch.cat(scores)\n"
    )
    forward = calls(
        "ResNet.forward",
        5,
        before=timeline(230, 4580, 3.0, 5),
        after=timeline(230, 1020, 3.0, 5),
        before_ms=measured(4.58, n=60),
        after_ms=measured(1.02, n=190),
        calls=200,
        replays=194,
        decisions=(),
        copies=(CopyRecord(argument="images", bytes=2**16, calls=194),),
    )
    times = lines((4, 4.0), (5, 215.0, 96 * 2**20), (6, 31.0, 2**18), (7, 2.0))
    return report_of(gpu_cell(forward, source=source, lines=times, time=took(942.0, 279.0)))


def training() -> Report:
    source = (
        "for epoch in range(3):\n    for x, y in loader:\n        optimizer.zero_grad()\n"
        "        loss = F.mse_loss(net(x), y)\n        loss.backward()\n        optimizer.step()\n"
        "        losses.append(loss.item())\n"
    )
    read = Stop(
        operator="aten::_local_scalar_dense",
        reason=READ,
        user=at(7),
        inner=at(7),
        times=300,
        total_ns=390_000_000,
        segments=300,
    )
    streams = (replace(STREAM, reads=(read,), own_ms=14.0),)
    mb = 2**20
    times = lines(
        *((2, 90.0), (3, 60.0), (4, 420.0, 620 * mb), (5, 510.0), (6, 330.0, 210 * mb), (7, 390.0)),
    )
    return report_of(
        gpu_cell(
            source=source, lines=times, streams=streams, engine="streams", time=took(1800.0, 1120.0), torch_ran=True
        )
    )


def decode() -> Report:
    step = region(
        "GPT2LMHeadModel.forward",
        at=at(7),
        end_line=7,
        before=timeline(269, 4680, 2.7, 7),
        after=timeline(269, 980, 2.7, 7, blocked_us=90),
    )
    refused = region("sample", outcome="observed", at=at(11), end_line=11, before_ms=measured(0.31), before=None)
    return report_of(gpu_cell(step, refused, source=DECODE, lines=decode_lines()))


def data_bound() -> Report:
    source = (
        "loader = DataLoader(images, batch_size=64, shuffle=True)\nfor x, y in loader:\n    x, y = x.cuda(), y.cuda()\n"
        "    loss = step(x, y)\n"
    )
    step = calls(
        "step",
        4,
        outcome="observed",
        before=timeline(180, 6000, 9.0, 4),
        before_ms=measured(6.0, n=80),
        calls=120,
        replays=0,
        decisions=(),
    )
    waits = wait(at=at(2), inner=at(2), batches=120, host_ms=4100.0, wait_ms=3900.0, tensors=False)
    times = lines((1, 1.0), (2, 4100.0), (3, 160.0, 38 * 2**20), (4, 720.0, 300 * 2**20))
    return report_of(gpu_cell(step, source=source, lines=times, loaders=(waits,), time=took(4990.0, 5010.0)))


def cpu() -> Report:
    source = "with torch.no_grad():\n    for x in xs:\n        y = net(x)\n        total += y.sum().item()\n"
    known = region(
        "net.forward", at=at(3), end_line=3, before=None, after=None, before_ms=measured(0.3), calls=60, copies=()
    )
    times = lines((2, 1.0), (3, 21.0), (4, 5.0))
    return report_of(tape_cell(known, file=FILE, source=source, lines=times))


CELLS = {"inference": inference, "training": training, "decode": decode, "data-bound": data_bound, "cpu": cpu}
"""The report of each kind of cell."""
