"""The widget's kernel side: what its buttons do, and when it is shown."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from grape.errors import UsageError
from grape.magics import open_views
from grape.magics import view as magics_view
from grape.magics.history import history
from grape.render import Report, build_report
from grape.render.timeline.view import build_view
from grape.widgets.report import Actions, Answer, ReportWidget
from tests.unit.sample_evidence import cell, host_sync, launch_bound, operators, region, sample, tape_cell

KEPT = "\n" * 7 + "kept = []\nfor x in xs:\n    y = f(x)\n    kept.append(y.item())\n"
"""What the host reads in line 11 may be read after the loop."""


def report() -> Report:
    evidence, findings = sample()
    return build_report(evidence, findings)


class Sent:
    """A widget and what it said to its view."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, actions: Actions | None = None) -> None:
        view = build_view(report())
        self.widget = ReportWidget(view.data, view.blob, actions)
        self.said: list[Any] = []
        monkeypatch.setattr(self.widget, "send", self.said.append)

    def ask(self, action: str, target: Any) -> Any:
        self.widget._handle_custom_msg({"request": "a-1", "action": action, "target": target}, [])
        return self.said[-1]


def test_the_model_holds_the_view_once(monkeypatch: pytest.MonkeyPatch) -> None:
    widget, view = Sent(monkeypatch).widget, build_view(report())
    assert widget.view == view.data and widget.columns == view.blob
    assert {"view", "columns", "actions", "states", "_esm", "_css"} <= set(widget.get_state())
    widget.close()


def test_apply_and_undo(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def act(word: str, applied: bool) -> Any:
        return lambda target: done.append(f"{word} {target}") or Answer(message=word, applied=applied)

    sent = Sent(
        monkeypatch, Actions(apply=act("apply", True), undo=act("undo", False), undo_region=act("region", False))
    )
    assert sent.widget.actions == ["apply", "undo", "undo_region"]
    state = {"message": "apply", "applied": True, "source": None, "replaces": None, "cell": ""}
    assert sent.ask("apply", 2) == {"request": "a-1", **state}
    assert sent.widget.states == {"fix 2": state}
    sent.ask("undo", 2)
    sent.ask("undo_region", "step")
    assert done == ["apply 2", "undo 2", "region step"]
    assert {key: state["applied"] for key, state in sent.widget.states.items()} == {
        "fix 2": False,
        "region step": False,
    }
    sent.widget.close()


def test_a_front_end_that_writes_cells_says_so_and_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(monkeypatch)
    assert not sent.widget.places
    sent.widget._handle_custom_msg({"request": "a-0", "action": "places", "target": True}, [])
    assert sent.widget.places and sent.said == [], "nobody waits for an answer"
    sent.widget.place("new()", "old()", "In[2]")
    assert sent.said == [{"place": {"source": "new()", "replaces": "old()", "cell": "In[2]"}}]
    sent.widget.close()


@pytest.mark.parametrize(
    ("error", "said"),
    [(UsageError("no fix 2"), "no fix 2"), (KeyError("x"), "KeyError: 'x'"), (ValueError("a\nb"), "ValueError: a")],
)
def test_errors_become_a_line(monkeypatch: pytest.MonkeyPatch, error: Exception, said: str) -> None:
    def fail(_: int) -> Answer:
        raise error

    sent = Sent(monkeypatch, Actions(apply=fail))
    assert sent.ask("apply", 2) == {"request": "a-1", "error": said}
    assert sent.widget.states == {}
    sent.widget.close()


@pytest.mark.parametrize("action", ["apply", "close", "_answer", "None"])
def test_only_what_was_handed_in_can_be_asked_for(monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    sent = Sent(monkeypatch, Actions(trace=lambda: "{}"))
    assert sent.ask(action, 1) == {"request": "a-1", "error": f"this view cannot {action}"}
    assert sent.ask("trace", None) == {"request": "a-1", "text": "{}"}
    sent.widget.close()


def shell(kernel: object | None = object(), cell_id: str | None = "c1") -> Any:
    metadata = {"cellId": cell_id} if cell_id else {}
    return SimpleNamespace(kernel=kernel, display_pub=object(), get_parent=lambda: {"metadata": metadata})


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> Any:
    shown: list[Any] = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    yield shown
    open_views.close_views()


def test_a_second_run_of_a_cell_closes_the_first_view(displayed: list[Any]) -> None:
    for _ in range(2):
        magics_view.show_view(shell(), report())
    magics_view.show_view(shell(cell_id="c2"), report())
    first, second, other = displayed
    assert [widget.comm is None for widget in (first, second, other)] == [True, False, False]
    open_views.close_views()
    assert second.comm is None and other.comm is None


def test_no_kernel_nothing_to_draw_no_anywidget(displayed: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    magics_view.show_view(shell(kernel=None), report())
    magics_view.show_view(shell(), build_report(cell(region(before=None, after=None)), []))
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "grape.widgets.report")
        patch.setitem(sys.modules, "anywidget", None)
        magics_view.show_view(shell(), report())
    assert displayed == []
    magics_view.show_view(shell(), report())
    assert len(displayed) == 1


def test_findings_alone_are_a_view_where_a_rewrite_may_be_asked_for(displayed: list[Any]) -> None:
    magics_view.show_view(shell(), build_report(tape_cell(trace=operators()), [launch_bound()]))
    assert displayed == []
    magics_view.show_view(shell(), build_report(tape_cell(trace=operators()), [replace(host_sync(), fix=None)]))
    assert displayed == [], "its source has none"
    magics_view.show_view(shell(), build_report(tape_cell(trace=operators(), source=KEPT), [host_sync()]))
    assert len(displayed) == 1


def test_a_run_with_nothing_to_draw_closes_the_view_of_the_last(displayed: list[Any]) -> None:
    magics_view.show_view(shell(), report())
    magics_view.show_view(shell(), build_report(cell(), []))
    assert len(displayed) == 1 and displayed[0].comm is None and not open_views.OPEN


def test_buttons_of_a_shown_view(displayed: list[Any]) -> None:
    magics_view.show_view(shell(), report())
    (widget,) = displayed
    assert {"undo_region", "trace", "page", "runs"} <= set(widget.actions)
    actions = widget._actions
    history.clear()
    history.add(report(), "%%grape\nx = 1\n", None)
    (row,) = actions.runs()
    assert (row["number"], row["verdict"], row["changes"]) == (1, report().verdict, ())
    assert actions.page().startswith("<!doctype html>")
    with pytest.raises(UsageError, match="no region elsewhere in this report"):
        actions.undo_region("elsewhere")


def test_rewrites_are_made_at_a_click(monkeypatch: pytest.MonkeyPatch) -> None:
    evidence, findings = sample()
    evidence = replace(evidence, source=KEPT)
    unread = tuple(replace(finding, fix=None) for finding in findings)
    asked: list[int] = []
    made = build_report(evidence, unread, lambda: asked.append(1) or findings)
    view = build_view(made)
    assert [one["offered"] for one in view.data["findings"]] == [finding.code == "GR101" for finding in findings]
    widget = ReportWidget(view.data, view.blob, magics_view._actions(made))
    said: list[Any] = []
    monkeypatch.setattr(widget, "send", said.append)
    assert asked == [] and "fixes" in widget.actions
    widget._handle_custom_msg({"request": "a-1", "action": "fixes", "target": None}, [])
    shown = widget.view["findings"]
    assert [one["fix"] for one in shown] == [one["fix"] for one in build_view(report()).data["findings"]]
    assert asked == [1] and said == [{"request": "a-1", "message": ""}]
    assert not any(one["offered"] for one in shown)
    widget.close()


def test_a_view_without_its_timelines_says_that_they_come() -> None:
    whole, early = build_view(report()), build_view(report(), limit=0)
    assert (whole.data["coming"], early.data["coming"]) == (False, True)
    assert early.data["timelines"] == [] and len(early.blob) < len(whole.blob)
    assert early.data["findings"] == whole.data["findings"]
    nothing = build_report(cell(region(before=None, after=None)), [])
    assert not build_view(nothing, limit=0).data["coming"]
    widget = ReportWidget(early.data, early.blob)
    widget.show(whole.data, whole.blob)
    assert widget.view == whole.data and widget.columns == whole.blob
    widget.close()
    widget.show(early.data, early.blob)
    assert widget.view == whole.data, "its output is gone"
