"""GR401: a Python number or a CPU tensor is sent to the device inside the region."""

from __future__ import annotations

import pytest

from grape.advisor.rules.gr4xx import gr401
from tests.unit.trace_builder import at, cell, op, region, timeline, trace, view

HOST = view(3, (), device="cpu")
LIFT = op("aten.lift_fresh.default", "host", args=[HOST], outputs=[HOST])
SENT = op("aten._to_copy.default", "transfer-in", args=[HOST], outputs=[view(4, ())], born=[4], line=2)
SOURCE = "def f(x):\n    return x + torch.tensor(0.0, device='cuda')\n"


def test_a_number_turned_into_a_tensor() -> None:
    before = timeline((0, 2, "Memcpy HtoD (Pageable -> Device)", 4), (20, 60), wall_us=100)
    (finding,) = gr401.check(cell(region(traces=(trace(LIFT, SENT, LIFT, SENT),), before=before), source=SOURCE))
    assert finding.message == (
        "`torch.tensor(0.0, device='cuda')` is sent from the CPU to the GPU 2 times per call: 4 B, 4 us"
    )
    assert finding.predicted_ms_per_call == pytest.approx(0.004)
    assert dict(finding.evidence)["origin"] == "constant"
    assert (finding.at, finding.severity) == (at(2), "costly")
    assert finding.advice == (
        "make `torch.tensor(0.0, device='cuda')` once outside and reuse it, "
        "or pass the Python number itself to the operator"
    )


def test_a_cpu_tensor_from_outside() -> None:
    (finding,) = gr401.check(cell(region(traces=(trace(SENT),))))
    assert finding.message == "a CPU tensor from outside is sent from the CPU to the GPU once per call: 4 B"
    assert dict(finding.evidence)["origin"] == "outside"


def test_a_tensor_computed_on_the_cpu() -> None:
    made = op("aten.arange.default", "host", outputs=[HOST], born=[3])
    (finding,) = gr401.check(cell(region(traces=(trace(made, SENT),))))
    assert dict(finding.evidence)["origin"] == "computed"
    assert finding.advice == "compute the tensor on the GPU (`device=x.device`), or once outside"


def test_a_graph_keeps_a_constant_so_that_replays_send_nothing() -> None:
    before = timeline((0, 2, "Memcpy HtoD (Pageable -> Device)", 4), (20, 60), wall_us=100)
    replayed = region(outcome="replayed", traces=(trace(LIFT, SENT),), before=before)
    (finding,) = gr401.check(cell(replayed, source=SOURCE))
    assert finding.message.endswith("once per call: 4 B, 2 us; replays reuse it")
    assert (finding.severity, finding.predicted_ms_per_call, finding.advice) == ("hint", None, None)
    (outside,) = gr401.check(cell(region(outcome="replayed", traces=(trace(SENT),))))
    assert (outside.severity, outside.message.endswith("4 B")) == ("costly", True)


def test_an_empty_tensor_sends_nothing() -> None:
    empty = view(3, (0,), device="cpu")
    lifted = op("aten.lift_fresh.default", "view", args=[empty], outputs=[empty], line=2)
    assert not list(gr401.check(cell(region(traces=(trace(lifted),)))))


def test_arguments_belong_to_gr302() -> None:
    assert not list(gr401.check(cell(region(traces=(trace(SENT, arguments=[3]),)))))


def test_in_a_loop_of_the_cell_only_python_values_count() -> None:
    source = "for i in range(3):\n    y = f(torch.tensor(i, device='cuda'))\n"
    (finding,) = gr401.check(cell(source=source, trace=trace(LIFT, SENT, LIFT, SENT)))
    assert finding.message.startswith("`torch.tensor(i, device='cuda')` is sent from the CPU to the GPU at each of 2")
    assert not list(gr401.check(cell(source=source, trace=trace(SENT, SENT))))


def test_a_constant_is_one_whether_it_is_lifted_before_it_is_sent_after_or_only_lifted() -> None:
    """Torch versions differ in which operators of `torch.tensor(0.0, device="cuda")` they let a tracer see."""
    inside = view(4, ())
    after = op("aten.lift_fresh.default", "view", args=[inside], outputs=[inside], line=2)
    for ops in ((LIFT, SENT), (SENT, after), (after,)):
        (finding,) = gr401.check(cell(region(traces=(trace(*ops),))))
        assert (dict(finding.evidence)["origin"], dict(finding.evidence)["per_call"]) == ("constant", 1.0)
        assert dict(finding.evidence)["bytes"] == 4


def test_on_the_tape_nothing_was_sent() -> None:
    inside = view(4, (), device="cpu")
    lifted = op("aten.lift_fresh.default", "view", args=[inside], outputs=[inside], line=2)
    (finding,) = gr401.check(cell(region(traces=(trace(lifted),)), source=SOURCE, cuda=False))
    assert finding.message == (
        "`torch.tensor(0.0, device='cuda')` would be sent from the CPU to the GPU once per call: 4 B"
    )


def test_a_number_written_by_index_is_not_sent_by_a_gpu() -> None:
    """On the tape only: there the number becomes a tensor on the way."""
    view_of_value = op("aten.lift_fresh.default", "view", outputs=[view(3, ())], line=2)
    source = "for i in range(9):\n    keep[0] = False\n"
    inside = region(traces=(trace(view_of_value),))
    assert not list(gr401.check(cell(inside, source=source, cuda=False)))
    made = source.replace("False", "torch.tensor(False)")
    assert len(list(gr401.check(cell(inside, source=made, cuda=False)))) == 1


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("torch.LongTensor(items)", 0),
        ("torch.tensor(items)", 0),
        ("torch.tensor(items, device=device)", 1),
        ("torch.tensor(items).to(device)", 1),
    ],
)
def test_without_a_gpu_a_value_whose_line_names_no_device_stays_where_it_is_made(made: str, found: int) -> None:
    lifted = [
        op("aten.lift_fresh.default", "view", args=[value], outputs=[value], line=2)
        for value in (view(4, (), device="cpu"), view(5, (), device="cpu"))
    ]
    source = f"for items in pairs:\n    keep({made})\n"
    assert len(list(gr401.check(cell(source=source, trace=trace(*lifted), cuda=False)))) == found
    assert len(list(gr401.check(cell(source=source, trace=trace(LIFT, SENT, LIFT, SENT))))) == 1
