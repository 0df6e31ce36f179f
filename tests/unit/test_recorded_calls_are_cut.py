"""A recorded call is cut where coming to the tracer takes too long, and not for what the person does between."""

from __future__ import annotations

import time

import torch

from grape.tracing import PositionFinder, Tracer, record

CPU = torch.device("cpu")


def operators_seen(pauses: list[float], beside_ms: float) -> int:
    x = torch.ones(2)

    def body() -> None:
        for pause in pauses:
            time.sleep(pause)
            x.add(1)

    _, call, _ = record(Tracer(PositionFinder()), CPU, (), body, beside_ns=1e6 * beside_ms)
    return len(call.trace.ops)


def test_what_comes_slowly_each_time_is_cut() -> None:
    assert operators_seen([0.003] * 40, beside_ms=20.0) < 20


def test_one_long_pause_is_the_persons() -> None:
    """Libraries are imported when an optimizer makes its first step."""
    assert operators_seen([0.2, 0.2, *[0.0] * 20], beside_ms=20.0) == 22
