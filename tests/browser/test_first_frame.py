"""A person sees the report at once, and its view soon, also where 50,000 events were recorded.

Limits are for machines that do other things too; what is measured on one stands in docs/report.md.
"""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.widget_frames import in_jupyterlab
from grape.render.timeline.view import SHOWN_EVENTS


@pytest.mark.slow
def test_report_and_view_of_50_000_events_are_soon_there(browser: Any) -> None:
    found = in_jupyterlab(browser, SHOWN_EVENTS, 1)
    assert found["report_cpu_s"] < 0.2, "of the kernel, until report and view are handed over"
    assert found["packing_cpu_s"] < 1.5, "of the kernel, once the cell is over"
    assert found["script_s"] < 1.5, "of the browser, from columns to pictures"
    assert found["summary_s"] < found["view_s"] < 5.0
    assert found["view_s"] <= found["timelines_s"] < 10.0
