"""A run of statements of a loop body while the cell runs: its segments, and the regions that some of them are."""

from __future__ import annotations

import ast
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from ..model import Position, Refused
from ..rewrite.hoisting import RunSource
from ..rewrite.hoisting.names import names_of
from ..runtime import Region
from ..runtime.observer import NO_WORK
from .code import eager_code, pure_function
from .survey import Segment, Surveyed, called_functions, divide
from .tracebacks import mend_traceback

if TYPE_CHECKING:
    from .hoister import Hoister

__all__ = ["Run"]

MAX_SPLITS = 3
"""So often a run is divided at a statement that a region was refused for."""
_PLAIN = (bool, int, float, complex, str, bytes)


class Run:
    """What compiled code calls in the place of a run. `live`: whether to call it, or to run the statements there."""

    def __init__(self, hoister: Hoister, source: RunSource) -> None:
        self.live = False
        self.given_up = False
        self.source = source
        self.hoister = hoister
        self.filename = ""
        self.flags = 0
        self.codes: set[types.CodeType] = set()
        self.parts: list[Part] = []
        self._apart: set[ast.stmt] = set()
        self._splits = 0
        self._plain: dict[str, Any] = {}
        self._names = names_of(source.statements)

    def __reduce__(self) -> Any:
        return _Inert, ()

    @property
    def namespace(self) -> dict[str, Any]:
        """The globals of the cell."""
        return self.hoister.namespace

    def begin(self, filename: str, flags: int) -> None:
        """The cell is compiled, maybe once more, under this file name."""
        self.filename, self.flags = filename, flags
        self.codes.clear()
        self.given_up = False
        for part in self.parts:
            part.begin()
        self.live = False

    def forget_refusals(self) -> None:
        """The cell around the loop was changed: what was refused may not be now."""
        if any(isinstance(part, RegionPart) and part.ended for part in self.parts):
            self.parts, self._splits = [], 0
            self._apart.clear()

    # -- before it is handed over ------------------------------------------------------------------------------------

    def look(self) -> None:
        """An iteration has run as written: note the numbers and strings that its names hold."""
        self._plain = self._numbers()

    def arm(self) -> None:
        """One more has run: decide what may become a region."""
        now = self._numbers()
        changing = {name for name in self.source.changing if name in now and now[name] != self._plain.get(name)}
        self._plain = {}
        surveyed = Surveyed(self.namespace)
        for statement in self.source.statements:
            names = names_of([statement])
            if changing.intersection((*names.reads, *names.stores)) and not surveyed.touches_tensors(statement):
                self._apart.add(statement)
        if not self.parts:
            self._divide(surveyed)
        elif any(isinstance(part, RegionPart) and part.usable for part in self.parts):
            self.live = True
        self.given_up = not self.live

    def _numbers(self) -> dict[str, Any]:
        found = {}
        for name in (*self._names.reads, *self._names.stores):
            value = self.namespace.get(name)
            if isinstance(value, _PLAIN):
                found[name] = (type(value), repr(value) if isinstance(value, (float, complex)) else value)
        return found

    def _divide(self, surveyed: Surveyed) -> None:
        segments = divide(self.source.statements, surveyed, self._apart.__contains__)
        several = sum(segment.region for segment in segments) > 1 or len(self.hoister.runs_of(self)) > 1
        parts: list[Part] = []
        kept = {part.segment.statements: part for part in self.parts}
        for segment in segments:
            part = kept.get(segment.statements)
            if part is None:
                part = RegionPart(self, segment, several) if segment.region else Part(self, segment)
            if isinstance(part, RegionPart) and part.serves_elsewhere(surveyed):
                part = Part(self, segment)
            parts.append(part)
        self.parts = parts
        self.live = any(isinstance(part, RegionPart) and part.usable for part in parts)

    # -- called by the person's code ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the statements once."""
        here = self.hoister.in_charge
        self.live = False  # code that comes here again while this runs takes the statements as written
        try:
            for part in self.parts:
                if here:
                    part.run()
                else:
                    part.run_eagerly()
        finally:
            self.live = True
        if here:
            self._learn()

    def mend(self) -> None:
        """Called where the run raised: the traceback becomes that of the plain statements."""
        error = sys.exception()
        if error is not None:
            mend_traceback(error, sys._getframe(1), self.codes)

    def _learn(self) -> None:
        for part in self.parts:
            if isinstance(part, RegionPart) and not part.ended and part.refusal is not None:
                self._after_refusal(part, part.refusal)
                return

    def _after_refusal(self, part: RegionPart, refused: Refused) -> None:
        """Split the run at the statement that the region was refused for; without one the part runs as written."""
        part.ended = True
        culprits = part.culprits(refused)
        if culprits and len(culprits) < len(part.segment.statements) and self._splits < MAX_SPLITS:
            self._splits += 1
            self._apart.update(culprits)
            self._divide(Surveyed(self.namespace))
        else:
            self.live = any(isinstance(p, RegionPart) and p.usable for p in self.parts)
        if not self.live:
            self.given_up = True


class Part:
    """Statements that run as written."""

    def __init__(self, run: Run, segment: Segment) -> None:
        self.owner = run
        self.segment = segment
        self.names = names_of(segment.statements)
        self._code: types.CodeType | None = None

    def begin(self) -> None:
        """The cell was compiled anew: so is this, for its file name."""
        self._code = None

    def run(self) -> None:
        self.run_eagerly()

    def run_eagerly(self) -> None:
        """Run the statements as the cell would: with its names."""
        run = self.owner
        if self._code is None:
            self._code = eager_code(self.segment.statements, tuple(self.names.stores), run.filename, run.flags)
            run.codes.add(self._code)
        types.FunctionType(self._code, run.namespace)()


class RegionPart(Part):
    """Statements that are a region: a function of the names that change, whose result is what they bind."""

    def __init__(self, run: Run, segment: Segment, several: bool) -> None:
        super().__init__(run, segment)
        self.ended = False
        self.region: Region | None = None
        self._several = several
        self._inputs: tuple[str, ...] = ()
        self._outputs = tuple(self.names.stores)
        self._pure: types.FunctionType | None = None
        self._fresh: tuple[Any, ...] | None = None

    @property
    def usable(self) -> bool:
        """Whether it is a region still, as far as its run has noticed."""
        return not self.ended

    @property
    def refusal(self) -> Refused | None:
        """Why its region was refused."""
        return self.region.refused if self.region is not None else None

    def begin(self) -> None:
        super().begin()
        if self.region is not None and self.region.refused is None:
            self.region.at = self._position()

    def serves_elsewhere(self, surveyed: Surveyed) -> bool:
        """Whether a module or function that this calls replays graphs already, and this does not."""
        if self.region is not None and self.region.entries:
            return False
        called = [
            surveyed.value(node.func)
            for item in self.segment.statements
            for node in ast.walk(item)
            if isinstance(node, ast.Call)
        ]
        return self.owner.hoister.replays(called)

    def run(self) -> None:
        region = self.region
        if region is None:
            region = self._make()
        names = self.owner.namespace
        try:
            arguments = tuple([names[name] for name in self._inputs])
        except KeyError:
            self.run_eagerly()
            return
        self._fresh = arguments
        try:
            results = self.owner.hoister.interceptor.enter(region, arguments)
        finally:
            self._fresh = None
        for name, value in zip(self._outputs, results, strict=True):
            if names.get(name) is not value:
                names[name] = value

    def call(self, *arguments: Any) -> tuple[Any, ...]:
        """The region's function. For the cell's own values it runs in the cell's names, else it touches none."""
        fresh, self._fresh = self._fresh, None
        if fresh is None or len(fresh) != len(arguments) or any(map(_is_other, fresh, arguments)):
            assert self._pure is not None
            return self._pure(*arguments)  # type: ignore[no-any-return]
        self.run_eagerly()
        names = self.owner.namespace
        return tuple([names.get(name) for name in self._outputs])

    def _make(self) -> Region:
        run, names = self.owner, self.names
        first = dict(names.first)
        for name in self._outputs:
            if name not in names.sure:
                first.setdefault(name)
        changing = run.source.changing
        self._inputs = tuple(name for name in first if name in changing or _varies(run.namespace.get(name)))
        self._pure = pure_function(
            self.segment.statements, self._inputs, self._outputs, run.filename, run.flags, run.namespace
        )
        last = self.segment.statements[-1]
        title = f"loop at line {run.source.loop_line}"
        at = self._position()
        if self._several:
            title += f", line {at.line}"
        self.region = Region(run.hoister.situation, self.call, self._pure, title, at, last.end_lineno)
        run.hoister.interceptor.hoisted.append(self.region)
        return self.region

    def _position(self) -> Position:
        line = self.segment.statements[0].lineno
        file = self.owner.hoister.name_of(self.owner.filename)
        return Position(file=file, line=line, function="<module>")

    def culprits(self, refused: Refused) -> list[ast.stmt]:
        """The statements that the refusal is about, where it tells."""
        if refused.why == NO_WORK:
            return []
        statements, at = self.segment.statements, refused.at
        if refused.code == "GR403" and self.region is not None and at == self.region.at:
            index = _argument(refused.why)
            name = self._inputs[index] if index is not None and index < len(self._inputs) else None
            return [item for item in statements if name in names_of([item]).reads]
        if at is None or (self.region is not None and at is self.region.at):
            return []
        hoister = self.owner.hoister
        if at.file == hoister.name_of(self.owner.filename):
            found = [item for item in statements if item.lineno <= at.line <= (item.end_lineno or item.lineno)]
            if found:
                return found
        surveyed = Surveyed(self.owner.namespace)
        return [
            item for item in statements if any(hoister.holds(code, at) for code in called_functions(item, surveyed))
        ]


def _is_other(one: object, other: object) -> bool:
    return one is not other


def _varies(value: Any) -> bool:
    """A tensor that the loop does not bind may still be another one when the cell runs again."""
    return type(value) is torch.Tensor


def _argument(why: str) -> int | None:
    """The number of the argument that `Region` names in a refusal for a changing value."""
    inside = why.partition("`args[0][")[2].partition("]")[0]
    return int(inside) if inside.isdigit() else None


class _Inert:
    """What a run is in another process, where code was sent: the plain statements."""

    live = False
