"""The trace as Perfetto's own parser reads it: the program `trace_processor_shell`. As its page runs it, the parser is
asked in tests/browser/test_perfetto_parser.py.

It comes from https://get.perfetto.dev/trace_processor; where it is not on the path, GRAPE_TRACE_PROCESSOR names it.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from grape.render import build_report
from tests.unit.sample_evidence import sample

PARSER = os.environ.get("GRAPE_TRACE_PROCESSOR") or shutil.which("trace_processor_shell")

QUERY = """\
select 'slice' as what, count(*) as n from slice
union all select 'flow', count(*) from flow
union all select 'counter', count(*) from counter
union all select name, value from stats where severity in ('error', 'data_loss') and value > 0;
"""


@pytest.mark.skipif(PARSER is None, reason="no trace_processor_shell: name one in GRAPE_TRACE_PROCESSOR")
def test_every_event_is_read_and_none_is_dropped(tmp_path: Path) -> None:
    report = build_report(*sample())
    trace, query = tmp_path / "trace.json", tmp_path / "query.sql"
    report.to_chrome_trace(trace)
    query.write_text(QUERY)
    done = subprocess.run([str(PARSER), "-q", str(query), str(trace)], capture_output=True, text=True, check=True)
    read = {what: int(n) for what, n in csv.reader(done.stdout.splitlines()) if n.isdigit()}
    events = sum(len(timeline.events) for timeline in report.timelines() if timeline is not None)
    assert read.pop("slice") >= events and read.pop("flow") > 0 and read.pop("counter") > 0
    assert read == {}, "errors that the parser counted"
