"""Compiles cells with their loops outlined, and knows every loop and run by its source and position."""

from __future__ import annotations

import ast
import linecache
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from ..model import Position
from ..rewrite.outlining import LOOP, Outlined, outline_loops
from ..runtime import Interceptor, Region, RegionContext
from ..runtime.dispatch.candidates import candidates, compiles, last_line
from ..runtime.dispatch.trampoline import note_rewritten, written_code
from .code import compile_quietly, on_code, with_objects
from .functions import loops_in, outlined_function
from .loop import OBSERVED, Loop
from .run import Run

_Key = tuple[str, str]
"""Of a loop: the file name where it stands in a function, and its source."""


class Outliner:
    """Of one process. Runs found again in a cell that runs again have the regions that they had."""

    def __init__(self, context: RegionContext, interceptor: Interceptor, name_of: Callable[[str], str]) -> None:
        self.context = context
        self.interceptor = interceptor
        self.name_of = name_of
        self._loops: dict[_Key, Loop] = {}
        self._codes: dict[tuple[types.CodeType, str], types.CodeType | None] = {}
        self._functions: weakref.WeakKeyDictionary[types.FunctionType, tuple[types.CodeType, types.CodeType]]
        self._functions = weakref.WeakKeyDictionary()
        self._begun: dict[str, set[_Key]] = {}
        """Loops of a cell that were compiled since it began, by its file name."""
        self._cells: dict[str, set[_Key]] = {}
        """Loops of a cell when it last ran, by the name that it keeps when it is edited."""
        self._withdrawn = False

    def compile(
        self, tree: ast.Module | ast.Interactive, filename: str, mode: str, flags: int, namespace: dict[str, object]
    ) -> types.CodeType | None:
        """The code of these statements with their loops outlined; None where there is nothing to outline.

        The code is to run in `namespace`, as globals and locals.
        """
        outlined = outline_loops(tree.body)
        if outlined is None:
            return None
        new: ast.Module | ast.Interactive
        new = (
            ast.Module(list(outlined.body), [])
            if isinstance(tree, ast.Module)
            else ast.Interactive(list(outlined.body))
        )
        code = compile_quietly(ast.fix_missing_locations(new), filename, mode, flags)
        find = self._objects(outlined, namespace, filename, flags, "".join(linecache.getlines(filename)))
        return with_objects(code, find)

    def adopt(self, namespace: Mapping[str, object]) -> None:
        """Give the person's functions in `namespace` code whose loops are outlined, where their source is at hand."""
        if compiles(namespace):
            return
        if self._withdrawn:
            self._withdrawn = False
            for loop in self._loops.values():
                loop.go_on()
        for loop in self._loops.values():
            if loop.asleep and self.context.observing:
                loop.go_on()
            if any(run.source.local is not None for run in loop.runs):  # a cell's own begin with each run of the cell
                loop.look_again()
        for function in candidates(namespace):
            code = function.__code__
            if function in self._functions or written_code(function) is not code or code.co_freevars:
                continue
            outlined = self._outlined(function)
            if outlined is not None and (self.context.observing or any(loop.replays for loop in loops_in(outlined))):
                self._functions[function] = code, outlined
                function.__code__ = outlined
                for look in on_code:
                    look(outlined)

    def settle(self) -> None:
        """The cell is over: functions whose loops replay nothing get their own code back."""
        for function, (code, outlined) in list(self._functions.items()):
            if not any(loop.replays for loop in loops_in(outlined)):
                self._give_back(function, code, outlined)

    def withdraw(self) -> None:
        """The rest of the cell runs as written: no loop goes through Grape, no function has other code."""
        for function, held in list(self._functions.items()):
            self._give_back(function, *held)
        for loop in self._loops.values():
            loop.stop()
        self._withdrawn = True

    def forget(self) -> None:
        """Give every function its own code back and forget every loop."""
        for function, held in list(self._functions.items()):
            self._give_back(function, *held)
        for loop in self._loops.values():
            for run in loop.runs:
                run.forget()
        self._loops.clear()
        self._codes.clear()
        self._begun.clear()
        self._cells.clear()

    def end_cell(self, cell: str | None, filename: str, *, finished: bool) -> None:
        """A cell has ended. Loops that it had before it was edited are forgotten, with their graphs.

        `cell` is what the front end calls it, which stays when it is edited; None where there is no such name.
        `finished`: it came to its end, so that each of its loops was compiled.
        """
        begun = self._begun.pop(filename, set())
        if cell is None:
            return
        before = self._cells.get(cell, set())
        self._cells[cell] = begun if finished else begun | before
        kept = set().union(*self._cells.values())
        for key in before - kept:
            self._drop(key)

    def release_abandoned(self, namespace: Mapping[str, object]) -> None:
        """Forget the loops of functions that the person has let go of, unless the last cell still ran them."""
        held = {outlined for _, outlined in self._functions.values()}
        defined = {written_code(function) for function in candidates(namespace)}
        for (code, filename), outlined in list(self._codes.items()):
            if outlined is None or outlined in held or code in defined:
                continue
            loops = {id(loop) for loop in loops_in(outlined)}
            if all(loop.is_idle for loop in loops_in(outlined)):
                del self._codes[code, filename]
                for key in [key for key, loop in self._loops.items() if id(loop) in loops]:
                    self._drop(key)

    def _drop(self, key: _Key) -> None:
        loop = self._loops.pop(key, None)
        for run in loop.runs if loop is not None else ():
            run.drop_regions()
            run.forget()

    def _give_back(self, function: types.FunctionType, code: types.CodeType, outlined: types.CodeType) -> None:
        if function.__code__ is outlined:  # else somebody has given it other code, or a trampoline holds it
            function.__code__ = code
            self._functions.pop(function, None)

    def _outlined(self, function: types.FunctionType) -> types.CodeType | None:
        code = function.__code__
        key = (code, code.co_filename)
        if key not in self._codes:
            made = outlined_function(code)
            if made is not None:
                outlined, new, flags, cell = made
                new = with_objects(new, self._objects(outlined, function.__globals__, code.co_filename, flags, cell))
                note_rewritten(new, code)
                self._codes[key] = new
            else:
                self._codes[key] = None
        return self._codes[key]

    def _objects(
        self, outlined: Outlined, namespace: dict[str, object], filename: str, flags: int, cell: str
    ) -> Callable[[str, int], object]:
        """Finds the loops and runs of `outlined`, known from before or new, by their numbers."""
        loops: list[Loop] = []
        runs: dict[int, Run] = {}
        for source in outlined.loops:
            key = filename if source.local else "", source.key
            if not source.local:
                self._begun.setdefault(filename, set()).add(key)
            loop = self._loops.get(key)
            if loop is None:
                loop = self._loops[key] = Loop(self._may_start, self.at_work)
                loop.runs = [Run(self, outlined.runs[number]) for number in source.runs]
            loop.begin(namespace, filename, flags, cell)
            loops.append(loop)
            runs.update(zip(source.runs, loop.runs, strict=True))
        return lambda kind, number: loops[number] if kind == LOOP else runs[number]

    def is_alone(self, run: object) -> bool:
        """True for the only run of its loop."""
        return all(len(loop.runs) == 1 for loop in self._loops.values() if run in loop.runs)

    def is_apart(self, at: Position) -> bool:
        """True where a statement of a loop there runs as written because a region was refused for it."""
        return any(run.is_apart(at) for loop in self._loops.values() for run in loop.runs)

    def at_work(self) -> AbstractContextManager[None]:
        """Around what Grape does for a loop between the person's statements: its time is Grape's."""
        return self.context.attention.spend("observe") if self.in_charge else nullcontext()

    @property
    def in_charge(self) -> bool:
        """True where this thread is the one that meets Grape, and Grape may serve it."""
        return self.interceptor.serves

    def _may_start(self, loop: Loop) -> bool:
        if self.interceptor.withdrawn or not self.interceptor.serves:
            return False
        if self.context.observing or loop.replays:
            return True
        loop.sleep()
        return False

    def replays(self, callables: Sequence[object]) -> bool:
        """True where one of these modules or functions is a region that replays graphs."""
        codes = [written_code(value) for value in callables if isinstance(value, types.FunctionType)]
        return any(
            any(region.root is value for value in callables) or getattr(region.root, "__code__", None) in codes
            for region in self.interceptor.regions
            if region.entries and region not in self.interceptor.outlined
        )

    def covers(self, region: Region) -> bool:
        """True if a region was only called while a loop around it was looked at, and is part of the loop's region."""
        at = region.at
        return (
            region.calls_in_run <= OBSERVED
            and not region.replays_in_run
            and region not in self.interceptor.outlined
            and any(
                loop.at.file == at.file and loop.at.line <= at.line <= (loop.end_line or loop.at.line)
                for loop in self.interceptor.outlined
                if loop.calls_in_run > OBSERVED and loop.refused is None and loop is not region
            )
        )

    def holds(self, code: types.CodeType, at: Position) -> bool:
        """True where a position lies in this code."""
        return self.name_of(code.co_filename) == at.file and code.co_firstlineno <= at.line <= last_line(code)
