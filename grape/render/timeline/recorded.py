"""A report from its `to_dict()`, as ``--json`` wrote it: all that stands there, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...model import (
    CellEvidence,
    CellTime,
    Decision,
    Finding,
    Fix,
    GraphMemory,
    Late,
    LineTime,
    LineTimes,
    Measured,
    MemoryCurve,
    OwnTime,
    Part,
    Position,
    RanksEvidence,
    RankTimes,
    RegionEvidence,
    RegionReport,
    Served,
    Spent,
    Stop,
    StreamEvidence,
)
from ..report import Report
from ..spent import KINDS

Json = Mapping[str, Any]


def recorded_report(content: Json) -> Report:
    """The report without what its JSON does not hold: timelines, curves, sources, advice.

    Raises what a damaged one leads to: `AttributeError`, `KeyError`, `TypeError` or `ValueError`.
    """
    cell = content["cell"]
    return Report(
        verdict=content["verdict"],
        evidence=CellEvidence(
            file=cell["file"],
            source="",
            device=content["device"],
            backend=cell["backend"],
            engine=cell["engine"],
            wall_ms=cell["wall_ms"],
            regions=tuple(_evidence(region, cell["decisions"]) for region in content["regions"]),
            streams=tuple(_stream(stream) for stream in content["streams"]),
            memory=_peaks(cell),
            error=cell["error"],
            cuda=cell["backend"] == "cuda",
            notes=tuple(cell["notes"]),
            graph_memory=_graph_memory(cell["graph_memory"]),
            time=_time(cell),
            ranks=_ranks(cell.get("ranks")),
            lines=_lines(cell.get("lines")),
            spent=tuple(map(_spent, cell.get("spent") or ())),
        ),
        regions=tuple(_region(region) for region in content["regions"]),
        findings=tuple(_finding(finding) for finding in content["findings"]),
    )


def _evidence(region: Json, decisions: list[Json]) -> RegionEvidence:
    made = [Decision(**{key: value for key, value in one.items() if key != "region"}) for one in decisions]
    mine = [one for one, raw in zip(made, decisions, strict=True) if raw["region"] == region["name"]]
    return RegionEvidence(
        name=region["name"],
        at=Position(file=region["file"], line=region["line"], function=region["name"]),
        end_line=None,
        outcome=region["outcome"],
        refused=None,
        calls=region["calls"],
        replays=region["replays"],
        decisions=tuple(mine),
    )


def _region(region: Json) -> RegionReport:
    read = {"before_ms": _measured, "after_ms": _measured, "graph_memory": _graph_memory}
    return RegionReport(**{key: read[key](value) if key in read else value for key, value in region.items()})


def _measured(value: Json | None) -> object:
    """The quartiles, of which only the range is known, are taken to lie around the median."""
    if value is None:
        return None
    half = value["iqr"] / 2
    return Measured(median_ms=value["median"], q1_ms=value["median"] - half, q3_ms=value["median"] + half, n=value["n"])


def _graph_memory(value: Json | None) -> Any:
    if value is None:
        return None
    return GraphMemory(**{key.removeprefix("estimated_"): held for key, held in value.items()})


def _time(cell: Json) -> CellTime:
    served = cell["served"]
    return CellTime(
        wall_ms=cell["wall_ms"],
        plain_ms=cell["plain_ms"],
        basis=cell["plain_basis"] or "",
        own=OwnTime(**{f"{purpose}_ms": ms for purpose, ms in cell["own_ms"].items()}),
        served=Served(streams=served["streams"], regions=served["regions"]),
    )


def _lines(value: Json | None) -> LineTimes | None:
    if value is None:
        return None
    return LineTimes(lines=tuple(map(_line, value["lines"])), looks=value["looks"], run=value["run"])


def _line(value: Json) -> LineTime:
    grown = value.get("grown_bytes")  # what older versions wrote has none
    return LineTime(line=value["line"], ms=value["ms"], replayed_ms=value["replayed_ms"], grown_bytes=grown)


def _ranks(value: Json | None) -> RanksEvidence | None:
    if value is None:
        return None
    known = {name: value[name] for name in ("rank", "size", "window_ms", "apart")}
    shown = tuple(RankTimes(**one) for one in value["shown"])
    return RanksEvidence(**known, shown=shown, late=tuple(map(_late, value["late"])))


def _late(value: Json) -> Late:
    counted = {name: value[name] for name in ("rank", "operator", "times", "ms")}
    return Late(**counted, user=_place(value), inner=None)


def _place(value: Json) -> Position | None:
    file = value["file"]
    return Position(file=file, line=value["line"], function=value["function"]) if file is not None else None


def _spent(value: Json) -> Spent:
    parts = [Part(kind=kind, ms=value[f"{kind}_ms"]) for kind in KINDS]
    return Spent(when=value["when"], total_ms=value["total_ms"], parts=tuple(part for part in parts if part.ms > 0))


def _peaks(cell: Json) -> MemoryCurve:
    peaks = cell["peak_allocated_bytes"], cell["peak_reserved_bytes"]
    return MemoryCurve(at_ns=(0,), allocated_bytes=(peaks[0],), reserved_bytes=(peaks[1],))


def _stream(stream: Json) -> StreamEvidence:
    stops = {kind: tuple(map(_stop, stream[kind])) for kind in ("reads", "stops", "cold") if kind in stream}
    return StreamEvidence(**{**stream, "as_written": tuple(stream["as_written"].items()), **stops})


def _stop(stop: Json) -> Stop:
    return Stop(
        operator=stop["operator"],
        reason=stop["reason"],
        user=_place(stop),
        inner=None,
        times=stop["times"],
        total_ns=round(stop["total_ms"] * 1e6),
        segments=stop["segments"],
    )


def _finding(finding: Json) -> Finding:
    at = finding["file"]
    fix = finding["fix"]
    return Finding(
        code=finding["code"],
        severity=finding["severity"],
        message=finding["message"],
        at=Position(file=at, line=finding["line"], function="<module>") if at is not None else None,
        end_line=finding["end_line"],
        region=finding["evidence"].get("region"),
        evidence=tuple(finding["evidence"].items()),
        predicted_ms_per_call=finding["predicted_ms_per_call"],
        fix=Fix(id=fix["id"], diff=fix["diff"], verified=fix["verified"]) if fix is not None else None,
    )
