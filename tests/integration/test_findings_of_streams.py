"""What is said of lines that operator streams run as written, in cells on the CPU."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch
import torch._dynamo  # noqa: F401  optimizers import it, and it wraps functions of torch for good

import grape
from tests.integration.notebook import Notebook
from tests.property.stream_programs import needs_compiler

pytestmark = needs_compiler

SETUP = """import torch
torch.manual_seed(0)
net, x = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8)), torch.randn(2, 8)
optimizer = torch.optim.Adam(net.parameters(), foreach=True)
def forward():
    return (net(x) - x).pow(2).mean()
def reads():
    return forward().item()
"""
TRAIN = """%%grape --engine streams
values_read = []
for i in range(60):
    optimizer.zero_grad()
    loss = forward()
    loss.backward()
    optimizer.step()
    values_read.append(loss.item())
    h = x * 0.9**i
    h[h > 0] = 0.0
"""


def line(source: str, words: str) -> int:
    return next(number for number, text in enumerate(source.splitlines(), 1) if words in text)


def found(report: dict[str, Any]) -> dict[str, tuple[str, int]]:
    return {one["code"] + " " + str(one["line"]): (one["file"], one["line"]) for one in report["findings"]}


def test_the_lines_of_a_cell_are_named(notebook: Notebook) -> None:
    for run in (2, 3):
        report = notebook.under_grape(TRAIN)
        (stream,) = report["streams"]
        here = f"In[{run}]"
        rows = {(row["operator"], row["reason"]): row for row in (*stream["reads"], *stream["stops"])}
        assert {row["file"] for row in rows.values()} == {here}, "a cell that runs again has another name"
        read, mask = rows["aten::index_put_", "host read"], rows["aten::_foreach_div_", "number changed"]
        assert (read["line"], mask["line"]) == (line(TRAIN, "h[h > 0]"), line(TRAIN, "optimizer.step()"))
        assert rows["aten::mul", "number changed"]["line"] == line(TRAIN, "0.9**i")
        assert all(row["times"] > 50 and row["total_ms"] > 0 for row in rows.values())
        assert {(one["code"], one["file"], one["line"]) for one in report["findings"]} == {
            ("GR101", here, line(TRAIN, "loss.item()")),
            ("GR103", here, line(TRAIN, "h[h > 0]")),
            ("GR403", here, line(TRAIN, "optimizer.step()")),
            ("GR403", here, line(TRAIN, "0.9**i")),
        }
        assert f"{here}, line {line(TRAIN, 'loss.item()')}, `loss.item()`: host read, " in str(grape.last)
        assert f"{here}, line {line(TRAIN, 'optimizer.step()')}, `optimizer.step()`: number changed, " in str(
            grape.last
        )
    assert all(row["times"] == 60 for row in rows.values() if row["line"] != line(TRAIN, "optimizer.step()"))


def test_a_finding_has_its_rewrite_as_one_of_regions_has(notebook: Notebook) -> None:
    notebook.under_grape(TRAIN)
    assert grape.last is not None
    fixed = {one.code: one.fix for one in grape.last.with_fixes().findings if one.fix is not None}
    assert "+    values_read.append(loss.detach().clone())" in fixed["GR101"].diff
    assert "+    h.masked_fill_(h > 0, 0.0)" in fixed["GR103"].diff
    assert fixed["GR101"].verified and fixed["GR103"].verified


def test_a_line_of_another_cell_is_named_as_that_cell(notebook: Notebook) -> None:
    report = notebook.under_grape("%%grape --engine streams\nfor _ in range(60):\n    y = reads()\n")
    ((code, place),) = found(report).items()
    assert (code, place) == (f"GR101 {place[1]}", ("In[1]", line(SETUP, "item()")))
    (row,) = report["streams"][0]["reads"]
    assert (row["file"], row["function"]) == ("In[1]", "reads")


def test_what_repeats_from_other_cells_names_the_lines_of_this_one(notebook: Notebook) -> None:
    loop = "for _ in range(60):\n    {}y = forward().item()\n"
    notebook.under_grape("%%grape --engine streams\n" + loop.format(""))
    report = notebook.under_grape("%%grape --engine streams\n\n\n" + loop.format(""))
    assert report["streams"][0]["recorded"] == 0, "what the first cell recorded serves this one"
    assert list(found(report).values()) == [("In[3]", 5)]


def test_what_follows_the_advice_already_has_no_findings(notebook: Notebook) -> None:
    cell = (
        "%%grape --engine streams\nlosses = []\nfor i in range(60):\n    loss = forward()\n"
        "    losses.append(loss.detach())\n    if i % 20 == 0:\n        print(loss.item())\n"
        "values = [one.item() for one in losses]\n"
    )
    for _ in range(2):
        assert found(notebook.under_grape(cell)) == {}


def test_a_session_of_a_script_names_its_file(closed_engine: None) -> None:
    names: dict[str, Any] = {}
    exec(SETUP, names)
    forward = names["forward"]
    with grape.session(engine="streams") as session:
        for _ in range(60):
            forward().item()
    assert session.report is not None
    ((file, number),) = found(session.report.to_dict()).values()
    assert file == __file__ and linecache.getline(file, number) == "            forward().item()\n"


def test_a_function_under_a_stream_tells_too(closed_engine: None) -> None:
    names: dict[str, Any] = {}
    exec(compile(SETUP, __file__ + "x.py", "exec"), names)
    with grape.stream(names["reads"]) as reads:
        for _ in range(60):
            reads()
        evidence = reads.evidence()
    assert evidence is not None
    (stop,) = evidence.stops
    assert stop.user is not None and (stop.user.function, stop.user.line) == ("reads", line(SETUP, "item()"))


# Cells that regions left


SAYS = "%%grape\nfor i in range(40):\n    h = x * 0.9**i\n    print(end='')\n    y = forward().item()\n"


def test_beside_what_regions_found_nothing_is_said_twice(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPE_ENGINE", "auto")
    first = notebook.under_grape(SAYS)
    assert first["cell"]["engine"] == "regions"
    before = {(one["code"], one["line"]) for one in first["findings"]}
    assert ("GR101", 5) in before and ("GR403", 3) not in before
    for _ in range(2):
        again = notebook.under_grape(SAYS)
        assert again["cell"]["engine"] == "streams"
        codes = [(one["code"], one["line"]) for one in again["findings"]]
        assert len(codes) == len(set(codes))
        assert set(codes) == before | {("GR403", 3)}
        assert [row["line"] for row in again["streams"][0]["reads"]] == [5]
        said = {(one["code"], one["line"]): one["file"] for one in again["findings"]}
        assert said["GR101", 5] == said["GR403", 3] == again["cell"]["file"]
