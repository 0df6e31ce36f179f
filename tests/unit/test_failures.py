"""Failures of Grape's own: the code goes on as written, the log has the traceback, the report one line."""

from __future__ import annotations

import logging
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from grape.failures import HOW, failure_notes, forget_failures, log_failure, surviving
from grape.model import Reason
from grape.runtime import GraphedFunction
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.capture import attempt
from grape.runtime.guarding.effects import EffectWatch
from grape.tracing import PositionFinder


@pytest.fixture(autouse=True)
def nothing_told() -> Iterator[None]:
    forget_failures()
    yield
    forget_failures()


def fail(*_: Any, **__: Any) -> Any:
    raise KeyError("no such row")


def test_a_failure_is_logged_with_its_traceback_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with surviving("it counted"):
        fail()
    (record,) = caplog.records
    assert (record.name, record.levelno, record.getMessage()) == (
        "grape",
        logging.ERROR,
        "Grape failed while it counted",
    )
    assert "in fail" in caplog.text and "KeyError: 'no such row'" in caplog.text
    assert failure_notes() == (
        f"Grape failed while it counted (KeyError: 'no such row'), and went on without that; {HOW}",
    )
    assert failure_notes() == ()


def test_who_keeps_a_record_keeps_nothing_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    class Held:
        pass

    def holds() -> weakref.ref[Held]:
        held = Held()
        with surviving("it counted"):
            fail(held)
        return weakref.ref(held)

    assert holds()() is None and len(caplog.records) == 1


def test_an_exception_that_cannot_be_read_has_its_name() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    with surviving("it counted"):
        raise Mute
    assert failure_notes()[0].startswith("Grape failed while it counted (Mute), ")


def test_several_failures_are_one_line() -> None:
    for _ in range(3):
        with surviving("it counted"):
            fail()
    (note,) = failure_notes()
    assert note.startswith("Grape failed 3 times, first while it counted (KeyError")


def test_nothing_is_printed_unless_somebody_asks_for_logs() -> None:
    code = "from grape.failures import surviving\nwith surviving('it counted'): 1 / 0\n"
    for asked, shown in (("", False), ("import logging; logging.basicConfig()\n", True)):
        done = subprocess.run([sys.executable, "-c", asked + code], capture_output=True, text=True, check=True)
        assert ("ZeroDivisionError" in done.stderr) is shown and ("Traceback" in done.stderr) is shown


def test_a_failure_in_a_watched_call_is_no_effect_of_the_call() -> None:
    with EffectWatch(PositionFinder()):
        logging.getLogger("other").error("a")  # what it calls is known from then on
    watch = EffectWatch(PositionFinder())
    with watch:
        try:
            fail()
        except KeyError:
            log_failure("it counted")
    assert watch.found == []


def test_a_capture_that_fails_says_that_it_was_grape(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(attempt, "judge", fail)
    served = GraphedFunction(lambda x: (x.sin() + 1).tanh() * 2, backend=ReferenceBackend(), tolerance=0.0)
    x = torch.randn(4, 3)
    with torch.no_grad():
        for _ in range(12):
            assert torch.equal(served(x), (x.sin() + 1).tanh() * 2)
    evidence = served.evidence()
    assert evidence is not None and evidence.refused is not None
    assert evidence.refused.reason is Reason.FAILED
    assert evidence.refused.why == (
        "Grape failed while it captured this (KeyError: 'no such row'), which is no fault of the code's"
    )
    assert "in fail" in caplog.text
    served.release()
