"""Sees every operator that a thread dispatches, and hands it to the recorder in charge.

The tracer is a `TorchDispatchMode`: it sits below autograd, sees operators of libraries as well, and changes nothing.
It costs 10-20 us an operator, so it is pushed only around the few calls that are traced.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from types import FrameType

import torch
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from ..failures import Quietly
from ..model import OpRecord, Position
from ..model.call import Args, Kwargs
from ..originals import perf_counter_ns
from .blocks import OwnMode, blocks, drop_keys
from .busy import Unwatched, grape_works, unwatched
from .compiling import before_compiled, keep_uncompiled
from .constructs import construct_of
from .escapes import HIGHER_ORDER, OTHERWISE, SPARSE, EscapeWatch, below_dispatch
from .groups import process_group
from .issuing import issue, without_outer_casts
from .operators import Operator
from .positions import PositionFinder
from .recorder import LIMIT, Before, RecordedCall, Recorder
from .warned import warnings_of_the_caller

ANNOTATIONS = "profiler"
"""Operators of this namespace mark stretches of a profile (`record_function`); they do no work."""
_BETWEEN_NS, _MOST_BETWEEN_NS = 30_000, 2_000_000
"""Nanoseconds that code as written takes between two operators, and the most that counts: an import in between is none
of the tracer's.
"""
_PASSED_NS = 4_000
"""Nanoseconds that it takes an operator to come by here, through Python, before and after the tracer's own clock runs.
"""
_of_script: Callable[[], object] = torch._C._get_tracing_state
_WAITS = frozenset({"host-read", "transfer-out"})


class Tracer(OwnMode):
    """Hands operators to `recorder` while it has one. `on_wait` is called after an operator for which the host waited
    or whose shape depends on data.

    A mode that is popped inside ``with torch.inference_mode(False):`` but was pushed outside leaves the dispatcher
    broken at the end of the block, because such blocks save and restore the dispatch keys (`blocks`). So the tracer is
    pushed and popped only around whole statements (`enter`, `leave`) or within one frame (`record`); in between it is
    *muted*: its dispatch key is cleared, and operators do not reach it.
    """

    def __init__(self, positions: PositionFinder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        keep_uncompiled()
        self.positions = positions
        self.recorder: Recorder | None = None
        self.on_wait: Callable[[Recorder, OpRecord], None] | None = None
        self.on_overflow: Callable[[], None] | None = None
        """Called once the recorder has had enough, where the person's code goes on."""
        self.on_stack = False
        self.own_ns = 0
        """Nanoseconds that the tracer took so far beside the operators."""
        self.recorded_ns = 0
        """The part of it that was in calls that `record` traced."""
        self.own_until = math.inf
        """The `own_ns` at which the recorder has had enough, however few operators it has."""
        self.beside_most = math.inf
        """The `_beside_ns` at which it has had enough, too."""
        self._beside_ns = self._last_ns = 0
        """Nanoseconds of the recorded call between operators, beyond what code as written takes there: what it takes to
        come here is not on the tracer's clock. When the last one was done.
        """
        self._thread = get_ident()
        self._watch: EscapeWatch | None = None
        self._before_compiled: Callable[[], None] | None = None

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """The compiler does its work as if the tracer were not there; what it compiled is seen when it runs."""
        return True

    @property
    def is_called(self) -> bool:
        """True if an operator is on its way to this mode just now, in code of torch's: then it is not on the stack."""
        if not self.on_stack or _get_current_dispatch_mode() is self:
            return False
        return all(mode is not self for mode in _get_current_dispatch_mode_stack())

    @property
    def _on_top(self) -> bool:
        """A mode of the person's is on no stack while its handler runs, and would find the keys as they were left."""
        return self.on_stack and _get_current_dispatch_mode() is self and not blocks.in_mode

    def enter(self) -> None:
        """Join, muted."""
        if not self.on_stack:
            self.on_stack = True
            blocks.watch()
            _push_mode(self)
            self.mute()

    def leave(self) -> None:
        """Leave the mode stack, unless a mode of the person's lies on top; then stay, passing operators through."""
        self.recorder = self.on_wait = self.on_overflow = None
        if self._on_top:
            _pop_mode()
            self.on_stack = False
            blocks.unwatch()
        drop_keys()

    def mute(self) -> None:
        """Stop recording. Operators no longer reach the tracer."""
        self.recorder = self.on_wait = self.on_overflow = None
        self.unwatch()
        if self._on_top:
            _include(False)

    def retire(self) -> bool:
        """Leave the mode stack before the statement ends, where nothing on the way out would bring the tracer back;
        else be muted. True where it left, and may `enter` again from the same frame.

        A backward pass sets the dispatch keys by what lies on the stack, muted or not: from then on each operator would
        come here, for nothing, and be timed as the person's.
        """
        if not self.on_stack:
            return False
        self.mute()
        if _keys_come_back():
            return False
        self.leave()
        return not self.on_stack

    def rejoin(self) -> None:
        """Join the mode stack between two statements, where no block of the person's would leave it wrong."""
        if not self.on_stack and not _keys_come_back() and not torch._C._len_torch_dispatch_stack():
            self.enter()

    def watch(self) -> EscapeWatch:
        """Also see what reads tensors behind the dispatcher's back, until `mute`."""
        self._watch = watch = EscapeWatch(self.positions, lambda: self.recorder)
        watch.join()
        self._before_compiled = before_compiled(watch.note_compiled)
        return watch

    def unwatch(self) -> None:
        if self._watch is None:
            return
        if self._before_compiled is not None:
            self._before_compiled()
            self._before_compiled = None
        if self._watch.leave() or not self._watch.on_stack:
            self._watch = None

    def _retire_at_next_line(self, frame: FrameType) -> None:
        """Retire once the person's frame goes on: not possible now, from within an operator.

        One line event does it, and costs nothing after that; until then each function that is entered costs a call. A
        debugger at work is left alone.
        """
        if sys.gettrace() is not None:
            return

        on_overflow = self.on_overflow

        def at_line(_: FrameType, event: str, argument: object) -> None:
            sys.settrace(None)
            frame.f_trace = None
            if self.recorder is None or self.recorder.overflowed:
                self.retire()
                if on_overflow is not None:
                    on_overflow()

        frame.f_trace = at_line
        sys.settrace(unwatched)

    def listen(self, recorder: Recorder) -> None:
        """Record into `recorder` from now on. The tracer is on the stack."""
        self.recorder = recorder
        self._thread = get_ident()
        _include(True)

    def step_aside(self, call: Callable[[], object]) -> object:
        if self.recorder is not None:
            user, inner = self.positions.find(2)
            frame = user or inner
            self.recorder.escapes.append((OTHERWISE, self.positions.at(frame) if frame else None))
        muted = not torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.Python)
        try:
            _pop_mode()
            return call()
        finally:
            if _get_current_dispatch_mode() is not self:
                _push_mode(self)
            if muted:
                _include(False)

    @contextmanager
    def passing_through(self) -> Iterator[None]:
        """While modes are pushed and popped above it: a muted tracer would hide operators from them as well."""
        muted = self.on_stack and not torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.Python)
        if muted:
            _include(True)
        try:
            yield
        finally:
            if muted:
                _include(False)

    def __torch_dispatch__(
        self, func: Callable[..., object], types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        recorder = self.recorder
        self.own_ns += _PASSED_NS
        if not isinstance(func, torch._ops.OpOverload):
            if recorder is not None:
                recorder.escapes.append((HIGHER_ORDER, None))
            return issue(func, args, kwargs or {})
        if recorder is None or recorder.overflowed or func.namespace == ANNOTATIONS or process_group():
            return issue(func, args, kwargs or {})
        if _of_script() is not None:  # sizes that are read while TorchScript traces become part of its graph
            return issue(func, args, kwargs or {})
        try:
            with grape_works(), torch._C.DisableTorchFunction():
                return self._trace(recorder, func, args, kwargs or {})
        except BaseException as error:
            error.__traceback__ = below_dispatch(error.__traceback__)
            raise

    def _trace(self, recorder: Recorder, func: Operator, args: Args, kwargs: Kwargs) -> object:
        began = perf_counter_ns()
        before: Before | None = None
        with Unwatched(), Quietly():  # a nested tensor has no sizes: what cannot be named is no error of the person
            before = recorder.before(func, args, kwargs)
        start = perf_counter_ns()
        with warnings_of_the_caller():
            result = issue(func, args, kwargs)
        elapsed = perf_counter_ns() - start
        with Unwatched():
            self._note(recorder, before, func, args, kwargs, result, elapsed)
        now = perf_counter_ns()
        self._beside_ns += max(0, min(began - self._last_ns, _MOST_BETWEEN_NS) - _BETWEEN_NS)
        self._last_ns = now
        self.own_ns += now - began - elapsed
        return result

    @property
    def had_enough(self) -> bool:
        """True where the call that is recorded took more than it may."""
        return self.own_ns > self.own_until or self._beside_ns > self.beside_most

    def begin_call(self, own_ns: float, beside_ns: float) -> None:
        """A call is recorded from here on, which may take so much."""
        self._beside_ns, self._last_ns = 0, perf_counter_ns()
        self.own_until, self.beside_most = self.own_ns + own_ns, beside_ns

    def _note(
        self,
        recorder: Recorder,
        before: Before | None,
        func: Operator,
        args: Args,
        kwargs: Kwargs,
        result: object,
        elapsed: int,
    ) -> None:
        """Hand an operator that has run to the recorder. `before` is None where it cannot be named."""
        user, inner = self.positions.find(3)
        if user is None and get_ident() != self._thread:  # autograd's own thread, while the person's waits for it
            waiting = sys._current_frames().get(self._thread)
            user = self.positions.first_own(waiting)
            inner = inner or user
        at = (self.positions.at(user) if user else None, self.positions.at(inner) if inner else None)
        record = None
        with Quietly():
            record = recorder.after(before, func, args, kwargs, result, at, elapsed) if before is not None else None
        if record is None:
            recorder.escapes.append((SPARSE, at[0] or at[1]))
            return
        recorder.overflowed |= self.had_enough
        if recorder.overflowed and user is not None and get_ident() == self._thread:
            self._retire_at_next_line(user)
        if record.kind in _WAITS:
            recorder.add_read(record, result, construct_of(inner) if inner else None, at[0] or at[1])
        if self.on_wait is not None and (record.kind in _WAITS or record.kind == "dynamic"):
            self.on_wait(recorder, record)


def _keys_come_back() -> bool:
    """True in a block, or in a backward pass, that puts the dispatch keys back at its end."""
    return torch.is_inference_mode_enabled() or blocks.saves_keys or torch._C._current_graph_task_id() != -1


def _include(included: bool) -> None:
    for key in (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot):
        torch._C._dispatch_tls_set_dispatch_key_included(key, included)


def record(
    tracer: Tracer,
    device: torch.device,
    leaves: Sequence[torch.Tensor],
    body: Callable[[], object],
    keep: bool = False,
    on_wait: Callable[[Recorder, OpRecord], None] | None = None,
    limit: int = LIMIT,
    own_ns: float = math.inf,
    beside_ns: float = math.inf,
    on_overflow: Callable[[], None] | None = None,
) -> tuple[object, RecordedCall, tuple[tuple[str, Position | None], ...]]:
    """Run `body` once under the tracer; its result, what it dispatched, and what escaped the dispatcher's sight.

    `keep`, `limit`, `on_wait` and `on_overflow` are those of `Recorder` and `Tracer`. The tracer may take `own_ns`
    by its own clock, and what it takes to come to it `beside_ns`.
    """
    recorder = Recorder(device, leaves, limit, keep)
    stays, before_ns = tracer.on_stack, tracer.own_ns
    start = perf_counter_ns()
    watch: EscapeWatch | None = None
    try:  # from here on an interrupt may come
        tracer.enter()
        tracer.listen(recorder)
        tracer.on_wait, tracer.on_overflow = on_wait, on_overflow
        tracer.begin_call(own_ns, beside_ns)
        watch = tracer.watch()
        with without_outer_casts():
            result = body()
    finally:
        tracer.unwatch()
        if watch is not None and watch.on_stack:
            watch.leave()  # muted in a hook of a backward, at whose end torch puts all modes back
        tracer.own_until = tracer.beside_most = math.inf
        tracer.recorded_ns += tracer.own_ns - before_ns
        if stays:
            tracer.mute()
        else:
            tracer.leave()
    return result, recorder.finish(perf_counter_ns() - start), tuple(recorder.escapes)
