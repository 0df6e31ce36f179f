"""Compiles cells with their loops hoisted, and knows every loop and run by its source and position."""

from __future__ import annotations

import ast
import linecache
import types
from collections.abc import Callable, Sequence
from typing import Any

from ..model import Position
from ..rewrite.hoisting import LOOP, LoopSource, RunSource, hoist_loops
from ..runtime import Interceptor, Situation
from ..runtime.intercept import last_line
from ..runtime.trampoline import written_code
from .code import compile_quietly, with_objects
from .loop import Loop
from .run import Run

__all__ = ["Hoister"]


class Hoister:
    """Of one process. Runs found again in a cell that runs again have the regions that they had."""

    def __init__(self, situation: Situation, interceptor: Interceptor, name_of: Callable[[str], str]) -> None:
        self.situation = situation
        self.interceptor = interceptor
        self.name_of = name_of
        self.namespace: dict[str, Any] = {}
        self._loops: dict[str, Loop] = {}

    def compile(
        self, tree: ast.Module | ast.Interactive, filename: str, mode: str, flags: int, namespace: dict[str, Any]
    ) -> types.CodeType | None:
        """The code of these statements with their loops hoisted; None where there is nothing to hoist.

        The code is to run in `namespace`, as globals and locals.
        """
        hoisted = hoist_loops(tree.body)
        if hoisted is None:
            return None
        new: ast.Module | ast.Interactive
        new = (
            ast.Module(list(hoisted.body), []) if isinstance(tree, ast.Module) else ast.Interactive(list(hoisted.body))
        )
        code = compile_quietly(ast.fix_missing_locations(new), filename, mode, flags)
        self.namespace = namespace
        cell = "".join(linecache.getlines(filename))
        loops = [self._loop(source, hoisted.runs) for source in hoisted.loops]
        runs: dict[int, Run] = {}
        for source, loop in zip(hoisted.loops, loops, strict=True):
            loop.begin(cell)
            for number, run in zip(source.runs, loop.runs, strict=True):
                run.begin(filename, flags)
                runs[number] = run
        return with_objects(code, lambda kind, number: loops[number] if kind == LOOP else runs[number])

    def _loop(self, source: LoopSource, runs: Sequence[RunSource]) -> Loop:
        loop = self._loops.get(source.key)
        if loop is None:
            loop = self._loops[source.key] = Loop(self._may_start)
            loop.runs = [Run(self, runs[number]) for number in source.runs]
        return loop

    def forget(self) -> None:
        """Forget every loop: the next cell starts anew."""
        for loop in self._loops.values():
            for run in loop.runs:
                run.live, run.given_up, run.parts = False, True, []
        self._loops.clear()
        self.namespace = {}

    def runs_of(self, run: Run) -> list[Run]:
        """The runs of the loop that `run` belongs to."""
        return next((loop.runs for loop in self._loops.values() if run in loop.runs), [run])

    @property
    def in_charge(self) -> bool:
        """Whether this thread is the one that meets Grape."""
        return self.interceptor.is_here

    def _may_start(self) -> bool:
        return self.situation.observing and self.interceptor.is_here

    def replays(self, callables: Sequence[Any]) -> bool:
        """Whether one of these modules or functions is a region that replays graphs."""
        codes = [written_code(value) for value in callables if isinstance(value, types.FunctionType)]
        return any(
            any(region.root is value for value in callables) or getattr(region.root, "__code__", None) in codes
            for region in self.interceptor.regions
            if region.entries and region not in self.interceptor.hoisted
        )

    def holds(self, code: types.CodeType, at: Position) -> bool:
        """Whether a position lies in this code."""
        return self.name_of(code.co_filename) == at.file and code.co_firstlineno <= at.line <= last_line(code)
