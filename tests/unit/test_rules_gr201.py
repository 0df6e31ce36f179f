"""GR201: a region was called with several argument shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from grape.advisor.rules.gr2xx import gr201
from grape.model import GraphMemory
from tests.unit.trace_builder import cell, region, shapes, timeline

LENGTHS = [{"x": (8, length)} for length in (20, 31, 25, 60, 33, 47, 29)]


def test_counts_shapes_and_sums_what_capturing_all_took() -> None:
    counted = shapes(*LENGTHS, counts=[9, 1, 1, 1, 1, 1, 6], captured=True, capture_ms=40.0, graph_bytes=2**20)
    (finding,) = gr201.check(cell(region(calls=20, shapes=counted)))
    assert finding.message == (
        "`step` was called with 7 shapes of `x` in 20 calls; capturing all took 280 ms and holds 7 MB"
    )
    evidence = dict(finding.evidence)
    assert evidence["histogram"] == (
        ("x [8, 20]", 9),
        ("x [8, 29]", 6),
        ("x [8, 31]", 1),
        ("x [8, 25]", 1),
        ("x [8, 60]", 1),
    )
    assert finding.predicted_ms_per_call == pytest.approx(240 / 20)
    assert finding.advice == "pad or bucket `x` to a few sizes, so that calls share graphs"


def test_graphs_that_served_every_call_were_paid_for_earlier() -> None:
    counted = shapes(*LENGTHS, captured=True, capture_ms=40.0, graph_bytes=2**20)
    (finding,) = gr201.check(cell(region(outcome="replayed", calls=7, replays=7, shapes=counted)))
    assert (finding.severity, finding.predicted_ms_per_call) == ("hint", None)
    assert finding.message.endswith("capturing all took 280 ms and holds 7 MB")


def test_graphs_that_share_say_what_they_hold_and_what_sharing_spares() -> None:
    memory = GraphMemory(
        pool_bytes=2 * 2**20,
        placeholder_bytes=2**20,
        executable_bytes=2**20,
        record_bytes=2**10,
        host_graph_bytes=2**10,
        graphs=7,
        classes=1,
        alone=0,
        executables=1,
        switches=30,
        evictions=0,
        refused_updates=0,
        per_graph_bytes=90 * 2**20,
    )
    counted = shapes(*LENGTHS, captured=True, capture_ms=40.0, graph_bytes=2**20)
    (finding,) = gr201.check(cell(region(outcome="replayed", calls=7, replays=7, shapes=counted, graph_memory=memory)))
    assert finding.message.endswith(
        "capturing all took 280 ms and holds 4 MB on the device, 2 MB of it in the pool of all graphs, "
        "and 2 KB on the host (about 90 MB, an estimate, if they shared workspace only)"
    )
    assert dict(finding.evidence)["graph_memory"] == memory.to_dict()


def test_a_partly_captured_region_is_extrapolated_and_says_so() -> None:
    done = shapes(LENGTHS[0], captured=True, capture_ms=30.0, graph_bytes=2**20)
    (finding,) = gr201.check(cell(region(calls=9, shapes=(*done, *shapes(*LENGTHS)[1:3]))))
    assert finding.message.endswith("; 1 of 3 are captured, capturing all would take about 90 ms")
    assert finding.predicted_ms_per_call == 0.0


def test_shapes_that_grow_are_counted_where_all_of_them_are_priced() -> None:
    steps = [{"cache": (1, n, 8), "x": (8, 20 + n % 3)} for n in range(4, 16)]
    done = shapes(steps[0], captured=True, capture_ms=30.0, graph_bytes=2**20)
    (finding,) = gr201.check(cell(region(calls=12, shapes=(*done, *shapes(*steps)[1:]))))
    assert finding.message == (
        "`step` was called with 3 shapes of `x` in 12 calls; with those that grow there are 12; "
        "1 of them are captured, capturing all would take about 360 ms"
    )


def test_without_any_capture_the_timeline_prices_it() -> None:
    before = timeline(*[(i * 10, i * 10 + 5) for i in range(312)], wall_us=5000)
    (finding,) = gr201.check(cell(region(shapes=shapes(*LENGTHS[:2]), before=before)))
    assert finding.message.endswith("; 0 of 2 are captured, capturing all would take about 80 ms")
    assert finding.predicted_ms_per_call is None


def test_without_any_measurement_no_price_is_named() -> None:
    (finding,) = gr201.check(cell(region(shapes=shapes(*LENGTHS[:2], counts=[4, 6]))))
    assert finding.message == "`step` was called with 2 shapes of `x` in 10 calls"


def test_calls_whose_shapes_nobody_saw_are_not_counted() -> None:
    (finding,) = gr201.check(cell(region(calls=20, shapes=shapes(*LENGTHS[:2]))))
    assert finding.message == "`step` was called with 2 shapes of `x` in the 2 of 20 calls looked at"


def test_a_sum_that_begins_as_a_number_is_no_matter_of_lengths() -> None:
    """Nor is an argument that is left out."""
    seen = shapes({"x": (8, 3)}, {"x": (8, 3), "total": ()}, counts=[5, 5])
    (finding,) = gr201.check(cell(region("loop at line 2", shapes=seen, loop_line=2)))
    assert finding.message == "`loop at line 2` was called with and without a tensor as `total` in 10 calls"
    assert finding.advice is not None and finding.advice.startswith("make `total` a tensor before the loop")
    (finding,) = gr201.check(cell(region(shapes=seen)))
    assert finding.advice == "pass a tensor as `total` always or never, so that calls share graphs"


def test_only_the_arguments_that_vary_are_named() -> None:
    (finding,) = gr201.check(cell(region(shapes=shapes({"x": (8, 3), "w": (5,)}, {"x": (8, 9), "w": (5,)}))))
    assert dict(finding.evidence)["arguments"] == ("x",)


def test_one_shape_is_no_finding() -> None:
    assert not list(gr201.check(cell(region(shapes=shapes(LENGTHS[0], counts=[100])))))
    assert not list(gr201.check(cell(region())))


def test_steady_growth_belongs_to_gr202() -> None:
    growing = shapes(*[{"past": (1, n), "ids": (1, 1)} for n in range(5, 12)])
    assert not list(gr201.check(cell(region(shapes=growing))))


def test_a_prompt_before_growing_steps_is_no_shape_dynamism() -> None:
    decode = shapes({"ids": (1, 5)}, *[{"ids": (1, 1), "past": (1, 12, n, 64)} for n in range(5, 12)])
    assert not list(gr201.check(cell(region(shapes=decode))))


def test_beside_growth_another_varying_argument_is_reported_alone() -> None:
    mixed = shapes(*[{"past": (1, 5 + i), "image": (3, size)} for i, size in enumerate((64, 64, 48, 80, 96))])
    (finding,) = gr201.check(cell(region(shapes=mixed)))
    assert dict(finding.evidence)["arguments"] == ("image",)
    assert dict(finding.evidence)["distinct"] == 4


@pytest.mark.parametrize(
    ("counts", "found"),
    [((20, 1), 0), ((40, 2), 0), ((20, 6), 1), ((3, 1), 1)],
)
def test_a_smaller_last_batch_is_nothing_to_pad_for(counts: tuple[int, int], found: int) -> None:
    full, rest = shapes({"x": (16, 8)}, {"x": (10, 8)}, counts=counts)
    late = replace(rest, order=counts[0])
    assert len(list(gr201.check(cell(region(calls=sum(counts), shapes=(full, late)))))) == found


def test_a_first_shape_that_comes_once_is_not_the_rest_of_a_pass() -> None:
    prompt, steps = shapes({"x": (1, 64)}, {"x": (1, 1)}, counts=(1, 20))
    assert len(list(gr201.check(cell(region(calls=21, shapes=(prompt, steps)))))) == 1


def test_nobody_pads_what_an_object_keeps() -> None:
    """A running mean that starts as [n] and is [1, 1, n] from the first call on, and a batch that varies beside it."""
    mean = "args[0][0].mean"
    kept = shapes({mean: (8,)}, {mean: (1, 8)}, {mean: (1, 1, 8)}, counts=[1, 1, 5])
    method = region(name="Norm.__call__", outcome="refused", refused=None, calls=7, shapes=kept)
    (finding,) = gr201.check(cell(method))
    assert finding.message.startswith("`Norm.__call__` was called with 3 shapes of `self.mean` in 7 calls")
    assert (
        finding.advice == "make `self.mean` with the shape that the calls leave there, so that all calls share a graph"
    )
    both = shapes(*({mean: (1, n), "args[0][1]": (n, 4)} for n in (3, 1, 4, 2)), counts=[2, 1, 1, 3])
    (finding,) = gr201.check(cell(replace(method, shapes=both)))
    assert "4 shapes of the first argument in" in finding.message and "pad or bucket the first argument" in str(
        finding.advice
    )
