from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator

from grape.model import CODES, Outcome, Position, Severity
from grape.render import build_report
from grape.render.report import Report
from grape.render.timeline.recorded import recorded_report
from tests.unit.sample_evidence import cell, host_sync, launch_bound, measured, refused, region, sample, tape_cell

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA: dict[str, Any] = json.loads((DOCS / "report.schema.json").read_text(encoding="utf-8"))
REPORTS = {
    "sample": build_report(*sample()),
    "empty": build_report(tape_cell(), ()),
    "error": build_report(tape_cell(error="ValueError: boom", notes=("a note",)), ()),
    "tape": build_report(tape_cell(region(verified="within 0.001")), (launch_bound(), host_sync(at=None, region=None))),
    "refused": build_report(cell(refused("GR405", "autograd")), ()),
}


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_read_again_from_its_json(name: str) -> None:
    data = json.loads(REPORTS[name].to_json())
    assert json.loads(recorded_report(data).to_json()) == data


@pytest.mark.parametrize("name", REPORTS)
def test_reports_follow_the_schema(name: str) -> None:
    report = REPORTS[name]
    data = json.loads(report.to_json())
    assert data == json.loads(json.dumps(report.to_dict()))
    assert [e.message for e in Draft202012Validator(SCHEMA).iter_errors(data)] == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), 2),
        (("verdict",), None),
        (("extra",), 1),
        (("cell", "wall_ms"), "1"),
        (("regions", 0, "outcome"), "skipped"),
        (("regions", 0, "reason"), "because"),
        (("regions", 0, "gpu_busy_share"), 1.5),
        (("regions", 0, "verified"), "yes"),
        (("regions", 0, "before_ms"), {"median": 1.0}),
        (("findings", 0, "code"), "GR999"),
        (("findings", 0, "severity"), "fatal"),
        (("findings", 0, "fix"), {"id": 1}),
    ],
)
def test_the_schema_refuses_what_is_not_a_report(path: tuple[str | int, ...], value: object) -> None:
    data: Any = json.loads(REPORTS["sample"].to_json())
    *parents, last = path
    place = data
    for key in parents:
        place = place[key]
    place[last] = value
    assert not Draft202012Validator(SCHEMA).is_valid(data)


def test_schema_and_model_name_the_same_words() -> None:
    defs = SCHEMA["$defs"]
    assert all(re.search(defs["code"]["pattern"], code) for code in CODES)
    assert all(re.search(defs["finding"]["properties"]["name"]["pattern"], name) for name in CODES.values())
    assert set(defs["finding"]["properties"]["severity"]["enum"]) == set(get_args(Severity))
    assert set(defs["region"]["properties"]["outcome"]["enum"]) == set(get_args(Outcome))


def test_every_field_is_required_and_documented() -> None:
    page = (DOCS / "report.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `([a-z_]+)`", page, flags=re.MULTILINE))
    for schema in (SCHEMA, *(part for part in SCHEMA["$defs"].values() if "properties" in part)):
        assert schema["required"] == list(schema["properties"])
        assert schema["additionalProperties"] is False
        assert set(schema["properties"]) <= documented
    data = REPORTS["sample"].to_dict()
    assert list(data) == SCHEMA["required"]
    assert list(data["cell"]) == SCHEMA["$defs"]["cell"]["required"]
    assert list(data["regions"][0]) == SCHEMA["$defs"]["region"]["required"]
    assert list(data["findings"][0]) == SCHEMA["$defs"]["finding"]["required"]


def strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_cell_without_replays_shows_none_of_an_earlier_cell() -> None:
    earlier = {"verified": "identical", "after_ms": measured(1.14)}
    [row] = build_report(cell(region(outcome="observed", **earlier)), ()).to_dict()["regions"]
    assert (row["after_ms"], row["verified"], row["speedup"]) == (None, None, None)
    assert row["before_ms"] is not None
    [row] = build_report(cell(region(replays=58, **earlier)), ()).to_dict()["regions"]
    assert (row["after_ms"]["median"], row["verified"]) == (1.14, "identical")


def odd_report() -> Report:
    where = Position(file="In[1]", line=2, function="f")
    evidence = (("nan", math.nan), ("inf", math.inf), ("where", where), ("set", {3, 1}), ("map", {1: (True, None)}))
    return build_report(cell(region(before_ms=measured(math.nan))), (host_sync(evidence=evidence, message="\ud800"),))


def test_json_has_a_word_for_every_value() -> None:
    text = odd_report().to_json()
    data = strict(text)
    assert data["findings"][0]["evidence"] == {
        "nan": None,
        "inf": None,
        "where": "In[1], line 2",
        "set": [1, 3],
        "map": {"1": [True, None]},
    }
    assert data["regions"][0]["before_ms"]["median"] is None
    text.encode("utf-8")
