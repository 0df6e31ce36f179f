"""Streams and events without a GPU, and a detector of races between them.

Operators run at once, on the CPU, in the order of the host. What a device would do in another order is found by vector
clocks: each access to memory has to come behind the accesses that it must not overtake, and memory that was let go of
may be given away again by the stream that it belongs to, as torch's allocator does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.pipelines import own_streams, pipelining, stage, state

Clock = dict["FakeStream", int]


class FakeEvent:
    def __init__(self, clock: Clock, device: torch.device) -> None:
        self.clock = clock
        self.device = device


class FakeStream:
    current: dict[torch.device, FakeStream]

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.clock: Clock = {self: 0}

    def tick(self) -> Clock:
        self.clock[self] += 1
        return dict(self.clock)

    def behind(self, access: Clock, of: FakeStream) -> bool:
        """True where what this stream does next comes behind `access`, which was `of` a stream."""
        return self.clock.get(of, 0) >= access[of]

    def record_event(self) -> FakeEvent:
        return FakeEvent(self.tick(), self.device)

    def wait_event(self, event: FakeEvent) -> None:
        for stream, time in event.clock.items():
            self.clock[stream] = max(time, self.clock.get(stream, 0))

    def wait_stream(self, stream: FakeStream) -> None:
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        for stream in FakeStream.current.values():
            stream.wait_stream(self)


class Memory:
    """What was done to one storage since it was made, and the stream that it belongs to."""

    def __init__(self, reference: StorageWeakRef, owner: FakeStream, made: object) -> None:
        self.reference = reference
        self.made = made
        self.owner = owner
        self.kept_for: set[FakeStream] = set()
        """Those that the allocator was told of: it waits for them itself."""
        self.reads: list[tuple[FakeStream, Clock]] = []
        self.write: tuple[FakeStream, Clock] | None = None


class Races(TorchDispatchMode):
    """Finds accesses that no event keeps in order. `found` says which."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.found: list[str] = []
        self._memory: dict[int, Memory] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        stream = FakeStream.current[self.device]
        arguments = func._schema.arguments
        given = [*zip(arguments, args, strict=False), *((a, kwargs[a.name]) for a in arguments if a.name in kwargs)]
        looks = func.is_view or func.overloadpacket in (torch.ops.aten.set_, torch.ops.aten.detach)
        for argument, value in given:
            for tensor in _tensors(value):
                if not looks:
                    self._access(func, tensor, stream, bool(argument.alias_info and argument.alias_info.is_write))
        for tensor in _tensors(result):
            key = int(tensor.untyped_storage()._cdata)
            if key not in self._memory:
                self._give_away(stream, func)
                memory = self._memory[key] = Memory(StorageWeakRef(tensor.untyped_storage()), stream, func)
                if not func._schema.name.startswith("aten::empty"):
                    memory.write = (stream, stream.tick())
        return result

    def _access(self, func: Any, tensor: torch.Tensor, stream: FakeStream, writes: bool) -> None:
        memory = self._memory.get(int(tensor.untyped_storage()._cdata))
        if memory is None:
            return  # from before
        if memory.write is not None and not stream.behind(memory.write[1], memory.write[0]):
            self.found.append(f"{func} before the write")
        if writes:
            if not all(stream.behind(clock, of) for of, clock in memory.reads):
                self.found.append(f"{func} writes before a read")
            memory.write, memory.reads = (stream, stream.tick()), []
        else:
            memory.reads.append((stream, stream.tick()))

    def keep_for(self, tensor: torch.Tensor, stream: FakeStream) -> None:
        memory = self._memory.get(int(tensor.untyped_storage()._cdata))
        if memory is not None:
            memory.kept_for.add(stream)

    def _give_away(self, stream: FakeStream, func: Any) -> None:
        """Memory of this stream that nobody refers to may be the one that is asked for now."""
        for key, memory in list(self._memory.items()):
            if memory.owner is stream and memory.reference.expired():
                accesses = [*memory.reads, *([memory.write] if memory.write else [])]
                if not all(of in memory.kept_for or stream.behind(clock, of) for of, clock in accesses):
                    self.found.append(f"{func} is given memory of {memory.made} that is in use")
                del self._memory[key]


@contextmanager
def streams_of(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> Iterator[Races]:
    """Inside, stages of the CPU are taken for ones of `device`, and every operator is watched."""
    FakeStream.current = {device: FakeStream(device)}

    @contextmanager
    def entered(stream: FakeStream | None) -> Iterator[None]:
        before = FakeStream.current[device]
        FakeStream.current[device] = stream or before
        try:
            yield
        finally:
            FakeStream.current[device] = before

    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda of=None: FakeStream.current[device])
    monkeypatch.setattr(torch.cuda, "default_generators", (torch.default_generator,))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(
        stage.Stage, "_offset", lambda self: hash(torch.default_generator.get_state().numpy().tobytes())
    )
    monkeypatch.setattr(stage, "StageBackend", lambda *_: ReferenceBackend())
    monkeypatch.setattr(pipelining, "devices_of", lambda stages, named: [device] * len(stages))
    used: dict[str, FakeStream] = {}
    monkeypatch.setattr(own_streams, "private_stream", lambda of, use: used.setdefault(use, FakeStream(of)))
    monkeypatch.setattr(own_streams, "_made", {})
    monkeypatch.setattr(own_streams, "_free", {})
    with Races(device) as races:
        monkeypatch.setattr(state, "keep_for", races.keep_for)
        yield races


def _tensors(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [one for one in values if isinstance(one, torch.Tensor)]
