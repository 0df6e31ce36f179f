"""What the evaluation makes of its files: ratios, costs, the page and its pictures. Nothing is measured here."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.evaluate import figures, page, plan, plots, tables
from benchmarks.evaluate.rows import GROUPS, ROWS

ROOT = Path(__file__).parents[2]


def samples(step_ms: float, *runs: float) -> dict[str, Any]:
    return {"step_ms": [step_ms] * len(runs), "run_s": runs, "median_step_ms": step_ms, "median_run_s": runs[-1]}


def measured(
    row: str, column: str, step_ms: float, warm: tuple[float, ...] = (3.0, 0.5), **more: Any
) -> dict[str, Any]:
    """Of a row whose eager step takes 2 ms and whose eager run takes 1 s; a run in the column takes the last of
    `warm`."""
    about = {"row": row, "group": ROWS[row].group, "what": ROWS[row].what, "column": column, "outcome": "measured"}
    agreement = {"identical": True, "runs": 4, "largest_difference": 0.0, "relative": 0.0}
    sides = {"plain": samples(2.0, 1.0), "beside": samples(2.0, 1.0)}
    mine = {"warm": samples(step_ms, *warm), "timed": samples(step_ms, warm[-1])}
    memory = {"held_bytes": 5_000_000}
    return {**about, **sides, **mine, "agreement": agreement, "memory": memory, "steps": 500, **more}


def failed(row: str, column: str, outcome: str, why: str) -> dict[str, Any]:
    group, what = ROWS[row].group, ROWS[row].what
    return {"row": row, "group": group, "what": what, "column": column, "outcome": outcome, "why": why}


@pytest.mark.parametrize(
    ("warm", "more", "first_gain", "even"),
    [
        ((3.0, 0.5, 0.5, 0.5, 0.5, 0.5), {}, 3.0, 3.0 + 4 * 0.5),  # the 2 s of the first run are back after four more
        ((3.0, 0.5), {}, 3.0, 5.0),  # the same, beyond what was measured
        ((0.5, 0.5), {}, 0.0, 0.5),
        ((3.0, 1.5), {}, None, None),
        ((0.5, 0.5), {"prepare_s": 1.5}, 2.0, 3.0),
    ],
    ids=["measured", "beyond", "at once", "never", "prepared"],
)
def test_when_it_pays(
    warm: tuple[float, ...], more: dict[str, Any], first_gain: float | None, even: float | None
) -> None:
    known = figures.costs(measured("dlrm", "grape", 1.0, warm, **more))
    assert known is not None
    assert (known.to_first_gain_s, known.to_break_even_s) == pytest.approx((first_gain, even))


def test_a_mean_of_ratios_is_geometric() -> None:
    known = figures.spread([0.5, None, 2.0, 1.0, 8.0])
    assert known is not None and known.n == 4
    assert (known.middle, known.least, known.most) == pytest.approx((8.0**0.25, 0.5, 8.0))
    assert figures.spread([None]) is None


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
    (in_all,) = (line for line in lines if line.startswith("| Grape as shipped | "))
    assert in_all.split(" | ")[1:] == [
        *("3", "1.00x (0.88 to 1.62, 0.50 to 2.00)", "1.00x (0.88 to 1.62, 0.50 to 2.00)"),
        *("1 (33%)", "1 (33%)", "2 (100%) |"),
    ]
    lost = made[made.index("## Where Grape loses") : made.index("## The paper's")]
    assert "| gpt2_decode | eager | 0.50x | 0.50x | cell slower; GR101 a read |" in lost
    assert "| dlrm | CUDA graphs by hand, with placeholders | 0.50x | 1.00x | cell 2x faster |" in lost
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
    assert tables.summary([]) == tables.losses([]) == tables.NOTHING
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
