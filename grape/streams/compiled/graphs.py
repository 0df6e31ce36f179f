"""CUDA graphs of what Inductor made: a call launches all kernels of its code at once.

The idea is that of `torch.compile(mode="reduce-overhead")` (torch's CUDA graph trees). Here nobody has to ask, results
are copies that no later call overwrites, and a graph serves once it has left the bits that its code left. Inputs that
torch calls static (parameters, buffers, a cache that stands still) are read where they lie, and a call with others has
a graph of its own; all else is copied to where the graph reads it.
"""

from __future__ import annotations

import statistics
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from ...model.stream import COMPILED, WAITING
from ...originals import perf_counter_ns
from ..counts import Launches
from .code import Code, read
from .made import Made, places, versions
from .memory import alike, copied, extent, load, spoil, unnoticed
from .process import Process

WARM = 2
"""Calls as written before one is captured."""
MOST_FORMS = 64
"""Graphs of one code, for so many parameters and sizes."""
FREE = 12
"""Captures that need not have been paid for by what earlier ones saved."""
TRIED = 8
"""Replays after which a graph must have shown that it is faster."""
FASTER = 0.8
"""Of the host's time in the code as written; a graph that takes more is given up."""
_DRAWS = "compiled code that draws random numbers"
_OTHER_BITS = "compiled code that leaves other bits in a CUDA graph"
_NO_ROOM = "compiled code for whose graph the memory budget has no room"
_NOT_CAPTURED = "compiled code that cannot be captured"
_STOPPED = "compiled code whose capture was stopped"
_NO_FASTER = "compiled code that a CUDA graph makes no faster"

Run = Callable[[Any, list[Any]], Any]
"""Inductor's own way to call code with inputs, which it takes out of the list."""


@dataclass(slots=True)
class _Form:
    """Calls of one code with static inputs that lie in the same places, and others of the same sizes."""

    calls: int = 0
    plain_ns: int = 0
    made: Made | None = None
    refused: str = ""
    replays_ns: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Known:
    code: Code
    alive: weakref.ref[Any]
    forms: dict[Hashable, _Form] = field(default_factory=dict)

    def graphs(self) -> list[Made]:
        return [form.made for form in self.forms.values() if form.made is not None]


class CompiledGraphs:
    """Of one stream."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._known: dict[int, _Known] = {}
        self._dead: list[Made] = []
        self._busy = threading.Lock()
        self._tried = 0
        self._closed = False
        self._changes = process.changes()
        self.counted = Launches()

    def run(self, made: Any, inputs: list[Any], plain: Run) -> Any:
        """What the code gives for `inputs`. Raises what it raises."""
        if self._closed or not self._busy.acquire(blocking=False):
            return plain(made, inputs)
        try:
            began = perf_counter_ns()
            with torch._C.DisableTorchFunction():
                known = self._of(made, inputs)
                if self._dead and self._process.is_here():
                    self._bury()
                form = self._form(known, inputs)
                if isinstance(form, _Form) and form.made is not None:
                    return self._replay(known.code, form, form.made, inputs, began)
            return self._as_written(made, known.code, form, inputs, plain, began)
        finally:
            self._busy.release()
            self._end_if_closed()

    def _end_if_closed(self) -> None:
        if self._closed:
            self.close()

    def close(self) -> None:
        """Destroy all graphs; once the thread that is inside has left."""
        self._closed = True
        if self._busy.acquire(blocking=False):
            try:
                for known in list(self._known.values()):
                    self._dead += known.graphs()
                self._known.clear()
                self._bury()
            finally:
                self._busy.release()

    def _of(self, made: Any, inputs: list[Any]) -> _Known:
        if self._changes != (now := self._process.changes()):  # what was captured computes as it did then
            self._changes = now
            for known in list(self._known.values()):
                self._dead += known.graphs()
                known.forms.clear()
        number, everything, dead = id(made), self._known, self._dead
        if number in everything:
            return everything[number]

        def gone(_: object) -> None:
            if number in everything:
                dead.extend(everything.pop(number).graphs())

        everything[number] = _Known(read(made, len(inputs), self._process.device), weakref.ref(made, gone))
        return everything[number]

    def _form(self, known: _Known, inputs: list[Any]) -> _Form | str:
        """Of these inputs; or why there can be no graph for them."""
        code, device = known.code, self._process.device
        if code.refused:
            return code.refused
        if type(inputs) is not list or torch._C._len_torch_dispatch_stack() or not self._process.is_here():
            return COMPILED
        addresses = self._process.addresses(inputs, code)
        key: list[Hashable] = [torch.is_inference_mode_enabled(), addresses]
        for at in code.moving:
            given = inputs[at]
            if type(given) is int:
                key.append(given)
            elif type(given) is torch.Tensor and given.device == device and not (given.is_conj() or given.is_neg()):
                key += (given.size(), given.stride(), given.dtype)
            else:
                return COMPILED
        found = known.forms.get(tuple(key))
        if found is None and addresses is not None and len(known.forms) < MOST_FORMS:
            found = known.forms[tuple(key)] = _Form()
        return found or COMPILED

    def _as_written(self, made: Any, code: Code, form: _Form | str, inputs: list[Any], plain: Run, began: int) -> Any:
        counted, why = self.counted, form if isinstance(form, str) else form.refused
        counted.seen += code.launches
        counted.written[why or WAITING] += code.launches
        if isinstance(form, str) or form.refused:
            counted.own_ns += perf_counter_ns() - began
            return plain(made, inputs)
        form.calls += 1
        if form.calls > WARM and self._may_spend():
            return self._captured(made, code, form, inputs, plain)
        drawn, start = self._process.draws(), perf_counter_ns()
        counted.own_ns += start - began
        found = plain(made, inputs)
        took = perf_counter_ns() - start
        form.plain_ns = min(form.plain_ns or took, took)
        if self._process.draws() != drawn:
            code.refused = _DRAWS
        return found

    def _may_spend(self) -> bool:
        """Sizes that come a few times each do not pay for their graphs: beyond the first ones, what replays have saved
        pays for more.
        """
        return self._tried < FREE or self.counted.saved_ns > self.counted.capture_ns

    def _replay(self, code: Code, form: _Form, made: Made, inputs: list[Any], began: int) -> Any:
        counted = self.counted
        with torch.no_grad():
            load(made.placeholders, [one for at in code.moving if isinstance(one := inputs[at], torch.Tensor)])
            made.graph.replay()
            found = made.handed_out(inputs)
        inputs.clear()
        took = perf_counter_ns() - began
        counted.seen += code.launches
        counted.matched += code.launches
        counted.segments += 1
        counted.saved_ns += form.plain_ns - took
        if len(form.replays_ns) < TRIED:
            form.replays_ns.append(took)
            if len(form.replays_ns) == TRIED and statistics.median(form.replays_ns) > FASTER * form.plain_ns:
                self._give_up(form, _NO_FASTER)
        return found

    def _captured(self, made: Any, code: Code, form: _Form, inputs: list[Any], plain: Run) -> Any:
        """A call as written, whose results the caller gets; then a graph of it, which must leave the same."""
        self._tried += 1
        began, given = perf_counter_ns(), list(inputs)
        changed, moving = ([given[at] for at in which] for which in (code.changed, code.moving))
        with torch._C.DisableTorchFunction(), torch.no_grad():
            try:
                form.refused = self._no_room(changed, moving)
                if not form.refused:
                    first = [copied(one) for one in changed]
                    placeholders = {
                        at: copied(one, self._process.begins(one))
                        for at, one in zip(code.moving, moving, strict=True)
                        if isinstance(one, torch.Tensor)
                    }
            except Exception:  # no memory, or elements that lie in one place
                form.refused = _NOT_CAPTURED
        if form.refused:
            return plain(made, inputs)
        start = perf_counter_ns()
        found, took = self._process.timed(lambda: plain(made, inputs))
        spent = perf_counter_ns() - start
        captured: Made | None = None
        with torch._C.DisableTorchFunction(), torch.no_grad(), unnoticed(changed):
            last: list[torch.Tensor] = []
            try:
                last = [copied(one) for one in changed]
                if not alike(list(placeholders.values()), [given[at] for at in placeholders]):
                    form.refused = _OTHER_BITS  # it writes inputs that it does not tell of
                else:
                    captured = self._graph(made, given, placeholders, found, plain)
                    form.refused = self._differs(captured, given, found, zip(changed, first, last, strict=True), took)
            except Exception:  # none of the code's, which has run
                form.refused = _NOT_CAPTURED
            except BaseException:
                form.refused = _STOPPED
                raise
            finally:
                load(changed[: len(last)], last)
                if captured is not None and form.refused:
                    self._dead.append(captured)
        if form.refused:
            self._bury()
        else:
            form.made = captured
            self.counted.captured += 1
            self.counted.recorded += code.launches
        self.counted.capture_ns += perf_counter_ns() - began - spent
        return found

    def _no_room(self, changed: list[torch.Tensor], moving: list[Any]) -> str:
        """Why what a capture needs beside the graph cannot be had; empty where it can."""
        if any(one.is_inference() for one in changed) and not torch.is_inference_mode_enabled():
            return _NOT_CAPTURED  # nobody but the code may write them
        stays = sum(extent(one) for one in moving if isinstance(one, torch.Tensor))
        room = self._process.budget - self.counted.bytes
        return _NO_ROOM if stays + 2 * sum(map(extent, changed)) > room else ""

    def _differs(
        self, captured: Made, given: list[Any], found: Any, states: Iterable[tuple[torch.Tensor, ...]], took: int
    ) -> str:
        """Why a graph cannot stand for the code, which left `found` within `took` nanoseconds; empty where it can. Of
        what is changed there are the tensor, a copy of before and one of behind.
        """
        changed, first, last = (list(some) for some in tuple(zip(*states, strict=True)) or ((), (), ()))
        values = [one for at, one in enumerate(given) if at in captured.reads]
        load(changed, first)
        spoil(captured.own())  # what ran at the capture, instead of being captured, left its bits there
        captured.graph.replay()
        if not alike(last, changed) or not alike(found, captured.handed_out(given)):
            return _OTHER_BITS
        if self.counted.bytes > self._process.budget:
            return _NO_ROOM
        load(changed, first)

        def again() -> Any:
            load(captured.placeholders, values)
            captured.graph.replay()
            return captured.handed_out(given)

        return _NO_FASTER if self._process.timed(again)[1] > took else ""

    def _graph(self, made: Any, given: list[Any], placeholders: dict[int, Any], found: Any, plain: Run) -> Made:
        """Raises RuntimeError where it cannot be."""
        before = self._process.reserved()
        reads = [placeholders.get(at, one) for at, one in enumerate(given)]
        graph, results = self._process.capture(lambda: plain(made, list(reads)))
        try:
            sources, together = places(reads, results, found)
        except Exception:
            graph.reset()
            raise
        holds = max(0, self._process.reserved() - before) + sum(map(extent, placeholders.values()))
        self.counted.bytes += holds
        return Made(
            graph=graph,
            placeholders=list(placeholders.values()),
            reads=set(placeholders),
            results=list(results),
            sources=sources,
            together=together,
            kind=type(found),
            versions=versions(found, sources),
            bytes=holds,
        )

    def _give_up(self, form: _Form, why: str) -> None:
        form.refused = why
        if form.made is not None:
            self._dead.append(form.made)
            form.made = None
        self._bury()

    def _bury(self) -> None:
        """Destroy graphs that serve no more. They may run: the device is waited for. Not inside of a capture."""
        if not self._dead:
            return
        dead = [self._dead.pop() for _ in range(len(self._dead))]
        try:
            if self._process.device.type == "cuda":
                torch.cuda.synchronize(self._process.device)
        except RuntimeError:  # another thread captures, and would be disturbed
            self._dead += dead
            return
        for made in dead:
            self.counted.bytes -= made.bytes
            with suppress(RuntimeError):
                made.graph.reset()
