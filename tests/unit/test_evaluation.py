"""What the evaluation makes of its files: ratios, costs, the page and its pictures. Nothing is measured here."""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from benchmarks import _machine
from benchmarks.evaluate import (
    costs,
    figures,
    losses,
    overall,
    page,
    plan,
    plots,
    process,
    short,
    studies,
    tables,
    verdicts,
)
from benchmarks.evaluate.job import Row
from benchmarks.evaluate.rows import GROUPS, ROWS
from benchmarks.evaluate.running import Cell, cell_file, left, runnable

ROOT = Path(__file__).parents[2]


def samples(step_ms: list[float], run_s: list[float]) -> dict[str, Any]:
    medians = {"median_step_ms": statistics.median(step_ms), "median_run_s": statistics.median(run_s)}
    return {"step_ms": step_ms, "run_s": run_s, **medians}


def measured(
    row: str, column: str, step_ms: float, warm: tuple[float, ...] = (3.0, 0.5), n: int = 3, **more: Any
) -> dict[str, Any]:
    """Of a row whose eager step takes 2 ms and whose eager run takes 1 s; a run in the column takes the last of
    `warm`, in `n` timed runs."""
    about = {"row": row, "group": ROWS[row].group, "what": ROWS[row].what, "column": column, "outcome": "measured"}
    agreement = {"identical": True, "runs": 4, "largest_difference": 0.0, "relative": 0.0}
    sides = {"plain": samples([2.0, 2.0], [1.0, 1.0]), "beside": samples([2.0] * n, [1.0] * n)}
    mine = {
        "warm": samples([step_ms] * len(warm), list(warm)),
        "timed": samples([step_ms] * n, [warm[-1]] * n),
    }
    memory = {"held_bytes": 5_000_000, "peak_bytes": 9_000_000}
    return {**about, **sides, **mine, "agreement": agreement, "memory": memory, "steps": 500, **more}


def failed(row: str, column: str, outcome: str, why: str) -> dict[str, Any]:
    group, what = ROWS[row].group, ROWS[row].what
    return {"row": row, "group": group, "what": what, "column": column, "outcome": outcome, "why": why}


LEFT = {"verdict": "no significant change; left as written: operator streams made it no faster", "findings": []}


@pytest.mark.parametrize(
    ("warm", "more", "first_gain", "even", "extrapolated"),
    [
        ((3.0, 0.5, 0.5), {}, 3.0, 3.0 + 4 * 0.5, False),  # the 2 s of the first run are back after four more
        ((6.0, 0.5), {}, 6.0, 6.0 + 10 * 0.5, True),  # the same, beyond what was measured
        ((0.5, 0.5), {}, 0.0, 0.5, False),
        ((0.5, 3.0, 0.5), {}, 0.0, 0.5 + 3.0 + 3 * 0.5, False),  # the last crossing, not the first
        ((3.0, 1.5), {}, None, None, False),
        ((0.5, 0.5), {"prepare_s": 1.5}, 2.0, 3.0, False),
        ((0.5, 0.5), {"more": LEFT}, None, None, False),
        ((0.5, 0.5), {"timed": samples([1.0] * 3, [0.5, 0.5, 1.1])}, None, None, False),
        ((0.5, 0.5), {"n": 1}, None, None, False),
    ],
    ids=["measured", "beyond", "at once", "last", "never", "prepared", "as written", "overlap", "one run"],
)
def test_when_it_pays(
    warm: tuple[float, ...], more: dict[str, Any], first_gain: float | None, even: float | None, extrapolated: bool
) -> None:
    known = figures.costs(measured("dlrm", "grape", 1.0, warm, **more))
    assert known is not None
    assert (known.to_first_gain_s, known.to_break_even_s) == pytest.approx((first_gain, even))
    assert known.is_extrapolated is extrapolated


def test_costs_say_about_where_they_are_extrapolated_and_what_is_not_known() -> None:
    found = [measured("dlrm", "grape", 1.0, (6.0, 0.5)), measured("clip", "grape", 1.0, n=1)]
    made = costs.costs_table(found).splitlines()
    assert made[2] == "| dlrm | Grape as shipped | 1.0 s | 6.0 s | faster | 6.0 s | about 11.0 s | 5 MB | 9 MB |"
    assert made[3] == "| clip | Grape as shipped | 1.0 s | 3.0 s | one run | not known | not known | 5 MB | 9 MB |"


@pytest.mark.parametrize(
    ("eager", "before", "mine", "called"),
    [
        ([2.0, 2.2], [2.1, 2.1], [1.0, 1.9], "faster"),
        ([2.0, 2.2], [1.8, 2.1], [1.0, 1.9], "within noise"),  # eager was as fast before Grape was loaded
        ([2.0, 2.2], [2.1, 2.1], [2.3, 2.4], "slower"),
        ([2.0, 2.2], [2.1, 2.5], [2.3, 2.4], "within noise"),
        ([2.0], [2.1, 2.5], [1.0], "one run"),
    ],
)
def test_a_row_is_called_only_where_ranges_do_not_overlap(
    eager: list[float], before: list[float], mine: list[float], called: str
) -> None:
    sides = {"plain": samples(before, before), "beside": samples(eager, eager), "timed": samples(mine, mine)}
    one = measured("dlrm", "grape", 1.0, **sides)
    assert figures.call(one) == figures.call(one, "run_s") == called


def test_a_peer_is_ahead_only_beyond_the_ranges_of_both() -> None:
    mine = measured("dlrm", "grape", 1.0)
    ahead, alone = measured("dlrm", "by_hand", 0.5), measured("dlrm", "by_hand", 0.5, n=1)
    near = measured("dlrm", "by_hand", 0.9, timed=samples([0.5, 0.9, 1.1], [0.5] * 3))
    assert [figures.is_behind(mine, one) for one in (ahead, alone, near)] == [True, False, False]
    (line,) = (line for line in overall.summary([mine, ahead]).splitlines() if line.startswith("| over CUDA graphs"))
    assert line.endswith("| 1 (100%) |")


def test_rows_left_as_written_are_eager_against_eager() -> None:
    sides = {"beside": samples([2.0, 2.4], [1.0, 1.2]), "timed": samples([2.5, 2.0], [1.25, 1.0])}
    found = [measured("dlrm", "grape", 1.0, more=LEFT, **sides), measured("clip", "grape", 1.0)]
    assert tables.outcome(found[0]) == "left as written, 0.98x (0.80 to 1.20, n 2)"
    assert tables.outcome(found[1]) == "faster, 2.00x (2.00 to 2.00, n 3)"
    known = figures.noise(found)
    assert known is not None and known.as_written is not None
    assert (known.within.most, known.as_written.n) == (pytest.approx(1.2), 1)
    assert known.as_written.middle == pytest.approx(2.2 / 2.25)
    said = overall.noise_said(found)
    assert said is not None and "Timed runs of a row: 3 in 1 row, 2 in 1 row." in said.replace("\n", " ")
    assert "dlrm 0.98x (left as written)" in losses.losses(found)
    assert "dlrm, left as written" in tables.points(found)[0]


def test_first_runs_and_later_ones() -> None:
    found = [measured("dlrm", "grape", 1.0, (4.0, 2.0, 0.5)), measured("clip", "grape", 1.0, (0.5, 0.5))]
    assert [figures.first_ratio(one) for one in found] == [0.25, 2.0]
    assert [figures.worst_later_ratio(one) for one in found] == [0.5, 2.0]
    made = overall.summary(found)
    assert "| Grape as shipped | 1 (50%) | 0.25x (dlrm) | 0.50x (dlrm) |" in made
    assert "First runs slower by more than 3%, 1 of 2: dlrm 0.25x." in losses.losses(found)


def test_means_are_told_by_group() -> None:
    made = overall.by_group([measured("dlrm", "grape", 1.0), measured("dlrm_training", "grape", 4.0, (3.0, 2.0))])
    assert made is not None
    (line,) = (line for line in made.splitlines() if "Recommenders" in line)
    assert line.split(" | ")[1:4] == ["2 of 5", "0", "1.00x (0.88 to 1.62, 0.50 to 2.00)"]


def test_rows_are_counted_and_those_not_measured_are_named() -> None:
    said = overall.coverage([measured("dlrm", "grape", 1.0), failed("clip", "grape", "the row fails", "no")])
    said = said.replace("\n", " ")
    rows = [row for group in GROUPS if group.name not in tables.APART for row in group.rows if not row.long]
    assert f"1 of {len(rows)} rows were measured" in said and "; the row fails: clip." in said
    assert "gpt2_decode_1024" in said[said.index("only where they are named") :]


def test_columns_that_were_not_measured_are_named() -> None:
    said = overall.columns_measured([measured("dlrm", "grape", 1.0)]).replace("\n", " ")
    assert "Columns measured: Grape as shipped. Not measured: CUDA graphs by hand" in said
    assert "No peer was measured" in said
    peers = overall.columns_measured([measured("dlrm", "grape", 1.0), measured("dlrm", "by_hand", 1.0)])
    assert "No peer was measured" not in peers


def differing(row: str, **more: Any) -> dict[str, Any]:
    off = {"identical": False, "runs": 4, "largest_difference": 0.5, "relative": 0.25}
    return {**measured(row, "grape", 1.0, repeatable=False, **more), "agreement": off}


def test_the_bits_of_a_row_count_only_where_eager_repeats_its_own() -> None:
    found = [measured("dlrm", "grape", 1.0, repeatable=True), differing("clip")]
    assert overall.same_bits(found) == "1 of 1 repeatable rows; eager differs from itself in 1 more"
    assert tables.agreed(found[1]) == (
        "at most 2.5e-01 of the largest; eager differs from itself, by how much: not recorded"
    )
    own = {"identical": False, "runs": 6, "largest_difference": 0.5, "relative": 0.125}
    assert tables.agreed(differing("clip", eager_agreement=own)).endswith("by how much: at most 1.2e-01")


def test_memory_has_a_floor_and_a_peak_beside_it() -> None:
    left = measured("dlrm", "grape", 1.0, more=LEFT, memory={"held_bytes": -3_000_000, "peak_bytes": 9_000_000})
    known = {"held_bytes": 5_000_000, "peak_bytes": 9_000_000, "eager_peak_bytes": 7_000_000}
    other = measured("clip", "grape", 1.0, memory=known)
    assert costs.memory(left) == ("-3 MB", "9 MB")
    assert costs.memory(other) == ("5 MB", "9 MB (+2 MB)")
    said = costs.memory_said([left]).replace("\n", " ")
    assert "-3 MB to -3 MB more" in said and "negative where" in said and "eager's own was not recorded" in said
    assert "in brackets" in costs.memory_said([left, other]) and "others used the GPU" not in said
    shared = measured("clip", "grape", 1.0, memory={**known, "held_bytes": None, "shared": True})
    assert costs.memory(shared) == ("-", "9 MB (+2 MB)") and "others used the GPU" in costs.memory_said([shared])


@pytest.mark.parametrize("shared", [False, True])
def test_what_a_device_holds_is_not_told_where_others_use_it(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if shared:
        monkeypatch.setenv(_machine.SHARED, "1")
    free = iter((900, 700))
    for name, value in {
        "is_available": lambda: True,
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "max_memory_reserved": lambda: 50,
        "mem_get_info": lambda: (next(free), 1000),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    grown = process.Memory().grown()
    assert (grown["held_bytes"], grown["peak_bytes"]) == (None if shared else 200, 50)


def test_the_machine_says_what_was_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"gpu": "NVIDIA H200", "driver": "1", "torch": "2", "python": "3", "cpus": 32}
    said = overall.machines([measured("dlrm", "grape", 1.0, machine=old)]).replace("\n", " ")
    assert "32 CPUs (1 pairs)" in said and "Not recorded: the CPU's model, pairs at a time, date." in said
    monkeypatch.setenv(_machine.WORKERS, "2")
    known = {**old, "cpu": "EPYC", **{key: _machine.machine()[key] for key in ("workers", "date")}}
    said = overall.machines([measured("dlrm", "grape", 1.0, machine=known)]).replace("\n", " ")
    assert "32 CPUs, EPYC (1 pairs); pairs at a time: 2; date: 20" in said and "Not recorded" not in said


def test_ranks_beyond_one_machine_are_not_modelled() -> None:
    times = {"plain_s": [5.0], "grape_s": [9.0, 4.0]}
    made = studies.ranks({"machine": {"gpu": "NVIDIA H100"}, "ranks": 2, "steps": 200, "programs": {"ddp_gpt2": times}})
    assert [line.split(" | ")[0] for line in made.splitlines()[-3:]] == ["| 2", "| 4", "| 8"]
    assert "2 x NVIDIA H100" in made.replace("\n", " ")


def test_a_mean_of_ratios_is_geometric() -> None:
    known = figures.spread([0.5, None, 2.0, 1.0, 8.0])
    assert known is not None and known.n == 4
    assert (known.middle, known.least, known.most) == pytest.approx((8.0**0.25, 0.5, 8.0))
    assert figures.spread([None]) is None


def test_what_verdicts_name_is_set_beside_eager_runs() -> None:
    found = [
        measured("dlrm", "grape", 1.0, more={"verdict": "cell 2.5x faster (2,000 -> 800 ms)"}),
        measured("clip", "grape", 1.0, more={"verdict": "cell 2.0x faster (1.00 -> 0.50 s)", "plain_ms": 500.0}),
        measured("xlnet", "grape", 1.0, more={"verdict": "cell 2.2x faster (1.10 -> 0.50 s)", "plain_ms": None}),
        measured("alexnet", "grape", 1.0, more={"verdict": f"{LEFT['verdict']} (9.00 -> 9.00 s)"}),
        measured("bert_training", "grape", 1.0, more={"verdict": "17 operators launched in 2 groups"}),
        measured("vit_b_16", "streams", 1.0, more={"verdict": "cell 9.0x faster (9.00 -> 1.00 s)"}),
    ]
    said = verdicts.verdicts(found).replace("\n", " ")
    assert "1.03x (0.80 to 1.55, 0.50 to 2.00), 3 rows" in said
    assert said.endswith("more than a fifth off: dlrm 2.00x, clip 0.50x.")
    assert verdicts.verdicts(found[3:]) == ""


FOUND = [
    measured("dlrm", "grape", 1.0, more={"verdict": "cell 2x faster", "findings": []}),
    measured("dlrm", "by_hand", 0.5),
    measured("gpt2_decode", "grape", 4.0, (3.0, 2.0), more={"verdict": "cell slower", "findings": ["GR101 a read"]}),
    failed("gpt2_decode", "by_hand", "failed", "RuntimeError: no graph"),
    measured("gpt2_decode", "no_alias", 8.0),
    failed("alexnet", "grape", "not installed", "torchvision"),
    failed("xlnet", "grape", "time-out", "longer than 150 s, in run 2"),
    measured("operators_10", "grape", 1.0),
    measured("operators_1000", "grape", 1.0),
]


def test_the_page_tells_who_fails_and_where_grape_loses() -> None:
    made = page.page(FOUND, "images/")
    lines = made.splitlines()
    counts, means, _ = (line for line in lines if line.startswith("| Grape as shipped | "))
    assert counts.split(" | ")[1:] == ["3", "1", "1", "0", "0", "0", "1 (33%)", "2 of 2 repeatable rows |"]
    assert means.split(" | ")[1:] == [
        *["1.00x (0.88 to 1.62, 0.50 to 2.00)"] * 3,
        "0.33x (0.33 to 0.33, 0.33 to 0.33) |",
    ]
    lost = made[made.index("## Where Grape loses") : made.index("## The paper's")]
    assert "| gpt2_decode | eager | 0.500x | 0.500x | cell slower; GR101 a read |" in lost
    assert "| dlrm | CUDA graphs by hand, with placeholders | 0.500x | 1.000x | cell 2x faster |" in lost
    assert "| xlnet | Grape as shipped | time-out | longer than 150 s, in run 2 |" in lines
    assert "| alexnet | Grape as shipped | not installed | torchvision |" in lines
    for name in page.pictures(FOUND):
        assert f"images/{name}" in made


def test_pictures_can_be_read_and_differ_by_their_ground() -> None:
    pictures = page.pictures(FOUND)
    assert set(pictures) == {
        f"evaluation-{name}-{on}.svg" for name in ("steps", "operators") for on in ("light", "dark")
    }
    for name, picture in pictures.items():
        root = ElementTree.fromstring(picture)
        ground = root.find("{http://www.w3.org/2000/svg}rect")
        assert ground is not None
        assert ground.get("fill") == (plots.DARK if "dark" in name else plots.LIGHT).ground
        assert "nan" not in picture and "inf" not in picture


def test_a_page_of_nothing_says_so() -> None:
    assert overall.summary([]) == losses.losses([]) == tables.NOTHING
    assert "not measured" in page.page([], "")


def chosen(**changed: Any) -> list[tuple[str, str]]:
    arguments = {"only": None, "columns": None, "quick": False, "part": "1/1", "programs": None, **changed}
    return [(cell.row.name, cell.column) for cell in plan.chosen(argparse.Namespace(**arguments))]


def test_parts_are_all_of_it_and_nothing_twice() -> None:
    whole = chosen()
    parts = [cell for number in (1, 2, 3) for cell in chosen(part=f"{number}/3")]
    assert sorted(parts) == sorted(whole) and len(set(whole)) == len(whole)
    assert ("gpt2_decode_1024", "grape") not in whole and ("gpt2_decode_1024", "grape") in chosen(
        only=["gpt2_decode_1024"]
    )
    assert [column for row, column in chosen(only=["dlrm", "early_exit"]) if row == "early_exit"][-1] == "predication"
    assert {column for _, column in chosen(only=["growth"])} == {"grape"}
    with pytest.raises(SystemExit, match="neither a row, a group nor a column: dlmr"):
        chosen(only=["dlmr"])


def test_names_of_rows_are_of_one_row() -> None:
    assert len(ROWS) == sum(len(group.rows) for group in GROUPS)


def test_the_page_in_the_documentation_is_of_the_committed_data() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "evaluation.json").read_text())["cells"]
    assert (ROOT / "docs" / "evaluation.md").read_text() == page.page(found, "images/")
    for name, picture in page.pictures(found).items():
        assert (ROOT / "docs" / "images" / name).read_text() == picture


def test_what_was_measured_where_a_library_is_stays_where_it_is_not(tmp_path: Path) -> None:
    row = Row(name="kept", group="vision", what="", build=lambda size: None, needs=("no_such_library",))  # type: ignore[arg-type,return-value]
    here = Cell(row=row, column="grape")
    assert left([here], tmp_path, again=False) == [here]
    assert not list(tmp_path.iterdir())
    assert runnable([here], tmp_path) == []
    path = cell_file(tmp_path, "kept", "grape")
    assert json.loads(path.read_text())["outcome"] == "not installed"
    assert left([here], tmp_path, again=False) == [here]
    path.write_text(json.dumps({"outcome": "measured"}))
    assert left([here], tmp_path, again=False) == []
    assert runnable(left([here], tmp_path, again=True), tmp_path) == []
    assert json.loads(path.read_text())["outcome"] == "measured"


@pytest.mark.parametrize(("outcome", "again"), [("unfinished", True), ("time-out", False), ("measured", False)])
def test_a_pair_whose_run_was_killed_is_run_again(tmp_path: Path, outcome: str, again: bool) -> None:
    row = Row(name="cut", group="vision", what="", build=lambda size: None)  # type: ignore[arg-type,return-value]
    cell = Cell(row=row, column="grape")
    path = cell_file(tmp_path, "cut", "grape")
    path.parent.mkdir()
    path.write_text(json.dumps({"outcome": outcome}))
    assert left([cell], tmp_path, again=False) == [cell] * again


def test_what_all_pairs_take() -> None:
    found = [measured("dlrm", "grape", 1.0, took_s=1800.0), measured("dlrm", "compiled", 0.5, took_s=5400.0)]
    said = " ".join(str(overall.duration(found)).split())
    assert "take 2.0 hours of a GPU, of these 1.5 columns that compile, and 0.5 Grape as shipped" in said
    assert overall.duration([measured("dlrm", "grape", 1.0)]) is None


def test_in_short_it_says_what_the_tables_say() -> None:
    found = [
        measured("dlrm", "grape", 1.0),
        measured("clip", "grape", 1.0, more=LEFT),
        measured("dlrm", "compiled", 0.5),
    ]
    mine, first, peer = (" ".join(line.split()) for line in str(short.in_short(found)).split("\n- "))
    assert "2.00x over eager in the geometric mean of 2 rows" in mine and "1 were left as written" in mine
    assert "0.33x" in first and "2 of 2 are slower" in first
    assert "4.00x over eager" in peer and "it fails on 0 of 1 rows" in peer and "0.50x of it on the 1 rows" in peer
    assert short.in_short([measured("dlrm", "compiled", 1.0)]) is None


def test_the_readme_says_what_the_page_says() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    lines = (ROOT / "docs/evaluation.md").read_text().splitlines()
    mine = [line for line in lines if line.startswith("| Grape as shipped")]
    counts, ratios = ([cell.strip() for cell in line.split("|")] for line in mine[:2])
    rows, _, slower, _, left = counts[2:7]
    step, first = (float(ratios[at].split("x")[0]) for at in (2, 5))
    assert slower == "0" and f"of {rows} rows none is slower" in readme and f"{left} were left as written" in readme
    assert f"a step is {step:.1f} times faster" in readme and f"takes {1 / first:.2f} times as long" in readme
