"""A cell that runs under Grape, as its session is told of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .gains import TakenFixes
from .past.history import CellKey, Mode

if TYPE_CHECKING:
    from ..rewrite.at_once import RewrittenCell

IN_THE_NOTEBOOK = "; %grape diff shows how, %grape undo takes it back"
"""The end of a note that speaks to somebody in the notebook."""
NESTED = "a Grape session is already open, by %%grape or grape.session; take one of them away, they do not nest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell that runs: the name to show ("In[4]"), the source as written, and the file name it is compiled under."""

    name: str
    source: str
    filename: str
    id: str | None = None
    """The front end's name for the cell, also after it was edited."""
    rewritten: RewrittenCell | None = None
    """The source that runs in the place of `source`, with the lines of `source`."""
    taken: tuple[TakenFixes, ...] = ()
    """Fixes that the person has taken so far, in this cell or in others."""
    mode: Mode = "watch"
    """How much attention it gets; see `history`."""
    key: CellKey | None = None
    """Under which its history is kept; None where it has none."""
    line: int = 0
    """Of a `with` block: where it stands in `source`, which is the whole file."""
    ahead_ms: float = 0.0
    """Milliseconds that Grape took of it before its first statement."""
    since: float | None = None
    """When the person began to wait, by `time.perf_counter`; None: when the session opens."""

    @property
    def place(self) -> CellKey | tuple[str, int]:
        """What its runs are counted under."""
        return self.key or (self.source, self.line)

    def may_run_again(self, names: Callable[[str], str] | None) -> bool:
        """True for a cell of a notebook, which has `names` of its files: fixes are compared on copies. No script is run
        again, and no function around a `with` block.
        """
        return names is not None and not self.line

    def names(self, others: Callable[[str], str] | None) -> Callable[[str], str]:
        """Gives the name to show of a file that code is compiled from; `others` gives those of other files."""

        def shown(filename: str) -> str:
            if filename == self.filename:
                return self.name
            return others(filename) if others is not None else filename

        return shown

    @property
    def rewritten_notes(self) -> tuple[str, ...]:
        """What the report says of the source that ran in the place of the one that was written."""
        return () if self.rewritten is None else (f"the cell ran rewritten: {self.rewritten}{IN_THE_NOTEBOOK}",)
