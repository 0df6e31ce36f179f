"""TEST DATA. Evidence built by hand for the tests of the renderers; nothing here was measured by the code under test.

The figures imitate a GPT-2 124M decode step in fp16 on one large GPU: 269 kernels in 4.68 ms eagerly, 1.14 ms replayed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from grape.model import (
    CellEvidence,
    CellTime,
    CopyRecord,
    Decision,
    Event,
    Finding,
    Fix,
    LineTime,
    LineTimes,
    Measured,
    MemoryCurve,
    OpRecord,
    Outcome,
    OwnTime,
    Position,
    RegionEvidence,
    Served,
    ShapeCount,
    Timeline,
    Trace,
)
from grape.render import Report, build_report
from tests.unit.trace_builder import because

DEVICE = "NVIDIA H200"
CELL = "In[4]"
FORWARD = "GPT2LMHeadModel.forward"


def at(line: int, function: str = "<module>", file: str = CELL) -> Position:
    return Position(file=file, line=line, function=function)


def measured(median_ms: float, n: int = 40, spread: float = 0.01) -> Measured:
    """A median with quartiles `spread` (relative) to both sides."""
    return Measured(median_ms=median_ms, q1_ms=median_ms * (1 - spread), q3_ms=median_ms * (1 + spread), n=n)


def eager_timeline(calls: int = 3, kernels: int = 269, call_us: float = 4680, kernel_us: float = 2.7) -> Timeline:
    """Each kernel is launched by an operator of its own and leaves the GPU idle until the next launch."""
    events: list[Event] = []
    step = int(call_us * 1000 / kernels)
    for ordinal in range(calls * kernels):
        start, correlation = ordinal * step, ordinal + 1
        where = at(12, "decode")
        events += [
            Event(name="aten::mm", lane="host", category="operator", start_ns=start, end_ns=start + step - 500),
            Event(
                name="cudaLaunchKernel",
                lane="launch",
                category="runtime",
                start_ns=start + 2000,
                end_ns=start + 5000,
                correlation=correlation,
            ),
            Event(
                name="gemm_fp16",
                lane="device",
                category="kernel",
                start_ns=start + 6000,
                end_ns=start + 6000 + int(kernel_us * 1000),
                stream=7,
                correlation=correlation,
                position=where,
            ),
        ]
    return Timeline(events=tuple(events), wall_ns=calls * kernels * step, calls=calls)


def replay_timeline(calls: int = 3, nodes: int = 312, call_us: float = 1140, kernel_us: float = 2.9) -> Timeline:
    """One graph launch per call, its kernels back to back."""
    events: list[Event] = []
    for call in range(calls):
        start, correlation = int(call * call_us * 1000), 9000 + call
        events.append(
            Event(
                name="cudaGraphLaunch",
                lane="launch",
                category="graph",
                start_ns=start,
                end_ns=start + 20_000,
                correlation=correlation,
            )
        )
        first = start + 60_000
        for node in range(nodes):
            begin = first + int(node * kernel_us * 1000)
            events.append(
                Event(
                    name="gemm_fp16",
                    lane="device",
                    category="kernel",
                    start_ns=begin,
                    end_ns=begin + int(kernel_us * 1000),
                    stream=7,
                    correlation=correlation,
                )
            )
    return Timeline(events=tuple(events), wall_ns=int(calls * call_us * 1000), calls=calls)


def memory_curve() -> MemoryCurve:
    mb = 2**20
    return MemoryCurve(
        at_ns=(0, 100_000_000, 200_000_000),
        allocated_bytes=(250 * mb, 310 * mb, 300 * mb),
        reserved_bytes=(300 * mb, 400 * mb, 400 * mb),
        device_used_bytes=(900 * mb, 1000 * mb, 1000 * mb),
    )


def region(name: str = FORWARD, outcome: Outcome = "replayed", **changes: Any) -> RegionEvidence:
    """A region of the decode cell; replayed and verified unless told otherwise."""
    replayed = outcome == "replayed"
    values: dict[str, Any] = {
        "name": name,
        "at": at(7),
        "end_line": 9,
        "outcome": outcome,
        "refused": None,
        "calls": 64,
        "replays": 58 if replayed else 0,
        "verified": "identical" if replayed else None,
        "before": eager_timeline(),
        "after": replay_timeline() if replayed else None,
        "before_ms": measured(4.68, n=44),
        "after_ms": measured(1.14, n=40) if replayed else None,
        "shapes": (
            ShapeCount(
                shapes=(("input_ids", (5, 1)),),
                calls=64,
                order=0,
                captured=replayed,
                capture_ms=41.0 if replayed else 0.0,
                graph_bytes=2**20 if replayed else 0,
            ),
        ),
        "copies": (CopyRecord(argument="input_ids", bytes=40, calls=58),) if replayed else (),
        "decisions": (
            Decision(
                action="capture",
                shapes="input_ids (5, 1)",
                seen=4,
                expected_calls=60.0,
                saving_ms=3.54,
                capture_ms=41.0,
                why="60 expected calls save 212 ms; the capture costs 41 ms",
            ),
        )
        if replayed
        else (),
        "copied_bytes_per_call": 40 if replayed else 0,
        "graph_bytes": 1_216_348 if replayed else 0,
    }
    return RegionEvidence(**{**values, **changes})


def refused(code: str, why: str, line: int = 11, **changes: Any) -> RegionEvidence:
    return region(outcome="refused", refused=because(code, why, at(line)), **changes)


def took(plain_ms: float | None, wall_ms: float, **changes: Any) -> CellTime:
    """A cell's time, of which 20 ms were Grape's own."""
    values: dict[str, Any] = {
        "basis": "measured in run 2 of this cell",
        "own": OwnTime(observe_ms=8.0, report_ms=12.0),
        "served": Served(regions=0.75),
    }
    return CellTime(wall_ms=wall_ms, plain_ms=plain_ms, **{**values, **changes})


def cell(*regions: RegionEvidence, **changes: Any) -> CellEvidence:
    """A cell on the GPU with `regions`; 2.9x faster where one was replayed."""
    replayed = any(region.outcome == "replayed" for region in regions)
    values: dict[str, Any] = {
        "file": CELL,
        "source": "for _ in range(64):\n    out = model(ids)\n",
        "device": DEVICE,
        "backend": "cuda",
        "wall_ms": 310.0,
        "regions": regions,
        "memory": memory_curve(),
        "cuda": True,
        "time": took(860.0, 300.0) if replayed else took(858.0, 860.0, served=Served()),
        "torch_ran": bool(regions),
    }
    return CellEvidence(**{**values, **changes})


def tape_cell(*regions: RegionEvidence, **changes: Any) -> CellEvidence:
    """The same on a machine without a GPU."""
    replayed = any(region.outcome == "replayed" for region in regions)
    time = took(300.0, 420.0 if replayed else 301.0)
    values = {"device": "cpu", "backend": "tape", "cuda": False, "memory": MemoryCurve(), "time": time}
    return cell(*regions, **{**values, **changes})


def operators(number: int = 3) -> Trace:
    ops = tuple(
        OpRecord(
            ordinal=i,
            name="aten.add.Tensor",
            kind="compute",
            args=(),
            kwargs=(),
            outputs=(),
            written=(),
            born=(),
            user=at(1),
            inner=at(1),
        )
        for i in range(number)
    )
    return Trace(ops=ops)


def host_sync(line: int = 11, **changes: Any) -> Finding:
    """The blocker of the sample cell."""
    values: dict[str, Any] = {
        "code": "GR101",
        "severity": "blocker",
        "message": ".item() makes the CPU wait for the GPU in every step",
        "at": at(line, "decode"),
        "region": FORWARD,
        "evidence": (("reads_per_call", 1), ("wait_ms", 0.4213), ("constructs", ("if", "call"))),
        "predicted_ms_per_call": 0.42,
        "advice": "keep the value on the GPU and read it after the loop",
    }
    return Finding(**{**values, **changes})


def launch_bound() -> Finding:
    return Finding(
        code="GR501",
        severity="hint",
        message="the GPU waits for launches 84% of the time",
        at=at(7),
        region=FORWARD,
        evidence=(("kernels_per_call", 269.0),),
        predicted_ms_per_call=3.54,
    )


def fix() -> Fix:
    return Fix(
        id=2,
        diff="--- In[4]\n+++ In[4]\n@@ -11 +11 @@\n-    if done.item() < 1:\n+    with grape.Predicate(done < 1):\n",
        verified=True,
    )


def sample() -> tuple[CellEvidence, tuple[Finding, ...]]:
    """The decode cell: one region replayed 4.1x faster, one refused with a blocker."""
    sampler = refused("GR101", ".item() in the region", name="sample_token", before_ms=measured(0.31), at=at(3))
    return cell(region(), sampler), (host_sync(fix=fix()), launch_bound())


DECODE = """\
model.eval()
ids = prompt.clone()
cache = None
tokens = []
with torch.no_grad():
    for step in range(64):
        out = model(ids, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        logits = out.logits[:, -1]
        ids = logits.argmax(-1, keepdim=True)
        if ids.item() == eos_token_id:
            break
        tokens.append(ids)
text = tokenizer.decode(torch.cat(tokens, dim=1)[0])
"""


def decode_lines() -> LineTimes:
    """Of `DECODE`."""
    took = {9: 20.0, 10: 20.0, 11: 40.0, 14: 12.0}
    lines = (LineTime(line=7, ms=180.0, replayed_ms=100.0), *(LineTime(line=n, ms=ms) for n, ms in took.items()))
    return LineTimes(lines=lines, looks=400)


def one_finding(*, rewritten: bool) -> Report:
    """The decode cell with the times of its lines and one finding; with a rewrite for it where `rewritten`."""
    evidence, _ = sample()
    known = replace(evidence, source=DECODE, lines=decode_lines())
    return build_report(known, [host_sync(fix=fix() if rewritten else None)])
