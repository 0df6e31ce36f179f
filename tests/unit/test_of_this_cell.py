"""A report tells of its own cell: what earlier cells did with the same callables is none of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from grape.model import RegionEvidence
from grape.options import Options
from grape.render import Report
from grape.sessions import Cell, Session

pytestmark = pytest.mark.usefixtures("closed_engine")


def cell(number: int, body: Callable[[], Any], model: nn.Module, source: str | None = None) -> Report:
    """`body` as the cell In[number]."""
    name = f"In[{number}]"
    here = Cell(name=name, source=source or name, filename=f"<cell-{number}>")
    session = Session(
        options=Options(),
        cell=here,
        namespace={"model": model},
        file_names=lambda file: f"In[{file[6:-1]}]" if file.startswith("<cell-") else file,
    )
    code = compile(f"{'#' * number}\nbody()", here.filename, "exec")
    session.open()
    exec(code, {"body": body})
    return session.close(None)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).requires_grad_(False)


def only(report: Report) -> RegionEvidence:
    (region,) = report.evidence.regions
    return region


def test_shapes_are_those_of_this_cell() -> None:
    model = net()
    cell(1, lambda: [model(torch.ones(n, 4)) for n in (2, 3, 5, 2, 3, 5)], model)
    second = only(cell(2, lambda: [model(torch.ones(7, 4)) for _ in range(4)], model))
    assert [(count.calls, count.earlier_runs) for count in second.shapes] == [(4, 0)]
    third = only(cell(3, lambda: [model(torch.ones(n, 4)) for n in (2, 2, 7)], model))
    assert [(count.calls, count.earlier_runs) for count in third.shapes] == [(2, 1), (1, 1)]


def test_traces_are_of_calls_as_this_cell_makes_them_with_its_lines() -> None:
    model = net()
    cell(1, lambda: [model(torch.ones(2, 4)) for _ in range(3)], model)
    other = only(cell(2, lambda: [model(torch.ones(7, 4)) for _ in range(5)], model))
    sizes = {op.outputs[0].shape[0] for trace in other.traces for op in trace.ops if op.name.startswith("aten.addmm")}
    assert sizes == {7}
    again = only(cell(3, lambda: [model(torch.ones(2, 4)) for _ in range(3)], model))
    assert again.traces
    places = {op.user.file for trace in again.traces for op in trace.ops if op.user is not None}
    assert not places & {"In[1]", "In[2]"}


def test_a_cell_that_runs_again_under_another_name_keeps_what_was_seen_of_it() -> None:
    model = net()

    def body() -> Any:
        return [model(torch.ones(2, 4)) for _ in range(3)]

    first = only(cell(1, body, model, source="the cell"))
    second = only(cell(2, body, model, source="the cell"))
    assert len(first.traces) == len(second.traces) > 0


def test_eager_times_leave_out_the_first_call_of_a_shape() -> None:
    model = net()
    region = only(cell(1, lambda: [model(torch.ones(2, 4)) for _ in range(2)], model))
    assert region.before_ms is None  # one was cold, one was traced


def test_a_cell_whose_work_is_too_small_did_some_all_the_same() -> None:
    report = cell(1, lambda: nn.Identity()(torch.ones(2)) + 1, nn.Identity())
    assert report.evidence.torch_ran
    assert "no PyTorch work" not in report.verdict
