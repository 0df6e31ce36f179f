"""How a cell under ``%%grape`` runs: IPython runs it, once, as any other cell; Grape looks on from hooks.

`pre_run_cell` decides from what was typed, `run_code` is wrapped for the time of the cell to see its top-level
statements, `post_run_cell` ends it. IPython calls `post_run_cell` for every way a cell can end, interrupts and
cancelled coroutines included; should it ever be missed, the next `pre_run_cell` ends the cell that was left open.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from traceback import walk_stack
from types import CodeType
from typing import TYPE_CHECKING

from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell

from ..errors import UsageError
from ..options import engine_named, parse_options
from .cell import (
    EMPTY,
    GrapeCell,
    begin_plain_cell,
    end_interrupt,
    end_plain_cell,
    hold_off_interrupts,
    let_interrupt_come,
    release_abandoned,
)
from .commands import COMMANDS
from .display import say
from .documentation import cell_help
from .patches import replace_method
from .source import comment_out, find_magic, lone_line, wants_help

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def inside_running_cell() -> bool:
    """True where a cell's code is on this thread's stack: then what IPython is asked to run or transform is nested."""
    return any(frame.f_code is InteractiveShell.run_code.__code__ for frame, _ in walk_stack(sys._getframe(1)))


class CellHooks:
    """The input transformer and the event callbacks of one shell, and the cell that is open now."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._cell: GrapeCell | None = None
        self._restore: Callable[[], None] | None = None
        self._served: int | None = None
        """The thread of the cell without Grape that streams serve now."""

    @property
    def cell(self) -> GrapeCell | None:
        """The cell that is open now."""
        return self._cell

    def transform(self, lines: list[str]) -> list[str]:
        """For `input_transformers_cleanup`. Nested code (a cell magic's body) keeps ``%%grape`` as a cell magic, and a
        line with ``%grape`` among others stays a line magic.
        """
        if inside_running_cell():
            return lines
        if find_magic(lines) is not None:
            return comment_out(lines)
        code = lone_line(lines, COMMANDS)
        return lines if code is None else [f"{code}\n"]

    def pre_run_cell(self, info: ExecutionInfo) -> None:
        if inside_running_cell():
            return
        hold_off_interrupts()
        if self._cell is not None and self._is_stale(self._cell):
            self._finish(None)
        self._end_plain()
        source = info.raw_cell or ""
        lines = source.splitlines(keepends=True)
        magic, code = find_magic(lines), lone_line(lines, COMMANDS)
        if code is None and (magic is None or magic.is_help_over_code):
            if self._cell is None and begin_plain_cell():
                self._served = threading.get_ident()
        elif magic is not None and wants_help(magic.options):
            print(cell_help())
        elif magic is not None and magic.body_is_blank:
            say(EMPTY)
        elif self._cell is not None:
            say("%%grape: another thread runs a cell under Grape; this cell runs without it")
        else:
            self._begin(code or source, magic.options if magic is not None else "", info)

    def post_run_cell(self, result: ExecutionResult | None) -> None:
        """`result` is None where IPython could not finish the cell; the exception is then on its way."""
        cell = self._cell
        if not inside_running_cell():
            self._end_plain()
        if cell is None and not inside_running_cell():
            release_abandoned(self._shell)
            end_interrupt()
        if cell is None or cell.thread != threading.get_ident():
            return
        if result is None:
            ended = not inside_running_cell()
            error = sys.exception()
        else:
            ended = result.info is cell.info or not inside_running_cell()
            error = result.error_in_exec or result.error_before_exec
        if ended:
            self._finish(error)

    def close(self) -> None:
        """End a cell that is still open, as when the extension is unloaded inside it."""
        self._end_plain()
        self._finish(None)

    def _begin(self, source: str, options: str, info: object) -> None:
        try:
            parsed = parse_options(options)
            engine_named(parsed.engine)
        except UsageError as error:
            say(f"UsageError: %%grape: {error} (the cell runs without Grape)")
            return
        self._cell = cell = GrapeCell(self._shell, source=source, options=parsed, info=info)
        cell.rewrite()
        self._restore = replace_method(self._shell, "run_code", self._watch_statements(cell))

    def _finish(self, error: BaseException | None) -> None:
        cell, self._cell = self._cell, None
        restore, self._restore = self._restore, None
        if restore is not None:
            restore()
        if cell is not None:
            cell.finish(error)
            end_interrupt()

    def _end_plain(self) -> None:
        if self._served == threading.get_ident():
            self._served = None
            end_plain_cell()

    def _is_stale(self, cell: GrapeCell) -> bool:
        here = threading.get_ident()
        return cell.thread == here or all(thread.ident != cell.thread for thread in threading.enumerate())

    def _watch_statements(self, cell: GrapeCell) -> Callable[..., object]:
        original: Callable[..., object] = self._shell.run_code

        def run_code(code_obj: CodeType, result: ExecutionResult | None = None, *, async_: bool = False) -> object:
            """Gives what is to be awaited, and is no frame below the statement while that runs."""
            if self._cell is cell and result is not None and result.info is cell.info:
                try:
                    cell.before_statement(code_obj.co_filename, code_obj)
                    let_interrupt_come()
                except BaseException as interrupt:
                    # Ctrl-C reached Grape instead of the statement: it ends the cell as it would have in there.
                    result.error_in_exec = interrupt
                    self._shell.showtraceback((type(interrupt), interrupt, None))
                    return _ended()
            return original(code_obj, result, async_=async_)

        return run_code


async def _ended() -> bool:
    """The result of `run_code` where a statement failed."""
    return True
