"""`grape.pipeline`: stages that work on different samples of a stream at the same time.

After PARTIME (Meloni et al., "PARTIME: Scalable and Parallel Processing Over Time with Deep Neural Networks", 2022),
where layers of a network work on different samples of a stream; but here a result is that of its sample and of no
older one, with the bits of a loop that takes one sample after the other.

Samples are issued one after the other, each through all stages, in the thread of the caller: Python code, random
numbers and errors have the order of that loop. Only the device overlaps them, for each stage has a stream of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import nn

from ...errors import UsageError
from ...streams import shared as streams
from .own_streams import OwnStreams
from .sharing import Versions, conflict
from .stage import Stage
from .stages import check_depth, devices_of, named_devices, stages_of
from .values import copied, devices_in, like

LOOKED_AT = 3
"""So many samples go through one after the other, while what the stages touch is looked at."""


def pipeline(
    stages: nn.Sequential | nn.ModuleList | Sequence[Callable[[Any], Any]],
    *,
    depth: int | None = None,
    devices: Sequence[torch.device | str | int] | None = None,
) -> Pipeline:
    """Have `stages` work on different samples at once: ``for y in grape.pipeline([encode, decode])(samples): ...``.

    Each stage takes what the one before returned, as the layers of an `nn.Sequential` do, and runs on a stream of its
    own, as a CUDA graph where it can be captured and verified. Results come in order, one for each sample, with the
    bits of the sequential loop. `depth` is how many samples are in flight (default: as many as there are stages): a
    result comes ``depth - 1`` samples after its own was taken. `devices` names one for each stage; modules are moved
    there, and so are values. Without a GPU the stages run one after the other.

    An `nn.Sequential` is cut into as many stages as there are `devices`, else into `depth` or four, or as many as
    there are layers with parameters, each with about as many of them; ``list(model)`` makes each layer a stage.

    Values are tensors, and tuples, lists and dicts of them; stages get copies, without a history of autograd. A stage
    may learn: it calls `backward` and steps an optimizer of its own. Raises `UsageError` for what is no list of stages,
    and for a depth or devices that are none.
    """
    if depth is not None:
        check_depth(depth)
    named = None if devices is None else named_devices(devices)
    functions = stages_of(stages, count=None if named is None else len(named), most=depth)
    where = devices_of(functions, named)
    if named is not None:
        for function, device in zip(functions, named, strict=True):
            if isinstance(function, nn.Module):
                function.to(device)
    own = OwnStreams()
    try:
        made = [Stage(one, device, own, chosen=named is not None) for one, device in zip(functions, where, strict=True)]
    except UsageError:
        own.give_back()
        raise
    return Pipeline(made, depth or len(made), own)


Owners = Sequence[torch.cuda.Stream]


class _Flight:
    """A sample on its way, `done` behind some events. `held` is memory that stages may still read, `owners` are the
    streams of the caller to which that of sample and result belongs.
    """

    def __init__(self, result: object, held: list[object], done: list[torch.cuda.Event], owners: Owners) -> None:
        self.done = done
        self._result = result
        self._held = held
        self._owners = owners

    def hand_over(self, current: Owners) -> object:
        """The result, for the current streams, which wait until it is there."""
        self._settle(current)
        result, self._result = self._result, None
        if any(stream not in self._owners for stream in current):
            result = copied(result)  # whoever gets it lets go of it in the order of his own stream
            for owner in self._owners:
                for stream in current:
                    owner.wait_event(stream.record_event())
        return result

    def _settle(self, current: Owners = ()) -> None:
        """What the owners of the memory do from now on comes after all that the stages do with it."""
        for stream in {*self._owners, *current} if self._held else ():
            for event in self.done:
                stream.wait_event(event)
        self._held = []

    def __del__(self) -> None:
        if self._held and self.done and not torch.cuda._is_in_bad_fork():
            self._settle()


class Pipeline:
    """What `grape.pipeline` returns: call it with samples, or `push` them one by one and `drain` at the end.

    A loop that is left early leaves the results that were under way to `drain`; another loop lets go of them. `close`,
    or the end of a ``with`` block, waits for the stages and gives their graphs back.
    """

    def __init__(self, stages: list[Stage], depth: int, own: OwnStreams) -> None:
        self._stages = stages
        self._depth = depth
        self._own = own
        self._flights: deque[_Flight] = deque()
        self._samples = 0
        self._looked_at = 0
        self._versions: Versions | None = None
        self._loop: object = None
        self._last: list[torch.cuda.Event] = []
        """When the sample that was issued last is done."""
        self._free: list[torch.cuda.Event] = []
        """When memory of stages that was let go of is free: what is issued from now on comes behind."""
        self._closed = False
        self._devices = list(dict.fromkeys(stage.device for stage in stages if stage.device.type == "cuda"))
        self._serial = None if self._devices else "there is no GPU among the devices"

    @property
    def depth(self) -> int:
        """How many samples are in flight at most."""
        return self._depth

    @property
    def lag(self) -> int:
        """How many samples are taken after its own before a result comes."""
        return self._depth - 1

    @property
    def serial(self) -> str | None:
        """Why samples go through the stages one after the other; None where they overlap."""
        return self._serial

    def __call__(self, samples: Iterable[Any]) -> Iterator[Any]:
        """The results of `samples`, in order. No more than `lag` samples are taken ahead of the result that is next.

        An error of a stage, or of `samples`, is raised behind the results of all samples before it; nothing is taken or
        run behind it, and the pipeline can be used on. Raises `UsageError` where it is closed.
        """
        self._check()
        if not hasattr(samples, "__iter__") and not hasattr(samples, "__getitem__"):
            raise UsageError(f"a pipeline needs samples to iterate over, not a {type(samples).__name__}")
        self._drop()
        self._loop = loop = object()
        return self._results(iter(samples), loop)

    def _results(self, samples: Iterator[object], loop: object) -> Iterator[object]:
        failed: Exception | None = None
        while failed is None:
            if self._loop is not loop:
                raise UsageError("this pipeline has been given other samples meanwhile; one loop at a time has its own")
            try:
                due = self._push(next(samples))
            except StopIteration:
                break
            except Exception as error:
                failed = error
            else:
                yield from due
        while self._flights and self._loop is loop:
            yield self._take()
        if failed is not None:
            try:
                raise failed
            finally:
                failed = None

    def push(self, sample: object) -> list[Any]:
        """Send `sample` on its way; the results that are due: none while the pipeline fills, then one.

        An error of a stage is raised here, at its sample; results of samples before it are still under way.
        """
        self._loop = None
        return self._push(sample)

    def drain(self) -> Iterator[Any]:
        """The results that are still under way, in order, also after `close`."""
        while self._flights:
            yield self._take()

    def close(self) -> None:
        """Wait until all stages are done, and give back their graphs. Results that are left stay for `drain`."""
        if not self._closed:
            self._closed = True
            for stage in self._stages:
                stage.release()
            self._own.give_back()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_devices", None) and not torch.cuda._is_in_bad_fork():
            with suppress(Exception):  # the process may be ending
                for stage in self._stages:
                    stage.wait()
                self._own.give_back()

    def __repr__(self) -> str:
        many = "1 stage" if len(self._stages) == 1 else f"{len(self._stages)} stages"
        late = "1 sample" if self.lag == 1 else f"{self.lag} samples"
        how = f"one sample at a time ({self._serial})" if self._serial is not None else f"results come {late} late"
        lines = [f"grape.pipeline of {many}, depth {self._depth}: {how}" + (", closed" if self._closed else "")]
        for number, stage in enumerate(self._stages):
            lines.append(f"  {number} {stage.name} on {stage.device}: {stage.state}")
        return "<" + "\n".join(lines) + ">"

    # -- one sample --------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._closed:
            raise UsageError("this pipeline is closed")
        if self._devices and torch.cuda.is_current_stream_capturing():
            raise UsageError("a pipeline cannot run while the current stream is captured: it has streams of its own")

    def _push(self, sample: object) -> list[object]:
        self._check()
        with streams.aside():
            self._flights.append(self._issue(sample))
        self._samples += 1
        return [self._take()] if len(self._flights) >= self._depth else []

    def _take(self) -> object:
        flight = self._flights.popleft()
        with streams.aside():
            result = flight.hand_over(self._current(self._devices))
        self._free = flight.done
        return result

    def _drop(self) -> None:
        """Let go of what is under way."""
        if self._flights:
            self._flights.clear()
            self._free = self._last

    def _devices_beside(self, sample: object) -> list[torch.device]:
        """Those of the stages, and where the sample comes from."""
        if not self._devices:
            return []
        given = [device for device in devices_in(sample) if device.type == "cuda" and device not in self._devices]
        return [*self._devices, *given]

    def _current(self, devices: Iterable[torch.device]) -> list[torch.cuda.Stream]:
        return [torch.cuda.current_stream(device) for device in devices]

    def _issue(self, sample: object) -> _Flight:
        """Put one sample through all stages. What memory they use is free again when the flight is settled.

        Memory of a stage belongs to its stream. Once it is let go of, what is issued there comes behind `_free`.
        """
        looking = self._looked_at < LOOKED_AT
        current = self._current(self._devices_beside(sample))
        if self._versions is not None and not self._flights:
            self._versions.remember()
        value = copied(sample)
        began = [stream.record_event() for stream in current]
        after = [*began, *(self._last if looking or self._serial is not None else self._free)]
        held = [value]
        try:
            for number, stage in enumerate(self._stages):
                take = self._of_the_caller(current) if stage is self._stages[-1] and current else like
                if number and len(began) > 1:
                    after = [*after, *began]
                value, after = stage.run(value, after, take, held, looking=looking)
                if self._versions is not None and not stage.served and self._versions.late(number):
                    raise self._late_write(number)
        except BaseException:
            self._wait_for_stages(current)
            raise
        self._last = after
        if looking:
            self._looked()
        return _Flight(value, held, after, current)

    def _of_the_caller(self, current: Owners) -> Callable[[torch.Tensor], torch.Tensor]:
        """Memory of results belongs to the caller's streams, as that of any tensor that he makes."""

        def take(tensor: torch.Tensor) -> torch.Tensor:
            with ExitStack() as stack:
                for stream in current:
                    stack.enter_context(torch.cuda.stream(stream))
                return like(tensor)

        return take

    def _wait_for_stages(self, current: Owners) -> None:
        """A sample was given up on its way: what it used is free behind all that was issued."""
        for stage in self._stages:
            for stream in current:
                stage.hold_up(stream)
        self._free = [stream.record_event() for stream in current]

    def _looked(self) -> None:
        """Once enough was seen: may the stages overlap, and what must none of them write?"""
        self._looked_at += 1
        if self._looked_at < LOOKED_AT:
            return
        seen = [stage.touched for stage in self._stages]
        found = conflict(seen)
        if found is not None:
            writer, reader = found
            self._serial = self._serial or f"stage {reader} uses what stage {writer} writes"
        if self._serial is None and self._depth > 1:
            self._versions = Versions(seen)
        for stage in self._stages:
            stage.touched.forget()

    def _late_write(self, number: int) -> UsageError:
        """Stages that use what was written were at work: their results cannot be told from wrong ones."""
        self._drop()
        self._versions = None
        self._serial = f"stage {number} wrote what another one uses"
        return UsageError(
            f"stage {number} of the pipeline wrote what another stage uses, for the first time, at sample "
            f"{self._samples}, while samples before it were in flight; their results are dropped. "
            "Make one stage of the two, or have it write in the first samples"
        )
