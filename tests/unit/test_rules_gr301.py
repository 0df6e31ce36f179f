"""GR301: an argument is copied into its placeholder at each replay."""

from __future__ import annotations

import pytest

from grape.advisor.rules.gr3xx import gr301
from grape.model import CopyRecord
from grape.model.times.machine import MachineCosts
from tests.unit.trace_builder import at, cell, region


def copy(argument: str = "x", nbytes: int = 2**20, **fields: object) -> CopyRecord:
    return CopyRecord(argument=argument, bytes=nbytes, calls=9, **fields)  # type: ignore[arg-type]


def test_a_copy_stands_at_the_line_that_made_it() -> None:
    source = "for t in range(9):\n    h = embed(t)\n    y = step(h)\n"
    copies = (copy(made_at=at(2)),)
    (finding,) = gr301.check(cell(region(outcome="replayed", copies=copies), source=source))
    assert finding.message == "`x` is copied into place at each replay of `step`: 1 MB, about 0.839 us per call"
    assert finding.at == at(2)
    assert finding.advice == (
        "reuse one tensor for `h`: write the new value into it (`out=`, `.copy_()`, an in-place operator)"
    )


def test_without_a_time_the_rate_predicts_it_and_says_so() -> None:
    costs = MachineCosts(device_copy_gb_per_s=100.0, source="a test")
    (finding,) = gr301.check(cell(region(outcome="replayed", copies=(copy(nbytes=10**6),))), costs)
    assert finding.message.endswith("977 KB, about 10 us per call")
    assert finding.predicted_ms_per_call == pytest.approx(0.01)
    assert dict(finding.evidence)["predicted_with"] == "a test"


def test_copies_from_one_line_are_one_finding() -> None:
    copies = *(copy(f"past.{i}", made_at=at(5)) for i in range(24)), copy("ids", made_at=at(6))
    findings = list(gr301.check(cell(region(outcome="replayed", copies=copies))))
    assert len(findings) == 2
    assert findings[0].message == (
        "`past.0`, `past.1` and 22 more are copied into place at each replay of `step`: 24 MB, about 20.1 us per call"
    )
    assert findings[0].predicted_ms_per_call == pytest.approx(24 * 2**20 / 1250e6)


LOOP = "for t in range(9):\n    h = step(torch.randn(4, 64), h)\n"


def test_names_stand_as_in_the_call_and_so_does_the_line() -> None:
    copies = (copy("args[0][0]"), copy("args[0][1]"))
    (finding,) = gr301.check(cell(region(outcome="replayed", line=40, copies=copies), source=LOOP, cuda=False))
    assert finding.message == (
        "`torch.randn(4, 64)` and `h` are copied into place at each replay of `step`: 2 MB per call; "
        "`h` is the result of the previous call"
    )
    assert finding.at == at(2)
    assert finding.advice is not None and finding.advice.startswith("reuse one tensor for `torch.randn(4, 64)`: ")
    assert dict(finding.evidence)["fed_back"] == ("args[0][1]",)


def test_a_large_result_that_is_fed_back_is_to_be_written_in_place() -> None:
    copies = (copy("args[0][1]", 2**16),)
    (finding,) = gr301.check(cell(region(outcome="replayed", copies=copies), source=LOOP, cuda=False))
    assert finding.message.endswith(" per call; it is the result of the previous call")
    assert finding.advice == "let `step` write `h` in place, by index or with `out=`, instead of returning a new tensor"


@pytest.mark.parametrize("nbytes", [8, 2**16 - 1])
def test_a_few_bytes_are_no_finding(nbytes: int) -> None:
    copies = (copy("args[0][1]", nbytes),)
    for cuda in (True, False):
        assert not list(gr301.check(cell(region(outcome="replayed", copies=copies), source=LOOP, cuda=cuda)))


def test_where_a_library_calls_the_region_there_is_nothing_to_change() -> None:
    source = "tokens = model.generate(ids)\n"
    copies = (copy("args[1]['input_ids']"),)
    (finding,) = gr301.check(cell(region("GPT2 (model)", outcome="replayed", copies=copies), source=source))
    assert finding.message.startswith("`input_ids` is copied into place")
    assert finding.advice is None


def test_no_time_on_the_tape() -> None:
    (finding,) = gr301.check(cell(region(outcome="replayed", copies=(copy(),)), cuda=False))
    assert finding.message == "`x` is copied into place at each replay of `step`: 1 MB per call"
    assert finding.predicted_ms_per_call is None


def test_empty_copies_are_no_finding() -> None:
    copies = (copy(nbytes=0), CopyRecord(argument="z", bytes=4, calls=0))
    assert not list(gr301.check(cell(region(copies=copies))))
