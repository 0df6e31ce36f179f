"""The cells of this process that ran rewritten, and the rewrites that the next run of a cell may begin with."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ...render.units import shown_diff
from ...rewrite import split_magic, unified_diff
from .at_once import Left, Ran, restore_functions

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from ...fixing.at_once import Offers
    from ...render import Report
    from ...rewrite.at_once import RewrittenCell

MOST_REPORTS = 16
"""Cells whose rewrites may still be asked for."""


class AtOnce:
    """``%grape reset`` and unloading forget everything."""

    def __init__(self) -> None:
        self._ran: list[Ran] = []
        self._offers: Offers | None = None
        self._reports: dict[str, tuple[str, Report]] = {}
        """The last report of each cell, by the text below the magic, with its source: until its fixes are asked for."""
        self.left: dict[str, Left] = {}
        """Objects that rewritten cells left under names of their own, also after `clear`: their functions still use it.
        """

    def __len__(self) -> int:
        return len(self._ran)

    def clear(self) -> None:
        self._ran.clear()
        self._reports.clear()
        self._offers = None

    def learn(self, source: str, report: Report) -> None:
        """Keep `report`, whose fixes may be asked for when the cell with this source runs with --rewrite."""
        if not any(finding.fixable for finding in report.findings) or report.evidence.error is not None:
            return
        body = _body(source)
        self._reports.pop(body, None)
        self._reports[body] = source, report
        while len(self._reports) > MOST_REPORTS:
            del self._reports[next(iter(self._reports))]

    def rewritten(self, source: str, file: str) -> RewrittenCell | None:
        """The source that the cell `file` runs instead of `source`; None where nothing is known, or all of it is
        refused.
        """
        from ...fixing.at_once import Offers, rewritten_cell
        from ...sessions.past.told import sources

        ran: dict[str, tuple[str, str]] = {}
        """By what stands in a cell: one that ran many times counts once, in the place of its first run."""
        for name, text in sources(lambda name: name):
            ran[_body(text.removeprefix("# "))] = name, text  # the magic is a comment in what IPython keeps
        ran.pop(_body(source), None)
        others = list(ran.values())
        known = self._reports.pop(_body(source), None)
        self._offers = self._offers or Offers()
        if known is not None:
            written, report = known
            self._offers.learn(written, report.with_fixes().findings, report.evidence.file)
        offered = self._offers.of(source)
        return rewritten_cell(source, file, offered, others=others)

    def remember(self, ran: Ran) -> None:
        self._ran = [one for one in self._ran if one.filename != ran.filename] + [ran]

    def status(self, first: int) -> list[str]:
        """One line per cell that ran rewritten, numbered from `first`."""
        return [f"{number:>3} {_told(ran)}" for number, ran in enumerate(self._ran, start=first)]

    def diffs(self, file: str) -> list[str]:
        """The differences with which the cell `file` ran."""
        return [
            f"{_told(ran)}\n{shown_diff(unified_diff(ran.source, ran.rewritten.source, file))}".rstrip()
            for ran in self._ran
            if ran.file == file
        ]

    def undo(self, index: int, shell: InteractiveShell | None) -> str:
        """Give the functions of the cell at `index`, counted from 0 as in `status`, the code that was typed."""
        ran = self._ran.pop(index)
        sessions = sys.modules.get("grape.sessions")
        if sessions is not None:
            sessions.engine().undo(None)  # a function with graphs holds other code meanwhile
        names = restore_functions(ran, shell.user_ns if shell is not None else {})
        functions = (
            f"; {', '.join(names)} {'has' if len(names) == 1 else 'have'} the code that you typed" if names else ""
        )
        return f"undone: {_told(ran)}{functions}; without --rewrite the cell runs as written"

    def undo_all(self, shell: InteractiveShell | None) -> list[str]:
        return [self.undo(0, shell) for _ in range(len(self._ran))]


def _body(source: str) -> str:
    """A cell's source, whatever its line of magic says."""
    return split_magic(source)[1].strip()


def _told(ran: Ran) -> str:
    return f"{ran.file} ran rewritten: {ran.rewritten}"


at_once = AtOnce()
"""Of this process."""
