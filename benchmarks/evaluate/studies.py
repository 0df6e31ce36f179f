"""What each technique gives, how costs grow, and what more ranks would take."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from .columns import ABLATIONS, COLUMNS
from .figures import Found, ratio, spread, whole_ratio
from .tables import APART, NOTHING, agreed, by_row, markdown, outcome, prose, times

__all__ = ["ablations", "growth_lines", "growth_table", "ranks"]

TECHNIQUES = {
    "no_alias": ("alias prediction", "regions"),
    "no_compression": ("sharing of executables", "regions"),
    "predication": ("predication", "regions"),
    "regions": ("streams", "grape"),
    "streams": ("regions", "grape"),
}
"""Column to the technique that is the difference between it and another column."""


def ablations(found: Sequence[Found]) -> str:
    rows = by_row(found, APART)
    table = [
        ("technique", "row", "with it", "without it", "replays with it", "without it", "memory with it", "without it")
    ]
    for name in ABLATIONS:
        technique, other = TECHNIQUES[name]
        for row, columns in rows.items():
            sides = [columns.get(other), columns.get(name)]
            if name == "predication":
                sides.reverse()
            if any(side is not None for side in sides) and name in columns:
                held = [(side or {}).get("memory", {}).get("held_bytes") for side in sides]
                memory = ["-" if nbytes is None else f"{nbytes / 1e6:,.0f} MB" for nbytes in held]
                table.append((technique, row, *map(outcome, sides), *map(replayed, sides), *memory))
    if len(table) == 1:
        return NOTHING
    said = []
    for name in ("regions", "streams"):
        both = [
            mine / theirs
            for columns in rows.values()
            if (mine := ratio(columns.get("grape"))) and (theirs := ratio(columns.get(name)))
        ]
        if both:
            said.append(
                f"as shipped over {COLUMNS[name].what.removeprefix('Grape, ')}: {spread(both)}, {len(both)} rows"
            )
    whole = f"\n\nBoth engines, a step: {'; '.join(said)}." if said else ""
    loaded = any(one["column"] in ABLATIONS and one.get("loaded") for one in found)
    beside = " Those of the techniques were measured beside other work on the machine." if loaded else ""
    legend = (
        "\n\nRatios are over eager, a step; replays are those of the last run's report, of calls that it looked at."
    )
    return markdown(table) + legend + beside + whole


def replayed(one: Found | None) -> str:
    """Of the calls of regions in the run that the last report is of, how many were replays."""
    regions = ((one or {}).get("more") or {}).get("regions") or []
    calls, replays = (sum(region[name] for region in regions) for name in ("calls", "replays"))
    return f"{replays:,} of {calls:,}" if calls else "-"


def growth(found: Sequence[Found]) -> dict[str, dict[int, Found]]:
    kinds: dict[str, dict[int, Found]] = {}
    for one in found:
        if one["group"] == "growth" and one["column"] == "grape":
            kind, _, count = one["row"].rpartition("_")
            kinds.setdefault(kind, {})[int(count)] = one
    return {kind: dict(sorted(points.items())) for kind, points in kinds.items()}


def growth_lines(found: Sequence[Found]) -> dict[str, tuple[str, dict[str, list[tuple[float, float]]]]]:
    """By kind: the axis, and milliseconds of a step by count; of cells, seconds of a whole run."""
    lines = {}
    for kind, points in growth(found).items():
        known = {count: one for count, one in points.items() if one["outcome"] == "measured"}
        key, up = ("median_run_s", "seconds a run") if kind == "cells" else ("median_step_ms", "ms a step")
        sides = {"eager": "beside", "Grape": "timed"}
        drawn = {name: [(float(count), one[side][key]) for count, one in known.items()] for name, side in sides.items()}
        if kind != "cells":
            drawn["Grape, first run"] = [(float(count), one["warm"]["step_ms"][0]) for count, one in known.items()]
        else:
            drawn["Grape, first run"] = [(float(count), one["warm"]["run_s"][0]) for count, one in known.items()]
        if len(known) > 1:
            lines[kind] = (up, drawn)
    return lines


def growth_table(found: Sequence[Found]) -> str:
    table = [("", "eager, a step", "Grape, a step", "first run, a step", "settled run", "memory held", "outcome")]
    for kind, points in growth(found).items():
        for count, one in points.items():
            if one["outcome"] != "measured":
                table.append((f"{count:,} {kind}", *["-"] * 5, f"{one['outcome']}: {one.get('why', '')[:80]}"))
                continue
            held = one.get("memory", {}).get("held_bytes")
            table.append(
                (
                    f"{count:,} {kind}",
                    f"{one['beside']['median_step_ms']:.3f} ms",
                    f"{one['timed']['median_step_ms']:.3f} ms",
                    f"{one['warm']['step_ms'][0]:.3f} ms",
                    times(whole_ratio(one)),
                    "-" if held is None else f"{held / 1e6:,.0f} MB",
                    agreed(one),
                )
            )
    return markdown(table) if len(table) > 1 else NOTHING


def _of(measured: Mapping[str, Any]) -> str:
    gpu = measured.get("machine", {}).get("gpu")
    return f", from data of {measured['ranks']} x {gpu} and not of the GPU of the rows above" if gpu else ""


BYTES_PER_S, HOP_S = 2.0e11, 5e-6


def ranks(measured: Mapping[str, Any]) -> str:
    """Two ranks were measured elsewhere; beyond is a model."""
    said = prose(
        "Two ranks were measured by `benchmarks/several_gpus.py` ([more than one GPU](several-gpus.md#measured)).",
        f"Up to 8, of one machine, is a model on paper{_of(measured)}. It assumes: each rank does the work",
        "of one of the two, Grape shortens what is",
        "between collectives as it does on two ranks and leaves collectives as they are; a ring all-reduce of B bytes",
        f"over n ranks takes 2 (n - 1) / n B / {BYTES_PER_S / 1e9:.0f} GB/s + 2 (n - 1) {HOP_S * 1e6:.0f} us; nothing",
        "overlaps, and nobody straggles.",
    )
    model = measured.get("programs", {}).get("ddp_gpt2")
    if model is None:
        return said
    nbytes, count = 124e6 * 4, measured["steps"]
    plain, grape = (statistics.median(runs) / count for runs in (model["plain_s"], model["grape_s"][1:]))
    gone = exchange(nbytes, measured["ranks"])
    table = [("ranks", "exchange", "eager, a step", "Grape, a step", "ratio")]
    for n in (2, 4, 8):
        each = exchange(nbytes, n)
        sides = [max(side - gone, 0.0) + each for side in (plain, grape)]
        table.append((str(n), *(f"{one * 1e3:.1f} ms" for one in (each, *sides)), times(sides[0] / sides[1])))
    return f"{said}\n\nDDP, GPT-2 124M in fp32, from its times on {measured['ranks']} ranks:\n\n{markdown(table)}"


def exchange(nbytes: float, n: int) -> float:
    return 2 * (n - 1) / n * nbytes / BYTES_PER_S + 2 * (n - 1) * HOP_S
