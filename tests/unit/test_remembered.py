"""What was learned of cells, as a file: it comes back as it was, and whatever is wrong with it is said."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grape.errors import UsageError
from grape.model import CellEvidence, Finding, Position, Reason, Refused, RegionEvidence, ShapeCount
from grape.options import Options
from grape.sessions import recall, remember
from grape.sessions.past.digest import digest_of
from grape.sessions.past.history import History, key_of, recalled_shapes
from grape.sessions.past.remembered import Machine, read, written
from tests.processes import lines_of_an_interpreter
from tests.unit.sample_past import LEFT

HERE = Machine(torch="2.13.0", python="3.11.7", device="CPU")
APPLIED = Options().applied
KEY = ("y = step(x)", frozenset({("step", "function")}))


def at(line: int, file: str = "In[3]") -> Position:
    return Position(file=file, line=line, function="step")


PAST = replace(
    LEFT,
    served=True,
    why="graphs would save 1% of the cell",
    streamed=True,
    operators=920,
    evidence=CellEvidence(
        file="In[3]",
        source="",
        device="CPU",
        backend="tape",
        wall_ms=12.5,
        torch_ran=True,
        regions=(
            RegionEvidence(
                name="step",
                at=at(1),
                end_line=4,
                outcome="refused",
                refused=Refused.because(Reason.HOST_READ, at(2), what="`.item()`"),
                calls=9,
                replays=0,
            ),
            RegionEvidence(
                name="Net (net)",
                at=at(7),
                end_line=None,
                loop_line=6,
                parent="step",
                outcome="replayed",
                refused=None,
                calls=40,
                replays=33,
                shapes=(ShapeCount(shapes=(("args[0][0]", (2, 8)),), calls=40, order=0),),
            ),
        ),
    ),
    findings=(
        Finding(
            code="GR101",
            severity="blocker",
            message="reading a value",
            at=at(2),
            region="step",
            evidence=(("executions", 9), ("values", "1.0")),
            predicted_ms_per_call=0.25,
            advice="read it once",
        ),
    ),
)


def text(past: Any = PAST, key: Any = KEY) -> str:
    return written({digest_of(key): past}, HERE)


# -- the cell ----------------------------------------------------------------------------------------------------------

DIGEST = """
from grape.sessions.past.digest import digest_of
from grape.sessions.past.history import key_of
names = {"__name__": "__main__", "FLAG": True, "LIMIT": 3}
body = '''
def inner(x):
    return x in {"a", "b", "c", "d", "e"} if FLAG else [v for v in x]
def step(x):
    return inner(x) + CHANGE
class Net:
    def forward(self, x): return step(x)
net = Net()
'''
for change, file in %r:
    exec(compile(body.replace("CHANGE", change), f"<ipython-input-{file}>", "exec"), names)
    print(digest_of(key_of("y = step(x)\\nz = net.forward(y)", names)))
"""


def test_a_cell_has_the_same_name_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for seed, cells in (("1", [("1", "1-abc")]), ("2", [("1", "7-def"), ("2", "1-abc")])):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        digests += lines_of_an_interpreter(DIGEST % cells)
    assert digests[0] == digests[1] != digests[2]
    assert re.fullmatch("[0-9a-f]{64}", digests[0])


def test_whatever_makes_another_cell_makes_another_name() -> None:
    def named(source: str, body: str = "def step(x):\n    return x + 1\n", **names: Any) -> str:
        space: dict[str, Any] = {"__name__": "__main__", **names}
        exec(compile(body, "<ipython-input-1>", "exec"), space)
        key = key_of(source, space)
        assert key is not None
        return digest_of(key)

    same = named("y = step(x)", x=1)
    assert same == named("y = step(x)", x=2)
    others = [
        named("y = step(x) ", x=1),
        named("y = step(x)", x=True),
        named("y = step(x)", x=[1]),
        named("y = step(x)", "def step(x):\n    return x + 2\n", x=1),
        named("y = step(x)", "def step(x):\n    return x - 1\n", x=1),
        named("y = step(x)", "def step(x, z=1):\n    return x + 1\n", x=1),
    ]
    assert same not in others and len(set(others)) == len(others)


# -- there and back ----------------------------------------------------------------------------------------------------


def test_it_comes_back_as_it_was() -> None:
    found = read(text(), "memory.json")
    assert found.machine == HERE
    (past,) = found.pasts.values()
    assert past == replace(PAST, settled=False, recalled=True), "graphs are gone with their process"
    assert read(text(replace(PAST, served=False)), "memory.json").pasts[digest_of(KEY)].settled
    assert recalled_shapes(past) == {(("args[0][0]", (2, 8)),)}
    assert recalled_shapes(PAST) == recalled_shapes(None) == frozenset()


def test_the_file_holds_no_source_and_no_line_of_another_cell() -> None:
    elsewhere = replace(PAST.findings[0], at=at(9, "In[1]"))
    in_a_file = replace(PAST.findings[0], at=at(9, "/home/me/model.py"))
    regions = tuple(replace(region, at=at(5, "In[1]")) for region in PAST.evidence.regions)
    evidence = replace(PAST.evidence, source="secret = 1", regions=regions)
    made = text(replace(PAST, evidence=evidence, findings=(elsewhere, in_a_file)))
    assert "secret" not in made and "In[1]" not in made
    (past,) = read(made, "memory.json").pasts.values()
    assert [str(one.at) for one in past.findings] == ["/home/me/model.py, line 9"]
    assert str(past.evidence.regions[0].at) == "an earlier cell, line 5"


def test_a_changed_cell_and_other_options_are_not_met() -> None:
    history = History()
    history.recall(read(text(), "memory.json").pasts)
    past = history.of(KEY, APPLIED)
    assert past is not None and past.recalled and past.evidence.source == KEY[0]
    assert history.of(("y = step(x + 1)", KEY[1]), APPLIED) is None
    assert history.of((KEY[0], frozenset({("step", "type")})), APPLIED) is None
    assert history.of(KEY, Options(tolerance=0.1).applied) is None
    history.remember(KEY, LEFT)
    assert history.of(KEY, APPLIED) is LEFT, "what was learned here counts more"
    history.clear()
    assert history.of(KEY, APPLIED) is None


def engine(device: str = "CPU") -> Any:
    return SimpleNamespace(history=History(), device=device)


def test_what_is_known_is_written_again(tmp_path: Path) -> None:
    path, first, second = str(tmp_path / "memory.json"), engine(), engine()
    with pytest.raises(UsageError, match=r"^nothing is known yet that would help a new kernel; run the cells again"):
        remember(first, path)
    first.history.remember(KEY, PAST)
    first.history.remember(("z = 1", frozenset()), replace(LEFT, settled=False))
    assert remember(first, path) == f"remembered 1 cell in {path}: served by graphs: 1"
    assert recall(second, path) == f"recalled 1 cell from {path}: served by graphs: 1"
    left = replace(LEFT, evidence=replace(LEFT.evidence, torch_ran=True))
    second.history.remember(("w = 2", frozenset()), left)
    said = f"remembered 2 cells in {path}: left to operator streams: 1, served by graphs: 1"
    assert remember(second, path) == said
    assert os.listdir(tmp_path) == ["memory.json"]


@pytest.mark.parametrize("name", ["torch", "python", "device"])
def test_another_machine_uses_nothing_of_it(tmp_path: Path, name: str) -> None:
    path, here = tmp_path / "memory.json", engine()
    here.history.remember(KEY, PAST)
    remember(here, str(path))
    data = json.loads(path.read_text())
    data[name] = "another"
    path.write_text(json.dumps(data))
    there = engine()
    said = recall(there, str(path))
    assert said.startswith(f"nothing is recalled from {path}: it was written with {name} another, and here is ")
    assert there.history.of(KEY, APPLIED) is None


# -- bad files ---------------------------------------------------------------------------------------------------------


def changed(change: Callable[[dict[str, Any]], Any]) -> str:
    data: dict[str, Any] = json.loads(text())
    change(data)
    return json.dumps(data)


def cell(data: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = data["cells"][0]
    return row


BAD = {
    "no JSON": ("{", "'m.json' is no file of %grape remember: it is no JSON"),
    "nested too deeply": ("[" * 100_000, "'m.json' is no file of %grape remember: it is no JSON"),
    "another file": ("[]", "'m.json' is no file of %grape remember"),
    "a report": ('{"version": 1}', "'m.json' is no file of %grape remember"),
    "a later version": (
        changed(lambda data: data.update(version=2)),
        "'m.json' has version 2 of what %grape remember writes; this Grape reads version 1; run %grape remember anew",
    ),
    "no cells": (changed(lambda data: data.pop("cells")), "'m.json' is damaged: 'cells' is missing"),
    "a torch that is a number": (changed(lambda data: data.update(torch=2)), "'m.json' is damaged: 'torch' is no str"),
    "a cell that is none": (changed(lambda data: data.update(cells=[1])), "'m.json' is damaged: a cell is no dict"),
    "a digest that is none": (
        changed(lambda data: cell(data).update(cell="abc")),
        "'m.json' is damaged: 'cell' is no digest",
    ),
    "a flag that is a number": (
        changed(lambda data: cell(data).update(served=1)),
        "'m.json' is damaged: 'served' is no bool",
    ),
    "an unknown reason": (
        changed(lambda data: cell(data)["regions"][0]["refused"].update(reason="WHIM")),
        "'m.json' is damaged: 'reason' is 'WHIM'",
    ),
    "details of another reason": (
        changed(lambda data: cell(data)["regions"][0]["refused"].update(details={})),
        "'m.json' is damaged: 'details' of HOST_READ are others",
    ),
    "an unknown code": (
        changed(lambda data: cell(data)["findings"][0].update(code="GR999")),
        "'m.json' is damaged: 'code' is 'GR999'",
    ),
    "a size that is text": (
        changed(lambda data: cell(data)["regions"][1]["shapes"][0].update(sizes=[["x", ["8"]]])),
        "'m.json' is damaged: a size is no int",
    ),
    "sizes without names": (
        changed(lambda data: cell(data)["regions"][1]["shapes"][0].update(sizes=[[8]])),
        "'m.json' is damaged: 'sizes' has no pairs of a name and its sizes",
    ),
    "evidence without names": (
        changed(lambda data: cell(data)["findings"][0].update(evidence=[1])),
        "'m.json' is damaged: 'evidence' has no pairs of a name and a value",
    ),
}


@pytest.mark.parametrize("name", list(BAD))
def test_a_bad_file_is_an_error_that_says_why(name: str) -> None:
    made, message = BAD[name]
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        read(made, "m.json")


@pytest.mark.parametrize(
    ("path", "why"), [("nowhere.json", "No such file or directory"), ("", "Is a directory"), ("a\0b", "null byte")]
)
def test_a_file_that_cannot_be_read(tmp_path: Path, path: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"^cannot read .*{why}"):
        recall(engine(), f"{tmp_path}/{path}")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_bytes(b"\xff\xfe")
    here = engine()
    with pytest.raises(UsageError, match=r"^cannot read "):
        recall(here, str(tmp_path / "m.json"))
    assert here.history.known() == {}


def test_every_part_of_a_file_is_looked_at() -> None:
    """Whatever value is taken out or replaced, the file is refused, or read as something else: never as it was."""
    whole = json.loads(text())
    known = read(text(), "m.json")

    def places(value: Any, path: tuple[Any, ...] = ()) -> Any:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in items:
            yield (*path, key)
            yield from places(inner, (*path, key))

    looked_at = 0
    for path in places(whole):
        data = json.loads(text())
        *above, last = path
        holder: Any = data
        for key in above:
            holder = holder[key]
        holder[last] = {"of": "another kind"}
        if "evidence" in path and path[-1] == 1:
            continue  # of a finding, any plain value
        with contextlib.suppress(UsageError):
            assert read(json.dumps(data), "m.json") != known, path
        looked_at += 1
    assert looked_at > 60
