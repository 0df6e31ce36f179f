"""Segments of a run while the cell runs: statements that run as written, and statements that are a region."""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import replace

import torch

from ..failures import is_signalled, log_failure
from ..model import Position, Reason, Refused
from ..rewrite.outlining import names_of
from ..runtime import Region
from ..runtime.dispatch.trampoline import note_part
from .code import eager_code, pure_code
from .home import Owner
from .survey import Segment, SurveyedValues, called_functions, holds_tensors

Values = MutableMapping[str, object]
_UNBOUND = object()


class Part:
    """Statements that run as written, on `values`: the globals of the cell, or a copy of a function's own names."""

    def __init__(self, run: Owner, segment: Segment) -> None:
        self.owner = run
        self.segment = segment
        self.names = names_of(segment.statements)
        self._eager: types.FunctionType | None = None
        local = run.source.local
        stores = self.names.stores
        if local is None:
            self.outputs = tuple(stores)
        else:
            others = names_of([item for item in run.source.statements if item not in segment.statements])
            needed = {*local.outputs, *others.reads, *self.names.first}
            self.outputs = tuple(name for name in stores if name in needed)
        first = dict(self.names.first) | {name: None for name in self.outputs if name not in self.names.sure}
        self.first = tuple(name for name in first if local is None or name in local.own)
        """Names that are read, or given back as it was, before it is bound here for certain."""

    def begin(self) -> None:
        """The cell was compiled anew: so is this, for its file name."""
        self._eager = None

    def run(self, values: Values) -> None:
        self.run_eagerly(values)

    def run_eagerly(self, values: Values) -> None:
        """Run the statements as they would have run."""
        run = self.owner
        if self._eager is None:
            with run.outliner.at_work():
                self._eager = self._eager_function()
        if run.source.local is None:
            self._eager()
        else:
            values.update(zip(self.outputs, self._eager(*[values[name] for name in self.first]), strict=True))

    def _eager_function(self) -> types.FunctionType:
        run = self.owner
        if run.source.local is not None:
            return self.function_of(self.first, ())[0]
        code = eager_code(self.segment.statements, tuple(self.names.stores), run.filename, run.flags)
        self._note(code)
        return types.FunctionType(code, run.namespace)

    def function_of(
        self, inputs: Collection[str], constants: Collection[str]
    ) -> tuple[types.FunctionType, dict[str, types.CellType]]:
        """The statements as a function of `inputs` that returns `outputs`, and the cells of `constants` in it."""
        run = self.owner
        code = pure_code(
            self.segment.statements, tuple(inputs), tuple(constants), self.outputs, run.filename, run.flags, run.name
        )
        self._note(code)
        cells = {name: types.CellType() for name in code.co_freevars}
        function = types.FunctionType(code, run.namespace, code.co_name, None, tuple(cells.values()))
        return function, cells

    def _note(self, code: types.CodeType) -> None:
        self.owner.codes.add(code)
        note_part(code)


class RegionPart(Part):
    """Statements that are a region: a function of the names that change, whose result is what they bind."""

    def __init__(self, run: Owner, segment: Segment, several: bool) -> None:
        super().__init__(run, segment)
        self.ended = False
        self.region: Region | None = None
        self._several = several
        self._inputs: tuple[str, ...] = ()
        self._handed: set[str] = set()
        self._cells: dict[str, types.CellType] = {}
        self._pure: types.FunctionType | None = None
        self._fresh: dict[str, object] | None = None

    @property
    def refusal(self) -> Refused | None:
        """Why its region was refused."""
        return self.region.refused if self.region is not None else None

    @property
    def out_of_memory(self) -> bool:
        """True where its region was refused for want of memory, which a later cell may have."""
        return self.region is not None and self.region.over_budget_at is not None

    def begin(self) -> None:
        super().begin()
        if self.region is not None and (self.region.refused is None or self.out_of_memory):
            self.region.called_from(self._position())

    def serves_elsewhere(self, surveyed: SurveyedValues) -> bool:
        """True where a module or function that this calls replays graphs already, and this does not."""
        if self.region is not None and self.region.entries:
            return False
        calls = [n for item in self.segment.statements for n in ast.walk(item) if isinstance(n, ast.Call)]
        return self.owner.outliner.replays([surveyed.value(node.func) for node in calls])

    def run(self, values: Values) -> None:
        region = self.region or self._made(values)
        arguments = self._arguments(values) if region is not None else None
        if region is None or arguments is None:
            self.run_eagerly(values)  # no error of Grape's is handled now, which errors of the person's would name
            return
        for name, cell in self._cells.items():
            cell.cell_contents = values[name]
        self._fresh = arguments
        try:
            results = self.owner.outliner.interceptor.enter(region, arguments)
        finally:
            self._fresh = None
        for name, value in zip(self.outputs, results, strict=True):
            if values.get(name, _UNBOUND) is not value:
                values[name] = value

    def _made(self, values: Values) -> Region | None:
        try:
            # No mode of the person's sees what is looked at.
            with torch._C.DisableTorchFunction(), self.owner.outliner.at_work():
                return self._make(values)
        except Exception as error:  # the statements run as written
            if is_signalled(error):
                raise
            log_failure("it made a region of a loop's statements")
            self.ended = True
            return None

    def _arguments(self, values: Values) -> dict[str, object] | None:
        try:
            return {name: values[name] for name in self._inputs}
        except KeyError:
            return None

    def call(self, **arguments: object) -> tuple[object, ...]:
        """The region's function. For the cell's own values it runs in the cell's names, else it touches none."""
        fresh, self._fresh = self._fresh, None
        assert self._pure is not None
        if (
            self.owner.source.local is not None
            or fresh is None
            or any(fresh[name] is not value for name, value in arguments.items())
        ):
            results: tuple[object, ...] = self._pure(**arguments)
            return results
        self.run_eagerly(self.owner.namespace)
        names = self.owner.namespace
        return tuple([names.get(name) for name in self.outputs])

    def _make(self, values: Mapping[str, object]) -> Region:
        run = self.owner
        changing = run.source.changing
        constants: tuple[str, ...] = ()
        if run.source.local is None:
            self._inputs = tuple(
                name for name in self.first if name in changing or name in self._handed or _varies(values.get(name))
            )
        else:
            given = self._handed.union(changing)
            constants = tuple(name for name in self.first if name not in given and not _is_data(values[name]))
            self._inputs = tuple(name for name in self.first if name not in constants)
        pure, self._cells = self.function_of(self._inputs, constants)
        self._pure = pure
        title = f"loop at line {run.source.loop_line}"
        at = self._position()
        if self._several:
            title += f", from line {at.line}"
        last = self.segment.statements[-1]
        self.region = Region(run.outliner.context, self.call, pure, title, at, last.end_lineno)
        self.region.loop_line = run.source.loop_line
        run.outliner.interceptor.outlined.append(self.region)
        return self.region

    def hand_over(self, values: Mapping[str, object]) -> bool:
        """Where the region was refused for new tensors in objects that its names stand for (a KV cache): have it take
        these as arguments, which a replay updates. False where there are none.
        """
        region = self.region
        names = {re.split(r"[.\[]", path, maxsplit=1)[0] for path in region.observer.new_tensors} if region else set()
        if region is None or not names or not names.issubset(set(self.first).difference(self._inputs)):
            return False
        if not all(holds_tensors(values.get(name)) for name in names):
            return False
        self._handed |= names
        self.drop_region()
        self.region = None
        return True

    def drop_region(self) -> None:
        """Release the graphs of its region, which is none any more."""
        outlined = self.owner.outliner.interceptor.outlined
        if self.region is not None:
            self.region.release()
            if self.region in outlined:
                outlined.remove(self.region)

    def _position(self) -> Position:
        run, line = self.owner, self.segment.statements[0].lineno
        return Position(file=run.outliner.name_of(run.filename), line=line, function=run.name)

    def explain(self) -> None:
        """Say what the region was refused for in the words of the cell: by name, not by the number of an argument."""
        refused, name = self.refusal, self._changing_input()
        if self.region is not None and refused is not None and name is not None:
            line = next((item.lineno for item in self.segment.statements if name in names_of([item]).reads), 0)
            at = replace(self.region.at, line=line) if line else refused.at
            self.region.refused = Refused.because(Reason.NAME_CHANGES, at, argument=name)

    def _changing_input(self) -> str | None:
        """The name whose plain value is another one at each call, where the region was refused for that."""
        refused = self.refusal
        if refused is None or refused.reason is not Reason.ARGUMENT_CHANGES:
            return None
        path = refused.detail("argument")
        return next((name for name in self._inputs if path.startswith(f"args[1][{name!r}]")), None)

    def culprits(self, refused: Refused, surveyed: SurveyedValues) -> list[ast.stmt]:
        """The statements that the refusal is about, where it tells."""
        if refused.reason is Reason.NO_WORK or self.region is None:
            return []
        statements, at, outliner = self.segment.statements, refused.at, self.owner.outliner
        name = self._changing_input()
        if name is not None:
            return [item for item in statements if name in names_of([item]).reads]
        if at is None or at is self.region.at:
            return []
        if at.file == outliner.name_of(self.owner.filename):
            found = [item for item in statements if item.lineno <= at.line <= (item.end_lineno or item.lineno)]
            if found:
                return found
        return [
            item for item in statements if any(outliner.holds(code, at) for code in called_functions(item, surveyed))
        ]


def _varies(value: object) -> bool:
    """A tensor that the loop does not bind may still be another one when the cell runs again."""
    return type(value) is torch.Tensor


def _is_data(value: object) -> bool:
    """True for what a function is given anew at each call; anything else is guarded as what a closure holds."""
    return isinstance(value, (bool, int, float, complex, str, bytes, type(None), list, tuple, dict)) or _varies(value)
