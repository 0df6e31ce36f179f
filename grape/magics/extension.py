"""Puts Grape into a shell for ``%load_ext grape``, and takes all of it out again for ``%unload_ext grape``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from IPython.core.error import UsageError as IPythonUsageError
from IPython.core.magic import no_var_expand, output_can_be_silenced

from ..errors import GrapeError
from ..quiet import same_random_stream
from .commands import COMMANDS, run_command
from .completion import grape_matcher
from .display import show_page
from .documentation import Page, cell_help, line_help
from .history import history
from .hooks import CellHooks
from .nested import run_line, run_nested
from .open_views import close_views
from .rewriting.rewrites import rewrites
from .rewriting.taken import at_once
from .source import code_behind

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_LOADED: WeakKeyDictionary[object, ExitStack] = WeakKeyDictionary()


def load(ipython: InteractiveShell) -> None:
    """Register ``%%grape`` and ``%grape`` in this shell. Harmless where they are there already."""
    if ipython in _LOADED:
        return
    with ExitStack() as undo:
        hooks = CellHooks(ipython)
        undo.callback(_close_engine)
        undo.callback(rewrites.clear)
        undo.callback(at_once.clear)
        undo.callback(history.clear)
        undo.callback(close_views)
        _add_transformer(ipython, hooks, undo)
        _add_matcher(ipython, undo)
        _add_magics(ipython, hooks, undo)
        for event in ("pre_run_cell", "post_run_cell"):
            callback = getattr(hooks, event)
            ipython.events.register(event, callback)
            undo.callback(ipython.events.unregister, event, callback)
        undo.callback(hooks.close)
        _LOADED[ipython] = undo.pop_all()
    _preload_after_torch(ipython)


def unload(ipython: object) -> None:
    """Take everything out of this shell again and release all graphs. Harmless where nothing was loaded."""
    undo = _LOADED.pop(ipython, None)
    if undo is not None:
        undo.close()


def _preload_after_torch(ipython: InteractiveShell) -> None:
    """Once the person has imported torch, import what the first cell under Grape needs, so that it does not wait."""
    if "torch" in sys.modules:
        _preload(ipython)
        return

    def after_cell(result: object) -> None:
        if "torch" in sys.modules and ipython in _LOADED:
            ipython.events.unregister("post_run_cell", after_cell)
            _preload(ipython)

    ipython.events.register("post_run_cell", after_cell)
    _LOADED[ipython].callback(_forget, ipython, after_cell)


def _forget(ipython: InteractiveShell, callback: Callable[..., object]) -> None:
    with suppress(ValueError):  # it has unregistered itself
        ipython.events.unregister("post_run_cell", callback)


def _preload(ipython: InteractiveShell) -> None:
    """Import, and leave the person's random stream alone."""
    with same_random_stream():
        from .. import sessions

        sessions.preload()
    if ipython.display_formatter is not None:
        ipython.display_formatter.formatters  # noqa: B018 - made when something is shown first


def _close_engine() -> None:
    sessions = sys.modules.get("grape.sessions")
    if sessions is not None:
        sessions.close_engine()


def _remove(items: list[object], item: object) -> None:
    if item in items:
        items.remove(item)


def _add_transformer(shell: InteractiveShell, hooks: CellHooks, undo: ExitStack) -> None:
    transformers = shell.input_transformers_cleanup

    def grape_comment(lines: list[str]) -> list[str]:
        return hooks.transform(lines)

    # Asked whether a cell is complete, IPython leaves such a transformer out. A terminal then waits for the cell's
    # body as below any cell magic, instead of running a lonely comment.
    grape_comment.has_side_effects = True  # type: ignore[attr-defined]
    # First of all: the next one drops blank lines, which would shift the line numbers.
    transformers.insert(0, grape_comment)
    undo.callback(_remove, transformers, grape_comment)


def _add_matcher(shell: InteractiveShell, undo: ExitStack) -> None:
    matchers = shell.Completer.custom_matchers
    matchers.append(grape_matcher)
    undo.callback(_remove, matchers, grape_matcher)


def _add_magics(shell: InteractiveShell, hooks: CellHooks, undo: ExitStack) -> None:
    @no_var_expand
    def line_magic(line: str) -> object:
        code = code_behind(line, COMMANDS)
        if code is not None:
            return run_line(shell, hooks.cell, code)
        try:
            shown = run_command(line)
            if isinstance(shown, Page):
                show_page(shell, shown)
            else:
                print(shown)
        except GrapeError as error:
            message = str(error)
            raise IPythonUsageError(message if message.startswith("%grape") else f"%grape: {message}") from None
        return None

    @no_var_expand
    @output_can_be_silenced
    def cell_magic(line: str, cell: str) -> object:
        return run_nested(shell, hooks.cell, line, cell)

    # A front end's tooltip looks up the bare name and finds the line magic, also above a cell.
    line_magic.__doc__ = f"{line_help(COMMANDS.values())}\n\n{cell_help()}"
    cell_magic.__doc__ = cell_help()
    for kind, function in (("line", line_magic), ("cell", cell_magic)):
        table = shell.magics_manager.magics[kind]
        undo.callback(_restore_magic, table, function, table.get("grape"))
        table["grape"] = function


def _restore_magic(table: dict[str, object], ours: object, before: object) -> None:
    if table.get("grape") is not ours:
        return
    if before is None:
        del table["grape"]
    else:
        table["grape"] = before
