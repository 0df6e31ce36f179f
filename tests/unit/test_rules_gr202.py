"""GR202: a dimension of an argument grows by a constant from call to call."""

from __future__ import annotations

import pytest

from grape.advisor.rules.gr2xx import gr202
from grape.model import OpRecord, ShapeCount
from tests.unit.trace_builder import LIBRARY, at, cell, op, region, shapes, trace, view


def cache(*lengths: int, name: str = "past") -> tuple[ShapeCount, ...]:
    return shapes(*[{name: (1, 12, length, 64)} for length in lengths])


def cat(shape: tuple[int, ...], *, line: int = 1, library: bool = False) -> OpRecord:
    inner = at(88, file=LIBRARY, function="Cache.update") if library else None
    return op("aten.cat.default", outputs=[view(9, shape)], line=line, inner=inner)


def test_names_argument_dimension_and_range() -> None:
    (finding,) = gr202.check(cell(region(calls=40, shapes=cache(*range(5, 45)))))
    assert finding.message == (
        "dimension 2 of `past` grows by 1 at each call of `step`, 5 to 44: every call has a new shape"
    )
    evidence = dict(finding.evidence)
    assert (evidence["argument"], evidence["dimension"], evidence["step"]) == ("past", 2, 1)
    assert finding.advice == (
        "allocate `past` once at its final length and write each step by index (a static cache), with a mask"
    )
    assert (finding.predicted_ms_per_call, finding.at) == (None, at(1))


def test_points_at_the_concatenation_in_the_region() -> None:
    call = trace(cat((1, 12, 6, 64), line=7, library=True))
    (finding,) = gr202.check(cell(region(shapes=cache(5, 6, 7, 8), traces=(call,))))
    assert finding.at == at(7)
    assert finding.message.endswith("(in Cache.update, somelib/masks.py, line 88)")


def test_names_the_variable_of_a_concatenation_in_the_cell() -> None:
    source = "for _ in range(4):\n    t = model(ids)\n    ids = torch.cat([ids, t], 1)\n"
    loop = trace(*[cat((1, n), line=3) for n in (6, 7, 8, 9)])
    growing = shapes(*[{"input": (1, n)} for n in (5, 6, 7, 8)])
    findings = list(gr202.check(cell(region(shapes=growing), source=source, trace=loop)))
    assert [(f.at, f.region) for f in findings] == [(at(3), "step")]
    assert findings[0].advice is not None and findings[0].advice.startswith("allocate `ids` once")


def test_a_concatenation_of_another_shape_is_not_blamed() -> None:
    call = trace(cat((1, 12, 6, 32)), cat((2, 12, 6, 64)), cat((1, 12, 99, 64)))
    (finding,) = gr202.check(cell(region(shapes=cache(5, 6, 7, 8), traces=(call,), line=20)))
    assert (finding.at, dict(finding.evidence)["concatenated_at"]) == (at(20), None)


def test_many_arguments_are_one_finding_that_names_the_largest() -> None:
    both = shapes(*[{"mask": (1, n), "k": (1, 12, n, 64), "v": (1, 12, n, 64)} for n in range(5, 10)])
    (finding,) = gr202.check(cell(region(shapes=both)))
    assert finding.message.startswith("dimension 2 of `k` (and 2 more arguments) grows by 1 at each call")


def test_what_the_graphs_cost_is_said_where_they_were_captured() -> None:
    grown = shapes(*[{"past": (1, n)} for n in range(5, 9)], captured=True, capture_ms=40.0, graph_bytes=3 * 2**20)
    (finding,) = gr202.check(cell(region(calls=8, shapes=grown)))
    assert finding.message.endswith("4 shapes so far, 8 calls in this cell; 4 graphs cost 160 ms and 12 MB")
    assert finding.predicted_ms_per_call == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (7, "1 to 7: every call has a new shape"),
        (40, "1 to 7: 7 shapes so far, 40 calls in this cell"),
    ],
)
def test_sizes_that_come_again_are_not_new(calls: int, said: str) -> None:
    (finding,) = gr202.check(cell(region(calls=calls, shapes=cache(*range(1, 8)))))
    assert finding.message.endswith(said)


def test_graphs_that_served_every_call_were_paid_for_earlier() -> None:
    grown = shapes(*[{"past": (1, n)} for n in range(5, 9)], captured=True, capture_ms=40.0)
    served = region(outcome="replayed", calls=4, replays=4, shapes=grown)
    (finding,) = gr202.check(cell(served))
    assert finding.message.endswith("every call has a new shape; 4 graphs cost 160 ms")
    assert (finding.severity, finding.predicted_ms_per_call) == ("hint", None)
    (finding,) = gr202.check(cell(region(outcome="replayed", calls=4, replays=3, shapes=grown)))
    assert (finding.severity, finding.predicted_ms_per_call) == ("costly", 40.0)


def test_a_cache_that_a_library_keeps_needs_that_librarys_static_one() -> None:
    call = trace(cat((1, 12, 6, 64), line=7, library=True))
    grown = cache(5, 6, 7, 8, name="args[1]['past'].keys")
    (finding,) = gr202.check(cell(region(shapes=grown, traces=(call,))))
    assert finding.message.startswith("dimension 2 of `past.keys` grows by 1")
    assert finding.advice == (
        "if the library offers a static cache (allocated once, written by index), use it for `past.keys`"
    )


def test_a_prompt_and_a_second_run_do_not_hide_the_growth() -> None:
    lengths = [*range(5, 15), *range(40, 50)]
    (finding,) = gr202.check(cell(region(shapes=cache(*lengths))))
    assert dict(finding.evidence)["sizes"] == (5, 49)


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param((5, 6), id="two shapes are no series"),
        pytest.param((5, 9, 7, 20), id="no constant step"),
        pytest.param((9, 8, 7, 6), id="shrinking"),
        pytest.param((5, 6, 7, 20, 3, 50), id="fewer than three quarters of the steps"),
    ],
)
def test_not_steady(lengths: tuple[int, ...]) -> None:
    assert not list(gr202.check(cell(region(shapes=cache(*lengths)))))


def test_three_shapes_are_enough() -> None:
    assert len(list(gr202.check(cell(region(shapes=cache(5, 7, 9)))))) == 1


def test_two_dimensions_at_once_are_not_this() -> None:
    square = shapes(*[{"mask": (n, n)} for n in range(5, 10)])
    assert not list(gr202.check(cell(region(shapes=square))))


def test_growth_every_second_call_says_so() -> None:
    grown = tuple(ShapeCount(shapes=(("past", (1, 5 + i)),), calls=2, order=2 * i) for i in range(5))
    (finding,) = gr202.check(cell(region(shapes=grown)))
    assert "grows by 1 every 2 calls of `step`" in finding.message


def test_growth_in_the_cell_alone_is_reported_without_a_region() -> None:
    source = "for _ in range(4):\n    seen = torch.cat([seen, f(x)])\n"
    loop = trace(*[cat((n, 3), line=2) for n in (2, 4, 6, 8)])
    (finding,) = gr202.check(cell(source=source, trace=loop))
    assert finding.message == "dimension 0 of `seen` grows by 2 at each of 4 executions, 2 to 8"
    assert finding.region is None
