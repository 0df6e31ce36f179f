"""What a region would take with a graph, and the constants it is foretold from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest

from grape.advisor import advise, predict
from grape.advisor.prediction import held_ms, predicted_replay_ms, saving_ms
from grape.model import MachineCosts, RegionReport, ShapeCount
from grape.model.times.machine import H200
from grape.profiling.calibration import calibrate
from grape.render import build_report
from tests.unit.trace_builder import cell, item, ms, op, region, timeline, trace, view

LABELS = ("before", "after", "predicted")
COSTS = MachineCosts(node_gap_us=1.0, device_copy_gb_per_s=1000.0, operator_us=10.0, source="a machine")
SHORT = timeline(*[(i * 50, i * 50 + 2) for i in range(40)], wall_us=2000)
LONG = timeline(*[(i * 50, i * 50 + 9) for i in range(40)], wall_us=2000)


def test_a_replay_takes_its_kernels_and_the_gaps_between_them() -> None:
    assert predicted_replay_ms(region(before=LONG), COSTS) == pytest.approx(40 * (9 + 1) / 1e3)


def test_per_call_where_several_were_profiled() -> None:
    twice = timeline(*[(i * 50, i * 50 + 9) for i in range(80)], wall_us=4000, calls=2)
    assert predicted_replay_ms(region(before=twice), COSTS) == pytest.approx(0.4)


def test_the_host_counts_where_the_device_would_wait_for_it() -> None:
    assert predicted_replay_ms(region(before=SHORT), COSTS) == pytest.approx(0.066 + 0.12)
    assert predicted_replay_ms(region(before=LONG), COSTS, waited=True) == pytest.approx(0.066 + 0.4)


def test_more_tensors_longer_guards_and_changing_shapes_take_the_host_longer() -> None:
    many = replace(trace(arguments=range(10)), external_storages=tuple(range(100)))
    fields = {"before": SHORT, "traces": (many,)}
    rest = 0.01 * (6 + 2.6) + 0.01 * (2 + 5.0)
    assert predicted_replay_ms(region(**fields), COSTS) == pytest.approx(rest + 0.01 * (5 + 15))
    assert predicted_replay_ms(region(**fields, guards_ms=0.3), COSTS) == pytest.approx(rest + 0.3)
    shape = ShapeCount(shapes=(), calls=2, order=0, captured=False, capture_ms=0.0, graph_bytes=0)
    changing = region(**fields, guards_ms=0.3, shapes=(shape,) * 2, calls=100)
    assert predicted_replay_ms(changing, COSTS) == pytest.approx(rest + 0.3 + 0.01 * (32 + 5))
    settled = replace(changing, calls=200)
    assert predicted_replay_ms(settled, COSTS) == pytest.approx(rest + 0.3)


def test_copies_into_placeholders_count() -> None:
    copied = region(before=LONG, copied_bytes_per_call=100_000_000)
    assert predicted_replay_ms(copied, COSTS) == pytest.approx(0.4 + 0.1)


@pytest.mark.parametrize("before", [None, timeline(wall_us=100)])
def test_nothing_is_foretold_without_device_work(before: object) -> None:
    nothing = region(before=before, before_ms=ms(1.0))
    assert predicted_replay_ms(nothing, COSTS) is None
    assert saving_ms(nothing, COSTS) is None


def test_the_saving_is_measured_against_calls_that_nobody_profiled() -> None:
    """A profiled call takes longer than one that is not: its idle time is no saving."""
    assert saving_ms(region(before=LONG, before_ms=ms(1.0)), COSTS) == pytest.approx(0.6)
    assert saving_ms(region(before=LONG, before_ms=ms(0.3)), COSTS) == 0.0
    assert saving_ms(region(before=LONG), COSTS) == pytest.approx(2.0 - 0.36 - 0.04)


def test_held_time_takes_the_best_measurement_there_is() -> None:
    assert held_ms(region(calls=10, before=LONG, before_ms=ms(1.0)), COSTS) == pytest.approx(6.0)
    assert held_ms(region(calls=10, before_ms=ms(5.0))) == 50.0
    assert held_ms(region(calls=10, traces=(trace(wall_ns=2_000_000), trace(wall_ns=4_000_000)))) == 30.0
    assert held_ms(region(calls=10)) == 0.0


def test_the_report_has_it_beside_what_was_measured() -> None:
    measured = region(before=LONG, before_ms=ms(1.0), after_ms=ms(0.45), outcome="replayed", replays=9)
    evidence = predict(cell(measured), COSTS)
    row = RegionReport.of(evidence.regions[0]).to_dict()
    assert row["predicted_ms"] == pytest.approx(0.4)
    assert row["after_ms"]["median"] == 0.45


def test_text_and_page_show_it_below_the_measured_time() -> None:
    measured = region(before=LONG, before_ms=ms(1.0), after_ms=ms(0.45), outcome="replayed", replays=9)
    report = build_report(predict(cell(measured), COSTS), ())
    lines = report.to_text().splitlines()
    before, after, predicted = (next(line for line in lines if line.startswith(f"  {label} ")) for label in LABELS)
    assert lines.index(before) < lines.index(after) < lines.index(predicted)
    assert "0.450 ms" in after and "0.400 ms after (from eager calls)" in predicted
    assert "0.400 ms after (from eager calls)" in report.to_html()
    unknown = build_report(cell(region(before_ms=ms(1.0))), ())
    assert "predicted" not in unknown.to_text()


def test_a_cell_that_waits_for_each_call_finds_the_device_idle() -> None:
    waits = trace(*[item(line=3) for _ in range(10)], reads=[(i, "call", 1, 5) for i in range(10)])
    source = "for x in xs:\n    y = step(x)\n    print(y.item())\n"
    (waited,) = predict(cell(region(before=LONG, calls=10), trace=waits, source=source), COSTS).regions
    assert waited.predicted_ms == pytest.approx(0.466)
    source = "import torch\nfor x in xs:\n    y = step(x)\n    torch.cuda.synchronize()\n"
    (explicit,) = predict(cell(region(before=LONG, calls=10), source=source), COSTS).regions
    assert explicit.predicted_ms == pytest.approx(0.466)


def test_without_a_device_nothing_is_foretold() -> None:
    (tape,) = predict(cell(region(before=LONG), cuda=False), COSTS).regions
    assert tape.predicted_ms is None


def test_the_only_blocker_gains_what_the_graph_would() -> None:
    dynamic = op("aten.nonzero.default", "dynamic", outputs=[view(7, (3, 1))])
    blocked = region(before=LONG, before_ms=ms(1.0), outcome="refused", traces=(trace(dynamic),))
    findings = advise(predict(cell(blocked), COSTS), COSTS)
    (blocker,) = [finding for finding in findings if finding.code == "GR103"]
    assert blocker.predicted_ms_per_call == pytest.approx(0.6)


@dataclass
class FakeBench:
    """A device whose clock is arithmetic."""

    node_us: float = 3.0
    kernel: float | None = 2.0
    copy_gb_per_s: float = 2000.0
    host_gb_per_s: float = 20.0
    overhead_us: float = 8.0
    host_us: float = 5.0
    source: str = "a card"

    def kernel_us(self) -> float | None:
        return self.kernel

    def replay_us(self, nodes: int) -> float:
        return self.overhead_us + nodes * self.node_us

    def device_copy_us(self, nbytes: int) -> float:
        return self.overhead_us + nbytes / self.copy_gb_per_s / 1e3

    def host_copy_us(self, nbytes: int) -> float:
        return self.overhead_us + nbytes / self.host_gb_per_s / 1e3

    def operator_us(self) -> float:
        return self.host_us


def test_calibration_takes_what_a_launch_costs_out() -> None:
    found = calibrate(FakeBench())
    assert found.node_gap_us == pytest.approx(1.0)
    assert found.device_copy_gb_per_s == pytest.approx(2000.0)
    assert found.host_copy_gb_per_s == pytest.approx(20.0)
    assert found.operator_us == 5.0
    assert found.source == "a card, measured"
    assert found.capture_ms_per_node == H200.capture_ms_per_node


def test_calibration_keeps_defaults_where_a_measurement_makes_no_sense() -> None:
    found = calibrate(FakeBench(kernel=None, host_gb_per_s=-1.0))
    assert (found.node_gap_us, found.host_copy_gb_per_s) == (H200.node_gap_us, H200.host_copy_gb_per_s)
    assert found.device_copy_gb_per_s == pytest.approx(2000.0)
    broken = FakeBench(kernel=math.nan, node_us=math.nan, copy_gb_per_s=math.nan, host_gb_per_s=math.nan, host_us=0.0)
    assert calibrate(broken) is H200


def test_kernels_longer_than_their_nodes_leave_no_gap() -> None:
    assert calibrate(FakeBench(node_us=1.5, kernel=2.0)).node_gap_us == 0.0
