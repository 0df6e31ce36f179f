"""`%grape remember` in one kernel, `%grape recall` in the next: what was learned serves from the first run on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.test_auto_engine import LEFT, SAYS, SERVED
from tests.integration.test_streams_in_cells import SETUP
from tests.processes import lines_of
from tests.property.stream_programs import needs_compiler

pytestmark = needs_compiler

KERNEL = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
import torch, torch._dynamo
import grape

shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "grape")
for source in {cells!r}:
    with capture_output() as captured:
        result = shell.run_cell(source, store_history=True)
    error = result.error_in_exec or result.error_before_exec
    if error is not None:
        print("error", error)
    elif source.startswith("%grape"):
        print("said", captured.stdout.strip())
    elif source.startswith("%%grape"):
        report = grape.last.to_dict()
        decisions = [one for region in grape.last.evidence.regions for one in region.decisions]
        print("ran", json.dumps({{
            "engine": report["cell"]["engine"],
            "notes": report["cell"]["notes"],
            "matched": sum(one["matched"] for one in report["streams"]),
            "regions": [[one["name"], one["outcome"], one["reason"]] for one in report["regions"]],
            "expected": max([one.expected_calls for one in decisions], default=0),
        }}))
values = [*shell.user_ns["net"].parameters(), *shell.user_ns["losses"], shell.user_ns.get("y", torch.zeros(()))]
print("bits", [value.detach().flatten().tolist() for value in values])
"""
KNOWN = "known from %grape recall; operator streams serve it; %grape reset has it looked at"


@pytest.fixture(autouse=True)
def engine_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPE_ENGINE", "auto")


def kernel(*cells: str) -> tuple[list[dict[str, object]], list[str], str]:
    """The reports of the cells under Grape in a new process, what lines printed, and the bits of all results."""
    lines = lines_of(KERNEL.format(cells=[SETUP, SAYS, *cells]))
    ran = [json.loads(line[4:]) for line in lines if line.startswith("ran ")]
    said = [line.partition(" ")[2] for line in lines if line.startswith(("said ", "error "))]
    return ran, said, lines[-1]


def test_a_restarted_kernel_goes_on_where_the_last_one_was(tmp_path: Path) -> None:
    path = str(tmp_path / "memory.json")
    (watched, streamed, *_), said, _ = kernel(LEFT, LEFT, SERVED, SERVED, f"%grape remember {path}")
    assert (watched["engine"], streamed["engine"]) == ("regions", "streams")
    assert said == [f"remembered 2 cells in {path}: left to operator streams: 1, served by graphs: 1"]

    (first, again, served), said, bits = kernel(f"%grape recall {path}", LEFT, LEFT, SERVED)
    assert said == [f"recalled 2 cells from {path}: left to operator streams: 1, served by graphs: 1"]
    assert (first["engine"], first["notes"]) == ("streams", [KNOWN]), "nobody looks at it first"
    assert first["matched"] and again["engine"] == "streams"
    assert first["regions"] == watched["regions"], "what was refused is told all the same"
    (plain, _, anew), _, plainly = kernel(LEFT, LEFT, SERVED)
    assert plain["engine"] == "regions" and bits == plainly
    assert (served["engine"], served["notes"]) == ("regions", [])
    assert isinstance(served["expected"], float) and isinstance(anew["expected"], float)
    assert served["expected"] >= anew["expected"] + 20, "24 shapes that graphs served are expected again"


def test_a_changed_cell_is_looked_at_as_ever(tmp_path: Path) -> None:
    path = str(tmp_path / "memory.json")
    kernel(LEFT, LEFT, f"%grape remember {path}")
    changed = LEFT.replace("range(40)", "range(39)")
    redefined = SAYS.replace("end=''", "end='', flush=True")
    (other, anew), said, _ = kernel(f"%grape recall {path}", changed, redefined, LEFT)
    assert said[0].startswith("recalled 1 cell from")
    assert (other["engine"], anew["engine"]) == ("regions", "regions")
    assert other["notes"] == anew["notes"] == []


def test_what_cannot_be_recalled(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    kernel(LEFT, LEFT, f"%grape remember {path}")
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "torch": "1.0"}))
    damaged = tmp_path / "damaged.json"
    damaged.write_text(path.read_text()[:-30])
    recalled = f"%grape recall {path}", f"%grape recall {damaged}", "%grape recall", "%grape remember x.json"
    (ran,), said, _ = kernel(*recalled, LEFT)
    assert ran["engine"] == "regions"
    assert said[0].startswith(f"nothing is recalled from {path}: it was written with torch 1.0, and here is ")
    assert said[1:3] == [
        f"%grape: '{damaged}' is no file of %grape remember: it is no JSON",
        "%grape recall needs an argument: %grape recall FILE",
    ]
    assert said[3].startswith("%grape: nothing is known yet that would help a new kernel")


def test_reset_forgets_what_was_recalled(tmp_path: Path) -> None:
    path = str(tmp_path / "memory.json")
    kernel(LEFT, LEFT, f"%grape remember {path}")
    (ran,), _, _ = kernel(f"%grape recall {path}", "%grape reset", LEFT)
    assert ran["engine"] == "regions"
