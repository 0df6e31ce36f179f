"""When segments of a stream are captured, and what that leaves of the graphs of others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from grape.streams import Settings, Stream, open_stream
from tests.property.stream_programs import flat, needs_compiler
from tests.unit.test_streams_graphs import agrees

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore")]


def chain(x: Tensor, times: int = 3) -> Tensor:
    for _ in range(times):
        x = torch.sin(x * 1.25 + 0.5)
    return x


def in_segments(loop: Any, **options: Any) -> Any:
    return agrees(loop, **({"shortest": 4, "hot": 2, "longest": 4, "draws": True} | options))


def test_a_segment_waits_for_the_graphs_of_those_whose_results_it_reads() -> None:
    first, second = torch.randn(16), torch.randn(16)

    def loop() -> list[Tensor]:
        sums = []
        for i in range(60):  # soon the input lies elsewhere, and comes to stay there some passes later
            h = torch.sin((first if i < 8 else second) * 1.25)
            sums.append(chain(h, 4).sum())
        return sums

    plain = flat(loop())
    settings = Settings(device="pretended", longest=4, shortest=4, hot=2, settled=0, patience=0, price=0, doubt=0)
    stream = open_stream(settings)
    assert isinstance(stream, Stream)
    with stream:
        result = loop()
        rows = stream.fragments()
    assert flat(result) == plain
    assert sum(row["graphs"] for row in rows) >= 4
    assert (stream.evidence().stale, sum(row["copied"] for row in rows)) == (0, 0)


def test_graphs_of_others_stay_when_a_segment_is_captured_again() -> None:
    first, second = torch.randn(16), torch.randn(16)

    def loop() -> list[Tensor]:
        sums = []
        for i in range(120):
            h = torch.sin((first if i < 60 else second) * 1.25)
            sums.append((chain(chain(h, 3) + h, 2) - h).sum())
        return sums

    evidence = in_segments(loop)
    assert evidence.captured >= 6
    assert evidence.stale <= 16  # of 6 segments: not all again for each that is


def test_what_is_cut_anew_has_its_graphs_in_the_same_pass() -> None:
    table = torch.randn(40, 8)

    def loop() -> list[Tensor]:
        sums = []
        for i in range(80):
            h = torch.tanh(table[3] * 1.5)
            for k in range(6):  # one after the other comes to be a number that changes
                h = torch.sin(h + (0.25 if i < 20 + 8 * k else float(i)))
                h = torch.cos(h * 1.5 - 0.125)
            sums.append(h.sum())
        return sums

    evidence = in_segments(loop, longest=100)
    assert evidence.written["number changed"] > 100
    assert evidence.partial <= 12  # where it is cut, once each: not all that is left of the pass


def test_a_segment_that_is_often_cut_short_ends_there() -> None:
    x, y = torch.randn(8), torch.randn(8)

    def loop() -> list[Tensor]:
        sums = []
        for i in range(200):
            h = chain(x, 2)
            if i % 8 == 7:  # another way, seldom
                h = torch.cosh(h) - y
            h = chain(h, 2)
            sums.append(h.sum())
        return sums

    evidence = in_segments(loop, longest=100, shortest=8)
    assert evidence.diverged > 10
    assert evidence.partial < 12


def test_a_fragment_without_all_its_graphs_is_not_given_up_at_once() -> None:
    inputs = [torch.randn(1 << 20) for _ in range(3)]  # copied at each pass, for some numbers of each

    def loop() -> list[Tensor]:
        sums = []
        for i in range(200):
            x = inputs[i % 3][:: 1 << 12]
            sums.append((x.neg() + x.abs()).sum())
        return sums

    operators, doubt = 4, 4
    evidence = in_segments(loop, steady=10_000, doubt=doubt)
    assert evidence.captured == 0
    assert evidence.lost == 1
    assert evidence.matched >= 3 * doubt * operators


@pytest.mark.parametrize("switch", [4, 10])
def test_what_floats_takes_another_alignment_before_its_operator_is_left_as_written(switch: int) -> None:
    data = torch.randn(4096)

    def loop() -> list[Tensor]:
        sums = []
        for i in range(150):
            offset = 0 if i < switch else 4 if i == switch else 1 + 16 * (i % 3)
            h = torch.cos(torch.exp(torch.tanh(torch.sigmoid(data[offset : offset + 64]))) * 1.5)
            sums.append(h.sum())
        return sums

    evidence = in_segments(loop)
    assert evidence.written.get("other aliases than recorded", 0) <= 2
    assert evidence.matched > 0.95 * evidence.seen
