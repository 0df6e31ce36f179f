"""The session of a cell that starts processes: whose report it gives, and what it leaves behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.multiprocessing as mp

from grape.errors import UsageError
from grape.options import Options
from grape.render import Report
from grape.sessions import Cell, LaunchedSession, engine, last_report, session_for

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
SPAWN = sys.modules["torch.multiprocessing.spawn"]


def work(rank: int, fails: int) -> None:
    x = torch.ones(2, device="cpu")
    for _ in range(40 * (rank + 1)):
        x = x * 2 + 1
    if rank == fails:
        raise ValueError("no more data")


def prepare(rank: int, fails: int) -> None:
    sum(range(rank))


@pytest.fixture
def session() -> Iterator[LaunchedSession]:
    cell = Cell(name="In[1]", source="start()", filename=__file__)
    opened = LaunchedSession(options=Options(engine="streams"), cell=cell, namespace={})
    runner = SPAWN._wrap
    opened.open()
    yield opened
    opened.abandon()
    assert SPAWN._wrap is runner


def started(session: LaunchedSession, function: object = work, fails: int = -1) -> Report:
    try:
        mp.start_processes(function, args=(fails,), nprocs=2, start_method="fork")
    except mp.ProcessRaisedException as error:
        return session.close(error)
    return session.close(None)


def test_the_report_is_that_of_the_first_with_the_others_beside_it(session: LaunchedSession) -> None:
    report = started(session)
    ranks = report.evidence.ranks
    assert ranks is not None and [one.rank for one in ranks.shown] == [0, 1] and not ranks.missing
    first, second = (one.operators for one in ranks.shown)
    assert second > first > 40
    assert sum(stream.operators for stream in report.evidence.streams) == first
    (note,) = (note for note in report.evidence.notes if "started" in note)
    assert note.startswith("2 processes were started; this is what rank 0 did, ")


def test_one_that_raises_is_named_and_the_cell_has_its_own_error(session: LaunchedSession) -> None:
    report = started(session, fails=0)
    assert report.evidence.error is not None and report.evidence.error.startswith("ProcessRaisedException")
    ranks = report.evidence.ranks
    assert ranks is not None and ranks.shown[0].rank == 0 and ranks.shown[0].error


def test_workers_that_name_no_device_run_as_written(session: LaunchedSession) -> None:
    report = started(session, prepare)
    assert report.evidence.ranks is None
    assert "the cell started 2 child processes, of which Grape saw nothing" in report.verdict


def test_a_cell_that_starts_none_says_so(session: LaunchedSession) -> None:
    assert session.close(None).verdict.endswith("none was started; put work of its own into another cell")


def test_work_of_the_process_itself_is_what_the_report_is_about() -> None:
    cell = Cell(name="In[1]", source="work_and_start()", filename=__file__)
    options = Options(engine="streams")
    own = session_for(options=options, cell=cell, namespace={})
    session = LaunchedSession(options=options, cell=cell, namespace={}, own=own)
    session.open()
    try:
        work(0, -1)
        report = started(session)
    finally:
        session.abandon()
    assert engine().session is None and report.evidence.torch_ran
    (note,) = (note for note in report.evidence.notes if "started" in note)
    assert note.startswith("2 processes were started; rank 0 of them: ")
    assert sum(stream.operators for stream in report.evidence.streams) > 80


def test_sessions_do_not_nest(session: LaunchedSession) -> None:
    engine()
    cell = Cell(name="In[2]", source="", filename=__file__)
    other = LaunchedSession(options=Options(), cell=cell, namespace={})
    session.abandon()
    session.open()
    with pytest.raises(UsageError, match="do not nest"):
        other.open()
    session.abandon()
    other.open()
    other.abandon()
    with pytest.raises(UsageError, match="not open"):
        other.close(None)


def test_a_reset_forgets_its_report_too(session: LaunchedSession) -> None:
    owner = engine()
    report = session.close(None)
    assert last_report() is report
    owner.reset()
    assert last_report() is None
