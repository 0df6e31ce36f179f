"""The report widget: the view of one report, whose buttons act in this kernel.

Import this module only where anywidget is installed. What the buttons do is handed in by whoever makes the widget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anywidget
import traitlets

from ..errors import GrapeError
from ..failures import log_failure, said
from .assets import STYLE, script


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of an action: a line for the person, and whether what the button names is applied now.

    `source` is what the cell `cell` is to hold now, where it held `replaces`: the front end puts it there if it can, a
    kernel cannot. `others` are the ids of further fixes of which the same holds now.
    """

    message: str
    applied: bool
    source: str | None = None
    replaces: str | None = None
    cell: str = ""
    others: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """The actions of the view's buttons; a button whose action is None is not shown. Errors are `GrapeError`s.

    `apply` takes the id of a fix, `undo` the id of a fix, `undo_region` the name of a region; `trace` and `page` return
    the text of the Chrome trace and of the HTML page to download.
    """

    apply: Callable[[int], Answer] | None = None
    undo: Callable[[int], Answer] | None = None
    undo_region: Callable[[str], Answer] | None = None
    trace: Callable[[], str] | None = None
    page: Callable[[], str] | None = None
    fixes: Callable[[], list[dict[str, object]]] | None = None
    """Gives the view's findings anew, with the rewrites that nobody had asked for."""
    runs: Callable[[], list[dict[str, object]]] | None = None
    """Gives a row for each run of this notebook so far."""

    def names(self) -> list[str]:
        known = ("apply", "undo", "undo_region", "trace", "page", "fixes", "runs")
        return [name for name in known if getattr(self, name) is not None]


class ReportWidget(anywidget.AnyWidget):
    """Shows one `grape.render.timeline.view.View`, given as its two parts. `close` takes it out of the
    kernel and the page.

    `states` says what the buttons did so far: target (``fix 2``, ``region step``) to message and state, so that every
    copy of the view, and a view opened later, shows the same.
    """

    _esm = script()
    _css = STYLE
    view = traitlets.Dict().tag(sync=True)
    columns = traitlets.Bytes().tag(sync=True)
    actions = traitlets.List(traitlets.Unicode()).tag(sync=True)
    states = traitlets.Dict().tag(sync=True)

    def __init__(self, view: Mapping[str, object], columns: bytes, actions: Actions | None = None) -> None:
        self._actions = actions or Actions()
        self.places = False
        """True once a front end has said that it can write into the notebook's cells."""
        super().__init__(view=dict(view), columns=columns, actions=self._actions.names())
        self.on_msg(self._answer)

    def show(self, view: Mapping[str, object], columns: bytes) -> None:
        """Have another view shown in the place of this one, once what it takes time for is there."""
        if self.comm is not None:
            with self.hold_sync():
                self.columns = columns
                self.view = dict(view)

    def place(self, source: str, replaces: str, cell: str) -> None:
        """Have the front end put `source` into the cell `cell`, where it holds `replaces`."""
        self.send({"place": {"source": source, "replaces": replaces, "cell": cell}})

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """As any widget, but what a front end without widgets shows is a line that a person understands."""
        shown = super()._repr_mimebundle_(**options)
        bundle = shown[0] if isinstance(shown, tuple) else shown
        if bundle:
            bundle["text/plain"] = "Grape: timelines and memory, shown by front ends with Jupyter widgets"
        return shown

    def _answer(self, _: object, content: Mapping[str, object], buffers: object) -> None:
        """A message of the view: {"request": number, "action": name, "target": its argument}."""
        request, action, target = content.get("request"), content.get("action"), content.get("target")
        if action == "places":
            self.places = bool(target)
            return
        try:
            reply = self._perform(str(action), target)
        except GrapeError as error:
            reply = {"error": str(error)}
        except Exception as error:  # a button must not print a traceback into some cell
            log_failure(f"it did what a button asks for ({action})")
            reply = {"error": said(error)}
        self.send({"request": request, **reply})

    def _perform(self, action: str, target: Any) -> dict[str, object]:
        if action not in self._actions.names():
            return {"error": f"this view cannot {action}"}
        if action in ("trace", "page"):
            return {"text": getattr(self._actions, action)()}
        if action == "runs":
            assert self._actions.runs is not None
            return {"runs": self._actions.runs()}
        if action == "fixes":
            assert self._actions.fixes is not None
            findings = self._actions.fixes()
            self.view = {**self.view, "findings": findings}
            return {"message": "" if any(one["fix"] for one in findings) else "there is no rewrite"}
        kind, argument = ("region", str(target)) if action == "undo_region" else ("fix", int(target))
        answer: Answer = getattr(self._actions, action)(argument)
        state = {
            "message": answer.message,
            "applied": answer.applied,
            "source": answer.source,
            "replaces": answer.replaces,
            "cell": answer.cell,
        }
        others = {f"fix {fix}": {**state, "source": None} for fix in answer.others}
        self.states = {**self.states, **others, f"{kind} {argument}": state}
        return state
