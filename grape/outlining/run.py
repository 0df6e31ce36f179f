"""A run of statements of a loop body while the cell runs: divided into regions and statements that stay eager."""

from __future__ import annotations

import ast
import sys
import types
import weakref
from collections import ChainMap
from collections.abc import Collection, Mapping

import torch

from ..failures import is_signalled, log_failure
from ..model import Position, Reason, Refused
from ..rewrite.outlining import RunSource, names_of
from ..runtime import held
from ..runtime.dispatch.frames import looks_at_frames, mentioned_in
from .home import Home
from .parts import Part, RegionPart
from .survey import SurveyedValues, divide
from .tracebacks import frame_of_run, mend_traceback

MAX_SPLITS = 3
"""So often a run is divided at a statement that a region was refused for."""
_PLAIN = (bool, int, float, complex, str, bytes)


class Run:
    """Called by compiled code in the place of a run. `live`: whether to call it, or to run the statements there."""

    def __init__(self, outliner: Home, source: RunSource) -> None:
        self.live = False
        self.given_up = False
        self.source = source
        self.outliner = outliner
        self.namespace: dict[str, object] = {}
        self.filename = ""
        self.flags = 0
        self.codes: set[types.CodeType] = set()
        self.parts: list[Part] = []
        self._apart: set[ast.stmt] = set()
        self._splits = 0
        self._blamed: dict[str, weakref.ref[object]] = {}
        self._plain: dict[str, tuple[type, object]] = {}
        self._names = names_of(source.statements)
        self._values: dict[str, object] = {}
        self._partial: dict[str, object] = {}
        self._line: int | None = None

    def __reduce__(self) -> tuple[type[_Inert], tuple[()]]:
        return _Inert, ()

    @property
    def name(self) -> str:
        """The name of the code that holds the loop."""
        return self.source.local.function if self.source.local is not None else "<module>"

    @property
    def regions(self) -> list[RegionPart]:
        """The parts that are regions still, as far as the run has noticed."""
        return [part for part in self.parts if isinstance(part, RegionPart) and not part.ended]

    def begin(self, namespace: dict[str, object], filename: str, flags: int) -> None:
        """The code is compiled, maybe once more, under this file name, to run with these globals."""
        if self.parts and namespace is not self.namespace:  # regions are bound to the names that they were made with
            self._begin_anew()
        self.namespace, self.filename, self.flags = namespace, filename, flags
        for part in self.parts:
            part.begin()
        self.live = bool(self.regions)
        self.given_up = False

    def forget_refusals(self) -> None:
        """The cell around the loop was changed: what was refused may not be now."""
        if self._splits or len(self.regions) < sum(isinstance(part, RegionPart) for part in self.parts):
            self._begin_anew()

    def is_outdated(self) -> bool:
        """True where it was split for what a global name stood for, and that name stands for something else now."""
        return any(self.namespace.get(name) is not held() for name, held in self._blamed.items())

    def _blame(self, culprits: Collection[ast.stmt]) -> None:
        for name in names_of(list(culprits)).reads:
            value = self.namespace.get(name)
            if isinstance(value, (torch.optim.Optimizer, torch.nn.Module)):
                self._blamed[name] = weakref.ref(value)

    def _begin_anew(self) -> None:
        """Forget what its regions were: all of it may become one."""
        self._blamed.clear()
        self.drop_regions()
        self.parts, self._splits, self.live = [], 0, False
        self._apart.clear()

    def is_apart(self, at: Position) -> bool:
        """True where a statement there runs as written because a region was refused for it, and others are regions."""
        if not self._splits or not self.regions or self.outliner.name_of(self.filename) != at.file:
            return False
        return any(item.lineno <= at.line <= (item.end_lineno or item.lineno) for item in self._apart)

    def drop_regions(self) -> None:
        """Release the graphs of its regions, which are none any more."""
        for part in self.parts:
            if isinstance(part, RegionPart):
                part.drop_region()

    def forget(self) -> None:
        """Run as written from now on."""
        self.live, self.given_up, self.parts = False, True, []

    def give_up(self, why: str) -> None:
        """Run as written until the cell is compiled anew: its regions are refused (GR406), with `why`."""
        for part in self.parts:
            if isinstance(part, RegionPart) and part.region is not None and part.region.refused is None:
                part.region.refuse(Refused.because(Reason.LOOP_SLOWER, part.region.at, what=why))
        self.live, self.given_up = False, True

    # -- before it is handed over ------------------------------------------------------------------------------------

    def look(self, values: Mapping[str, object]) -> None:
        """An iteration has run as written: note the numbers and strings that its names hold."""
        self._plain = self._numbers(values)

    def arm(self, values: Mapping[str, object]) -> None:
        """One more has run: decide what may become a region."""
        now = self._numbers(values)
        changing = {name for name in self.source.changing if name in now and now[name] != self._plain.get(name)}
        self._plain = {}
        if any(looks_at_frames(mentioned_in(statement), values) for statement in self.source.statements):
            self.forget()  # what is called here would see who calls it
            return
        surveyed = SurveyedValues(values)
        for statement in self.source.statements:
            names = names_of([statement])
            if changing.intersection((*names.reads, *names.stores)) and (
                not surveyed.touches_tensors(statement) or surveyed.picks(statement, changing)
            ):
                self._apart.add(statement)
        self._divide(surveyed)
        self.given_up = not self.live

    def _numbers(self, values: Mapping[str, object]) -> dict[str, tuple[type, object]]:
        found: dict[str, tuple[type, object]] = {}
        for name in (*self._names.reads, *self._names.stores):
            value = values.get(name)
            if isinstance(value, _PLAIN):
                found[name] = (type(value), repr(value) if isinstance(value, (float, complex)) else value)
        return found

    def _divide(self, surveyed: SurveyedValues) -> None:
        segments = divide(self.source.statements, surveyed, self._apart.__contains__)
        several = sum(segment.region for segment in segments) > 1 or not self.outliner.is_alone(self)
        parts: list[Part] = []
        known = {part.segment.statements: part for part in self.parts}
        for segment in segments:
            part = known.get(segment.statements)
            if part is None:
                part = RegionPart(self, segment, several) if segment.region else Part(self, segment)
            if isinstance(part, RegionPart) and part.serves_elsewhere(surveyed):
                part = Part(self, segment)
            parts.append(part)
        self.parts = parts if self._fits(parts) else []
        self.live = bool(self.regions)

    def _fits(self, parts: list[Part]) -> bool:
        """True where each part of a function's run is given all that it takes."""
        if self.source.local is None:
            return True
        bound = set(self.source.local.inputs)
        for part in parts:
            if not bound.issuperset(part.first):
                return False
            bound.update(part.outputs)
        return bound.issuperset(self.source.local.outputs)

    # -- called by the person's code ---------------------------------------------------------------------------------

    def run(self, *arguments: object) -> tuple[object, ...]:
        """Run the statements once. A function's run takes and returns the values of its names."""
        local = self.source.local
        values = self.namespace
        if local is not None:
            values = dict(zip(local.inputs, arguments, strict=True))
        here = self.outliner.in_charge
        self.live = False  # code that comes here again while this runs takes the statements as written
        try:
            for part in self.parts:
                if here:
                    part.run(values)
                else:
                    part.run_eagerly(values)
            if held.since is not None:
                held.come()
        except BaseException:
            self._values = values
            raise
        finally:
            self.live = True
        if here:
            try:
                with torch._C.DisableTorchFunction():
                    self._learn(values)
            except Exception as error:  # the loop goes on without it
                if is_signalled(error):
                    raise
                log_failure("it divided the statements of a loop")
                self.forget()
        return tuple([values[name] for name in local.outputs]) if local is not None else ()

    def mend(self) -> None:
        """Called where the run raised: the traceback becomes that of the plain statements."""
        error = sys.exception()
        values, self._values = self._values, {}
        if error is None:
            return
        if self.source.local is not None:
            inner = frame_of_run(error, self.codes)
            reached = {**values, **(inner.f_locals if inner is not None else {})}
            self._partial = {name: reached[name] for name in self.source.local.outputs if name in reached}
        self._line = mend_traceback(error, sys._getframe(1), self.codes)

    def raised_at(self, line: int) -> bool:
        """After `mend`: whether a statement on this line raised."""
        return self._line == line

    def has(self, name: str) -> bool:
        """After `mend`: whether a function's name was bound when the run raised."""
        return name in self._partial

    def take(self, name: str) -> object:
        """After `mend`: the value of a function's name when the run raised."""
        return self._partial.pop(name)

    def _learn(self, values: Mapping[str, object]) -> None:
        for part in self.regions:
            if part.refusal is not None and not part.out_of_memory:
                with self.outliner.at_work():
                    self._after_refusal(part, part.refusal, values)
                return

    def _after_refusal(self, part: RegionPart, refused: Refused, values: Mapping[str, object]) -> None:
        """Give the region what it was refused for, or split the run at the statement that it was refused for; without
        one the part runs as written.
        """
        if part.hand_over(self.seen(values)):
            return
        part.ended = True
        surveyed = SurveyedValues(self.seen(values))
        culprits = part.culprits(refused, surveyed)
        part.explain()
        if culprits and len(culprits) < len(part.segment.statements) and self._splits < MAX_SPLITS:
            self._splits += 1
            self._apart.update(culprits)
            self._blame(culprits)
            self._divide(surveyed)
        else:
            self.live = bool(self.regions)
        self.given_up = not self.live

    def seen(self, values: Mapping[str, object]) -> Mapping[str, object]:
        """The names that the statements see where `values` are the names of their own scope."""
        return values if values is self.namespace else ChainMap(dict(values), self.namespace)


class _Inert:
    """A run in another process, where code was sent: the plain statements."""

    live = False
