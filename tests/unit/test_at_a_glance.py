"""What a person sees in five seconds: faster or not, by how much, why not more, what to do next."""

from __future__ import annotations

import pytest

from grape.render.spent import legend, spent
from grape.render.summary import shown_findings
from grape.render.verdict.next_step import next_step
from tests.unit.sample_cells import CELLS

SEEN = {
    "inference": ("cell 3.4x faster (0.94 -> 0.28 s), outputs identical", "later cells use the same graphs"),
    "training": ("cell 1.6x faster (1.80 -> 1.12 s); 1,500 of 2,000 operators launched in 40 groups", "fix GR101 at"),
    "decode": ("cell 2.9x faster (0.86 -> 0.30 s), outputs identical", "later cells use the same graphs"),
    "data-bound": ("no significant change (4.99 -> 5.01 s)", "fix GR303 at In[7], line 2, as said there"),
    "cpu": (
        "no GPU here: nothing gets faster; checked: 1 part of this cell could be a CUDA graph",
        "run it on an NVIDIA",
    ),
}


@pytest.mark.parametrize("name", CELLS)
def test_first_the_verdict_last_the_next_step(name: str) -> None:
    report = CELLS[name]()
    verdict, step = SEEN[name]
    assert report.verdict.startswith(verdict) and (next_step(report) or "").startswith(step)


def test_a_cell_that_waits_for_data_says_so_first() -> None:
    said = {name: "of it goes to data" in make().verdict for name, make in CELLS.items()}
    assert said == {name: name == "data-bound" for name in CELLS}
    assert "; 82% of it goes to data; Grape itself" in CELLS["data-bound"]().verdict


def test_hints_that_nobody_would_notice_are_folded() -> None:
    report = CELLS["inference"]()
    assert [finding.code for finding in report.findings] == ["GR301", "GR501"] and shown_findings(report) == 0
    assert "2 more findings" in report.to_html() and "and 2 more:\n  GR301 " in report.to_text()
    assert shown_findings(CELLS["data-bound"]()) == 2


def test_of_what_is_known_of_one_run_alone_there_is_one_time() -> None:
    """Before, nobody looked at what the cell waited for; to say that it waited 0 s would be wrong."""
    said = dict(legend(spent(CELLS["training"]())))
    assert said["waiting"] == "waiting for the GPU 0.39 s" and said["data"] == "data 0.09 s"
    assert said["unprofiled"] == "not profiled 1.71 -> 0.61 s"


def test_the_first_screen_has_no_word_of_the_workshop() -> None:
    for make in CELLS.values():
        shown = make().to_text(details=False)
        assert not [word for word in ("looks", "segment", "matched", "tape", "sha256") if word in shown]
