"""The tables of measurements in the README and in docs/measurements.md, made from `benchmarks/results`.

python benchmarks/table.py            prints them
python benchmarks/table.py --write    puts them into docs/measurements.md, in the place of those that stand there
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def load(part: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"main_job_{part}.json").read_text())
    return found


def table() -> str:
    """Markdown: the machine, then one row for each measurement."""
    machine = load("fixed")["machine"]
    fixed, generate, bound = (load(part)[part] for part in ("fixed", "generate", "bound"))
    eager, later = generate["eager_median_s"], generate["later_median_s"]
    rows = [
        ("cell", "plain", "under Grape", "ratio"),
        ("---", "---", "---", "---"),
        (
            f"{fixed['what']}, calls issued back to back",
            f"{fixed['eager_streamed_ms']:.2f} ms",
            f"{fixed['after_streamed_ms']:.2f} ms",
            f"{fixed['speedup_streamed']:.1f}x",
        ),
        (
            "the same, waiting for the GPU after every call",
            f"{fixed['eager_ms']:.2f} ms",
            f"{fixed['after_in_place_ms']:.2f} ms",
            f"{fixed['speedup_synchronized_each_call']:.1f}x",
        ),
        (
            f"{generate['what']}, by operator streams",
            f"{eager / 0.123:.2f} ms/token",
            f"{later / 0.123:.2f} ms/token",
            f"{eager / later:.1f}x",
        ),
        (
            "the same: first run, with its report",
            f"{eager:.2f} s",
            f"{generate['first_s'][0][1]:.2f} s",
            f"{1 / generate['first_run_over_eager']:.2f}x",
        ),
        (
            f"{bound['what']} (nothing to gain)",
            f"{sum(bound['eager_s']) / 2:.2f} s",
            f"{bound['grape_cell_s']:.2f} s",
            f"{bound['overhead']:+.1%}",
        ),
    ]
    about = (
        f"{machine['gpu']}, driver {machine['driver']}, torch {machine['torch']}, transformers "
        f"{machine['transformers']}, Python {machine['python']}; outputs of the GPT-2 rows identical."
    )
    return f"{markdown(rows)}\n\n{about}"


def models_table() -> str:
    """Markdown: kinds of models with random weights, one row each."""
    found = json.loads((RESULTS / "zoo.json").read_text())
    machine, models = found["machine"], found["models"]
    rows = [("model", "plain", "under Grape", "ratio", "outcome"), ("---",) * 5]
    for name, row in models.items():
        eager, after = row["eager_ms"]["median"], row["after_ms"]["median"]
        same = {True: "same bits", False: "other bits", None: "plain differs from itself"}[row["identical"]]
        outcome = f"{row['outcome']}, {same}" + (f" ({', '.join(row['codes'])})" if row["codes"] else "")
        rows.append(
            (
                f"{name}: {row['what']}, {row['dtype']}",
                f"{eager:.2f} ms",
                f"{after:.2f} ms",
                f"{eager / after:.1f}x",
                outcome,
            )
        )
    return f"{markdown(rows)}\n\n{where(machine)}; per call, whole loops."


def host_table() -> str:
    """Markdown: what the host spends on one replayed call that starts on an idle device."""
    found = json.loads((RESULTS / "host_cost.json").read_text())
    rows = [("call", "before the launch", "launch", "until launched", "whole call"), ("---",) * 5]
    for case in found["cases"].values():
        parts = ("before_launch_us", "launch_us", "until_launched_us", "whole_call_us")
        rows.append((case["what"], *(f"{case[part]['median']:.0f} us" for part in parts)))
    return f"{markdown(rows)}\n\n{where(found['machine'])}."


def control_flow_table() -> str:
    """Markdown: cells whose control flow follows the data, one row each."""
    found = json.loads((RESULTS / "control_flow.json").read_text())
    rows = [
        ("cell", "plain", "graphs, source as it was", "rewritten", "ratio", "CPU waits a call", "outputs"),
        ("---",) * 7,
    ]
    for row in found["parts"].values():
        times = [row[key]["median"] for key in ("eager_ms", "unchanged_ms", "after_ms")]
        waits = row["syncs_per_call"]
        rows.append(
            (
                row["what"],
                *(f"{ms:.2f} ms" for ms in times),
                f"{times[0] / times[-1]:.1f}x",
                f"{waits['eager']:.0f} -> {waits['after']:.0f}",
                "identical" if row["identical"] else "differ",
            )
        )
    return f"{markdown(rows)}\n\n{where(found['machine'])}."


def training_table() -> str:
    """Markdown: training cells, plain, under Grape and compiled, one row each."""
    found = json.loads((RESULTS / "training.json").read_text())
    rows = [
        ("cell", "plain step", "under Grape", "whole run", "GPU busy", "first fast step", "torch.compile", "its first"),
        ("---",) * 8,
    ]
    for part in found["parts"].values():
        compiled = part.get("compile", {}).get("compiled")
        beside = ("-", "-")
        if compiled:
            first = compiled["first_accelerated"]
            beside = (f"{compiled['step_ms']['median']:.2f} ms", f"{first['seconds']:.1f} s" if first else "-")
        for variant in ("written", "fused"):
            row = part.get(variant)
            if row is None or "speedup" not in row:
                continue
            first = row["grape"]["first_accelerated"]
            rows.append(
                (
                    f"{row['name']}{', fused=True' if variant == 'fused' else ''}",
                    f"{row['plain']['step_ms']['median']:.2f} ms",
                    f"{row['grape']['step_ms']['median']:.2f} ms",
                    f"{row['speedup']:.1f}x, {'identical' if row['identical'] else 'other bits'}",
                    f"{row['busy']['before']:.0%} -> {row['busy']['after']:.0%}" if row.get("busy") else "-",
                    f"{first['seconds']:.1f} s" if first else "-",
                    *(beside if variant == "written" else ("", "")),
                )
            )
    return f"{markdown(rows)}\n\n{where(found['machine'])}; medians of steps, ratio of whole runs."


def decode_table() -> str:
    """Markdown: whole passes over growing caches and changing lengths, against graphs written by hand."""
    found = json.loads((RESULTS / "decode.json").read_text())
    variants = ("eager", "placeholders", "in_place", "grape")
    rows = [("pass", *variants, "over eager", "over placeholders", "over in place", "copied a call", "outputs")]
    rows.append(("---",) * len(rows[0]))
    for part in (part for part in found.values() if "variants" in part):
        taken, ratios = part["variants"], part["ratios"]
        rows.append(
            (
                part["what"],
                *(f"{taken[name]['pass_ms']['median']:.0f} ms" for name in variants),
                f"{ratios['eager / grape']:.2f}x",
                f"{ratios['placeholders / grape']:.2f}x",
                f"{ratios['in_place / grape']:.3f}x",
                f"{part.get('steady', part['region'])['copied_bytes_per_call']:,.0f} B",
                "identical"
                if part["identical"]
                else "differ"
                if taken["eager"]["identical"]
                else "plain differs from itself",
            )
        )
    return f"{markdown(rows)}\n\n{where(found['machine'])}; medians of whole passes in one process."


def graphs_table() -> str:
    """Markdown: what the graphs of these passes hold, in the report's own account."""
    found = json.loads((RESULTS / "decode.json").read_text())
    rows = [
        ("pass", "graphs", "classes", "executables", "on the device", "on the host", "one graph for each, estimated")
    ]
    rows.append(("---",) * len(rows[0]))
    for part in (part for part in found.values() if "variants" in part):
        held = part["region"]["graph_memory"]
        device = held["pool_bytes"] + held["placeholder_bytes"] + held["executable_bytes"]
        rows.append(
            (
                part["what"],
                *(f"{held[name]:,}" for name in ("graphs", "classes", "executables")),
                f"{device / 1e9:.2f} GB",
                f"{(held['record_bytes'] + held['host_graph_bytes']) / 1e6:.0f} MB",
                f"{held['estimated_per_graph_bytes'] / 1e9:.1f} GB",
            )
        )
    return markdown(rows)


def shapes_table() -> str:
    """Markdown: what many shapes cost."""
    found = json.loads((RESULTS / "shapes.json").read_text())
    rows = [
        (
            *("pass", "shapes", "classes", "executables", "grown", "own graphs", "the longest alone"),
            *("an executable for each", "step", "step, an executable for each", "record of a shape"),
            *("host, a shape", "working set"),
        )
    ]
    rows.append(("---",) * len(rows[0]))
    for part in (part for name, part in found.items() if name != "machine"):
        grape, held = part["grape"], part["grape"]["account"]
        steps = [grape["timed"][name]["pass_ms"]["median"] / grape["shapes"] for name in ("grape", "resident")]
        rows.append(
            (
                grape["what"],
                str(grape["shapes"]),
                str(held["classes"]),
                str(held["executables"]),
                f"{grape['grown_bytes'] / 1e9:.2f} GB",
                *(_gigabytes(part.get(*name)) for name in (("own", held), ("longest", {}), ("resident", {}))),
                *(f"{ms:.3f} ms" for ms in steps),
                f"{held['record_bytes'] / grape['shapes'] / 1e3:.1f} KB",
                *_on_host(part),
            )
        )
    return f"{markdown(rows)}\n\n{where(found['machine'])}."


def _on_host(part: dict[str, Any]) -> tuple[str, str]:
    """What a shape takes of the process beside the working set, and the working set."""
    whole, beside = (part["grape"].get(f"host_grown{name}_bytes") for name in ("", "_without_working_set"))
    each = part.get("ratios", {}).get("host bytes per shape, without the working set")
    if each is None or whole is None or beside is None:
        return "not measured", "not measured"
    return f"{each / 1e3:.1f} KB", f"{(whole - beside) / 1e6:.0f} MB"


def _gigabytes(row: dict[str, Any]) -> str:
    """What a variant took on the device, in whichever way it is known."""
    if "estimated_per_graph_bytes" in row:
        return f"{row['estimated_per_graph_bytes'] / 1e9:.1f} GB, estimated"
    nbytes = row.get("extrapolated_bytes") or row.get("grown_bytes")
    return f"{nbytes / 1e9:.2f} GB" if nbytes else "not measured"


def updates_table() -> str:
    """Markdown: what a launch takes after updates, by what the executable saw first."""
    found = json.loads((RESULTS / "updates.json").read_text())
    rows = [
        ("before the first update", "updates by", "a launch", "a fresh executable", "an update, host"),
        ("---", "---", "---", "---", "---"),
    ]
    for name, measured in sorted(found["ways"].items(), key=lambda pair: pair[0].rpartition(", ")[::-1]):
        way, _, first = name.rpartition(", ")
        last = measured["rows"][-1]
        us = (f"{last[key]:.0f} us" for key in ("us", "fresh_us", "host_us"))
        rows.append(("an upload" if first == "uploaded first" else "nothing", way, *us))
    after = max(measured["rows"][-1]["updates"] for measured in found["ways"].values())
    measured_on = where(found["machine"])
    return f"{markdown(rows)}\n\n{measured_on}; {found['what']}, {found['alike']} lengths in turn, {after} updates."


def predicted_table() -> str:
    """Markdown: foretold from eager calls alone, and measured."""
    found = json.loads((RESULTS / "predicted.json").read_text())
    rows = [("cell", "eager", "kernels", "predicted", "measured", "error"), ("---",) * 6]
    errors = []
    for row in found["rows"]:
        if row["error"] is None:
            continue
        errors.append(row["error"])
        rows.append(
            (
                f"{row['region']}: {row['what']}",
                f"{row['eager_ms']['median']:.2f} ms" if row["eager_ms"] else "-",
                f"{row['kernels_per_call']:.0f}",
                f"{row['predicted_ms']:.2f} ms",
                f"{row['after_ms']['median']:.2f} ms",
                f"{row['error']:.0%}",
            )
        )
    median = statistics.median(errors)
    return f"{markdown(rows)}\n\n{where(found['machine'])}; median absolute error {median:.0%}."


def programs_table(device: str) -> str:
    """Markdown: whole programs that others wrote, with their reports, and how the estimate of the plain time does."""
    found = json.loads((RESULTS / f"programs_{device}.json").read_text())
    rows = [
        (
            "program",
            "first pass, plain",
            "under Grape",
            "later passes, plain",
            "under Grape",
            "ratio",
            "estimate",
            "results",
        ),
        ("---",) * 8,
    ]
    ratios, errors = [], []
    for row in found["programs"]:
        if row["later_s"] is None:
            rows.append((row["name"], *["-"] * 6, "; ".join(row["failed"].values()) or "-"))
            continue
        plain, grape = row["later_s"]
        ratio, estimate = grape / plain, statistics.median(row["estimate_s"][found["passes"] - 1 :])
        ratios.append(ratio)
        known = estimate is not None and estimate == estimate
        if known:
            errors.append(abs(estimate / plain - 1))
        times = (f"{one:.2f} s" for one in (row["plain_s"][0], row["grape_s"][0], plain, grape))
        said = "; ".join([*row["differences"], *row["failed"].values()]) or "identical"
        name = f"{row['name']} ({row['gpu']})" if "gpu" in row else row["name"]
        rows.append((name, *times, f"{ratio:.2f}", f"{estimate / plain - 1:+.0%}" if known else "-", said))
    machine = found["machine"]
    measured_on = where(machine) if machine["gpu"] else f"CPU, {machine['cpus']} cores, torch {machine['torch']}"
    error = f"{statistics.median(errors):.0%}, at most {max(errors):.0%}" if errors else "not known"
    return (
        f"{markdown(rows)}\n\n{measured_on}; engine: {found['engine']}; passes with their reports, later ones from the "
        f"third on. Ratio: median {statistics.median(ratios):.2f}, at most {max(ratios):.2f}; error of the estimate: "
        f"median {error}."
    )


def streams_table() -> str:
    """Markdown: a step of training, decoding or solving, as eager code and under operator streams, in one process."""
    found = json.loads((RESULTS / "streams.json").read_text())
    rows = [("step", "eager", "streams", "faster", "operators matched", "graphs launched", "results"), ("---",) * 7]
    for name, row in found["programs"].items():
        if "eager_ms" not in row:
            rows.append((name, *["-"] * 5, row.get("error") or row["skipped"]))
            continue
        times = (f"{row[side]['median']:.2f} ms" for side in ("eager_ms", "stream_ms"))
        counts = (f"{row['per_step'][count]:.0f}" for count in ("matched", "launched"))
        said = "identical" if row["identical"] else "other bits"
        rows.append((name, *times, f"{row['speedup']:.1f}x", *counts, said))
    return f"{markdown(rows)}\n\n{where(found['machine'])}; medians of rounds of ten steps, in turn with eager code."


def branches_table() -> str:
    """Markdown: calls of models with branches, as eager code, as a graph in one chain and as a graph with branches."""
    found = json.loads((RESULTS / "branches.json").read_text())
    rows = [
        ("model", "eager", "chain", "branches", "over the chain", "on the device", "over eager", "memory", "results")
    ]
    rows.append(("---",) * 9)
    for name, row in found["rows"].items():
        if "ms" not in row:
            rows.append((name, *["-"] * 7, row["error"]))
            continue
        eager, chained, branched = (row["ms"][way]["median"] for way in ("eager", "chained", "branched"))
        times = (f"{ms:.2f} ms" for ms in (eager, chained, branched))
        device = row["measured_at_capture"]
        ratio = f"{device['chained_ms'] / device['branched_ms']:.2f}x" if device is not None else "no branches"
        memory = " -> ".join(f"{row['graph_bytes'][way] / 1e6:.0f}" for way in ("chained", "branched"))
        said = "identical" if row["identical"] else "other bits"
        rows.append(
            (name, *times, f"{chained / branched:.2f}x", ratio, f"{eager / branched:.1f}x", f"{memory} MB", said)
        )
    return f"{markdown(rows)}\n\n{where(found['machine'])}; medians of rounds of 20 calls, in turn."


def overhead_table() -> str:
    """Markdown: cells in which there is nothing to gain, whole, with their reports."""
    found = json.loads((RESULTS / "overhead.json").read_text())
    rows = [("cell", "plain", "first run under Grape", "later runs", "ratio"), ("---",) * 5]
    for name, row in found["cells"].items():
        plain, first, *later = statistics.median(row["plain_ms"]), *row["grape_ms"]
        times = (f"{one:.1f} ms" for one in (plain, first, statistics.median(later)))
        rows.append((name, *times, f"{row['ratio']:.2f}"))
    return f"{markdown(rows)}\n\n{where(found['machine'])}; medians, plain runs before and behind those under Grape."


def libraries_table(device: str) -> str:
    """Markdown: cells over libraries with their reports, under each engine that was measured."""
    found = json.loads((RESULTS / f"libraries_{device}.json").read_text())
    rows = [("cell", "engine", "first pass, plain", "under Grape", "later, plain", "under Grape", "ratio", "results")]
    rows.append(("---",) * len(rows[0]))
    ratios = []
    for name, row in found["rows"].items():
        if without_grape(row):
            rows.append((name, *["-"] * 6, without_grape(row)))
        for engine, one in row.get("engines", {}).items():
            if one["later_s"] is None:
                rows.append((name, engine, *["-"] * 5, results_of(one)))
                continue
            plain, grape = one["later_s"]
            ratios.append(grape / plain)
            times = (f"{seconds:.2f} s" for seconds in (one["plain_s"][0], one["grape_s"][0], plain, grape))
            rows.append((name, engine, *times, f"{grape / plain:.2f}", results_of(one)))
    machine = found["machine"]
    measured_on = where(machine) if machine["gpu"] else f"CPU, {machine['cpus']} cores, torch {machine['torch']}"
    spread = f"median {statistics.median(ratios):.2f}, at most {max(ratios):.2f}" if ratios else "not known"
    return f"{markdown(rows)}\n\n{measured_on}; passes with their reports, later ones in pairs. Ratio: {spread}."


def libraries_reference_table() -> str:
    """Markdown: the same cells where the CPU reference serves: what matched, what not and why, and the results."""
    found = json.loads((RESULTS / "libraries_reference.json").read_text())
    engines = list(dict.fromkeys(engine for row in found["rows"].values() for engine in row.get("engines", {})))
    rows = [("cell", "operators", "matched", "most of the rest", *engines), ("---",) * (4 + len(engines))]
    for name, row in found["rows"].items():
        measured = row.get("engines", {})
        passes = measured["streams"]["streams"] if "streams" in measured else []
        last = (passes[-1] if passes else None) or {"operators": 0, "matched": 0, "as_written": {}}
        rest = ", ".join(f"{why} {count:,}" for why, count in list(last["as_written"].items())[:3])
        share = f"{last['matched'] / last['operators']:.0%}" if last["operators"] else "-"
        said = (results_of(measured[engine]) if engine in measured else without_grape(row) or "-" for engine in engines)
        rows.append((name, f"{last['operators']:,}", share, rest or "-", *said))
    machine = found["machine"]
    return f"{markdown(rows)}\n\nCPU, {machine['cpus']} cores, torch {machine['torch']}; third passes, under streams."


def without_grape(row: dict[str, Any]) -> str:
    """Why the cell was not run under Grape, if it was not."""
    return row.get("skipped") or (f"fails plainly: {row['failed']}" if "failed" in row else "")


def results_of(one: dict[str, Any]) -> str:
    """Of a cell over libraries under an engine."""
    said = [*one["differences"], *one["failed"].values()]
    said += [f"{part}: plain runs {a:.0e} apart, Grape's {b:.0e}" for part, (a, b) in one["apart"].items()]
    return "; ".join(said) or "identical"


def markdown(rows: list[tuple[str, ...]]) -> str:
    """The lines of a table; the second row is the one of dashes."""
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows)
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)


def first_run_table() -> str:
    """Markdown: cells whose every step has a new length, warm and plain, in the first run under Grape, and later."""
    found = json.loads((RESULTS / "first_run.json").read_text())
    names = {"gpt2": "GPT-2 124M", "llama": "Llama, 16 layers", "bert": "BERT-base", "conformer": "Conformer, 8 layers"}
    heads = ("model", "lengths", "kind", "plain, warm", "first run", "of plain", "later runs", "results under Grape")
    rows = [heads, ("---",) * len(heads)]
    for row in found["rows"]:
        times = (f"{row['warm_s']:.2f} s", f"{row['grape_s'][0]:.2f} s", f"{row['first_over_warm']:.2f}")
        kind = row["kind"] + ("" if row.get("cudnn", True) else ", without cuDNN's attention")
        speedup = row["later_speedup"]
        later = f"{speedup:.1f}x faster" if speedup >= 1 else f"{1 / speedup:.1f}x slower"
        rows.append((names[row["model"]], str(row["tokens"]), kind, *times, later, _tokens(row)))
    return f"{markdown(rows)}\n\n{where(found['machine'])}."


def _tokens(row: dict[str, Any]) -> str:
    if row["identical"]:
        return "the same"
    return "others, and plain runs differ from plain runs" if row.get("plain_repeats") is False else "others"


def cold_table() -> str:
    """Markdown: what GR203 says of cells that meet new lengths, beside what these cost."""
    found = json.loads((RESULTS / "cold_and_starved.json").read_text())
    rows = [("cell", "first run, plain", "second", "first with the switch", "foretold", "paid", "saved"), ("---",) * 7]
    for row in found["shapes"]:
        first, second = row["plain_s"]
        switch, saved = (row["switch_s"][0], row["saved_s"]) if "saved_s" in row else (None, None)
        seconds = (first, second, switch, row["foretold_s"] or None, row["paid_s"], saved)
        rows.append((row["name"], *("-" if one is None else f"{one:.2f} s" for one in seconds)))
    return f"{markdown(rows)}\n\n{where(found['machine'])}."


def where(machine: dict[str, Any]) -> str:
    """What the times were measured on."""
    return f"{machine['gpu']}, driver {machine['driver']}, torch {machine['torch']}"


MADE = (
    ("decode", decode_table),
    ("decode", graphs_table),
    ("shapes", shapes_table),
    ("updates", updates_table),
    ("predicted", predicted_table),
    ("streams", streams_table),
    ("branches", branches_table),
    ("programs_cuda", partial(programs_table, "cuda")),
    ("programs_cuda_alone", partial(programs_table, "cuda_alone")),
    ("first_run", first_run_table),
    ("programs_cpu", partial(programs_table, "cpu")),
    ("libraries_cuda", partial(libraries_table, "cuda")),
    ("libraries_cpu", partial(libraries_table, "cpu")),
    ("libraries_reference", libraries_reference_table),
    ("overhead", overhead_table),
    ("cold_and_starved", cold_table),
)
TABLES = (
    *(table, models_table, control_flow_table, training_table, host_table),
    *(made for part, made in MADE if (RESULTS / f"{part}.json").exists()),
)


def renew(page: str, tables: Sequence[str]) -> str:
    """`page` with these tables instead of its own, in order; a table goes on to the line that names the machine."""
    pattern = re.compile(r"^\|[^\n]*\n(?:\|[^\n]*\n?)+(?:\n(?:NVIDIA|CPU)[^\n]*(?:\n|\Z))?", re.MULTILINE)
    found = list(pattern.finditer(page))
    if len(found) != len(tables):
        raise SystemExit(f"the page has {len(found)} tables, there are {len(tables)}: add a heading and a row of it")
    for match, made in reversed(list(zip(found, tables, strict=True))):
        page = page[: match.start()] + made + "\n" + page[match.end() :]
    return page


if __name__ == "__main__":
    if "--write" in sys.argv:
        where_to = Path(__file__).parents[1] / "docs" / "measurements.md"
        where_to.write_text(renew(where_to.read_text(), [made() for made in TABLES[1:]]))
    else:
        print("\n\n".join(made() for made in TABLES))
