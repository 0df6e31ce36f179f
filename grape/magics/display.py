"""The output of one cell under Grape: its progress while it runs, and its report below what the cell itself shows."""

from __future__ import annotations

import contextlib
import html
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from IPython.core.displaypub import DisplayPublisher
from IPython.display import DisplayHandle, display

from ..originals import monotonic
from .patches import replace_method
from .view import show_view

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from ..render import Report

SECONDS_BETWEEN_UPDATES = 0.1
SECONDS_BEFORE_PROGRESS = 1.0
"""Nobody reads what a shorter cell is at, and an output that was shown once cannot be taken back, only emptied."""


def say(message: str) -> None:
    """One line for the person, on stderr as IPython's own usage errors are."""
    print(message, file=sys.stderr)


def show_page(shell: InteractiveShell, text: str) -> None:
    """Markdown, which a front end renders; in a terminal as it is."""
    if type(shell.display_pub) is DisplayPublisher:
        print(text)
    else:
        display({"text/markdown": text, "text/plain": text}, raw=True)


class _Bundle:
    """Ready-made representations, by MIME type."""

    def __init__(self, **representations: str) -> None:
        self._bundle = {mime.replace("_", "/"): text for mime, text in representations.items()}

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self._bundle


def _progress(text: str) -> _Bundle:
    return _Bundle(text_plain=f"Grape: {text}", text_html=f"<div style='opacity: 0.7'>Grape: {html.escape(text)}</div>")


def _folded(report: Report) -> _Bundle:
    line = f"Grape: {report.verdict}"
    return _Bundle(
        text_plain=f"{line} (the whole report: import grape; print(grape.last))",
        text_html=f"<details><summary>{html.escape(line)}</summary>{report.to_html()}</details>",
    )


def _brief(report: Report) -> _Bundle:
    """Of a cell that is not looked at any more: in a terminal its report was shown, and to set it again takes longer
    than some cells.
    """
    from ..render.units import clean

    notes = (f"note: {note}" for note in report.evidence.notes)
    lines = [report.verdict, *notes, "the whole report: import grape; print(grape.last)"]
    return _Bundle(text_plain="\n".join(map(clean, lines)), text_html=report.to_html())


def _unfolded(report: Report) -> _Bundle:
    """In a terminal nothing folds: what is folded in a notebook is left to ``print(grape.last)``."""
    return _Bundle(text_plain=report.to_text(details=False), text_html=report.to_html())


def _sent(publisher: DisplayPublisher) -> int | None:
    """How many messages the kernel has sent; None where that cannot be told, or where something may hold them back."""
    session = getattr(publisher, "session", None)
    count = getattr(session, "message_count", None)
    return count if isinstance(count, int) and not getattr(publisher, "_hooks", None) else None


class CellDisplay:
    """The one display of a cell. It never goes through the displayhook, so that ``Out`` and ``_`` are the person's.

    A front end that cannot replace an output (a terminal) shows no progress, nor does a cell that is soon over. Where
    the cell clears its output, the place of the progress is gone: no more progress then. Where the cell has shown
    nothing since, the report takes the place of the progress, so that no empty output is saved with the notebook.
    """

    def __init__(self, shell: InteractiveShell, *, clock: Callable[[], float] = monotonic) -> None:
        self._shell = shell
        self._clock = clock
        # IPython's own class prints; those of the front ends send messages, which can be replaced.
        self._silent = type(shell.display_pub) is DisplayPublisher
        self._handle: DisplayHandle | None = None
        self._last: int | None = None
        """Messages sent, when the progress was the last one of them; None where it was not sent."""
        self._updated_at = clock() + SECONDS_BEFORE_PROGRESS - SECONDS_BETWEEN_UPDATES
        self._restore = replace_method(shell.display_pub, "clear_output", self._watch_clear(shell.display_pub))

    def progress(self, text: str) -> None:
        """Show `text`, once the cell takes so long that somebody waits, and then at most ten times a second."""
        now = self._clock()
        if self._silent or now - self._updated_at < SECONDS_BETWEEN_UPDATES:
            return
        self._updated_at = now
        self._show(_progress(text))

    def finish(self, report: Report, error: BaseException | None, *, brief: bool = False) -> None:
        """The report, below all else, and no progress any more; folded into one line where the cell raised, a few lines
        of text where it is `brief`.
        """
        if error is not None:
            shown: object = _folded(report)
        else:
            alone = report.evidence.ranks is None  # else its table is another at each run
            shown = _brief(report) if brief and alone else _unfolded(report)
        if self._handle is not None and self._is_last():
            self._handle.update(shown)
            self._handle = None
            return
        self._take_back()
        display(shown)

    def widget(self, report: Report) -> None:
        """The interactive view, a second output below the report; nothing where it cannot be shown."""
        show_view(self._shell, report)

    @property
    def unfinished(self) -> bool:
        """True where progress stands there that nothing has replaced yet."""
        return self._handle is not None

    def withdraw(self, why: str) -> None:
        """There will be no report: say why, and leave no unfinished progress behind."""
        self._silent = True
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.update(_progress(why))
        else:
            say(f"Grape: {why}")

    def close(self) -> None:
        self._silent = True
        self._restore()

    def _show(self, shown: object) -> None:
        still_last = self._handle is None or self._is_last()
        before = _sent(self._shell.display_pub)
        if self._handle is not None:
            self._handle.update(shown)
        else:
            self._handle = display(shown, display_id=True)
        after = _sent(self._shell.display_pub)
        self._last = after if still_last and after != before else None

    def _is_last(self) -> bool:
        """True where the progress is the last output of the cell for sure."""
        with contextlib.suppress(Exception):  # the person's own streams
            sys.stdout.flush()
            sys.stderr.flush()
        return self._last is not None and _sent(self._shell.display_pub) == self._last

    def _take_back(self) -> None:
        """Leave nothing of the progress, which stands above what the cell has shown since."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.update(_Bundle(text_plain="", text_html=""))

    def _watch_clear(self, publisher: DisplayPublisher) -> Callable[..., object]:
        original: Callable[..., object] = publisher.clear_output

        def clear_output(*args: object, **kwargs: object) -> object:
            self._handle = None
            self._silent = True
            return original(*args, **kwargs)

        return clear_output
