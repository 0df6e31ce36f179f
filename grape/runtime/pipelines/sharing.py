"""Memory that two stages use and one of them writes or makes: such stages must not work at the same time.

The first samples go through the stages one after the other, and a dispatch mode looks at what each stage reads, writes
and makes. Later writes to what others read are found by their version counters, in calls that no graph served: a graph
does what was seen when it was captured.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from ...model.call import Args, Kwargs
from ...tracing import OwnMode, issue

_Memory = dict[int, StorageWeakRef]
"""By identity; the weak reference keeps the identity from being given to other memory."""


class Touched:
    """What a stage read, wrote and made in the calls that were looked at; `tensors` are those that it did not make."""

    def __init__(self) -> None:
        self.read: _Memory = {}
        self.written: _Memory = {}
        self.made: _Memory = {}
        self.tensors: dict[int, weakref.ref[torch.Tensor]] = {}

    def look(self, call: Callable[[], object], given: object) -> object:
        """The result of `call`. What the stage is `given` is its own."""
        for leaf in pytree.tree_leaves(given):
            if isinstance(leaf, torch.Tensor):
                self._add(self.made, leaf)
        with _Looking(self):
            return call()

    def uses(self, tensor: torch.Tensor, *, writes: bool) -> None:
        key = _memory_of(tensor)
        if key is None or key in self.made:
            return
        self._add(self.read, tensor)
        self.tensors.setdefault(key, weakref.ref(tensor))
        if writes:
            self._add(self.written, tensor)

    def returns(self, tensor: torch.Tensor) -> None:
        key = _memory_of(tensor)
        if key is not None and key not in self.read:
            self._add(self.made, tensor)

    def forget(self) -> None:
        """Nobody asks any more: let go of the memory's identities."""
        for memory in (self.read, self.written, self.made):
            memory.clear()
        self.tensors.clear()

    def _add(self, memory: _Memory, tensor: torch.Tensor) -> None:
        key = _memory_of(tensor)
        if key is not None and key not in memory:
            memory[key] = StorageWeakRef(tensor.untyped_storage())


class _Looking(OwnMode):
    def __init__(self, found: Touched) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):
            return self._whole(func, tuple(args), kwargs)
        arguments = func._schema.arguments
        named = {argument.name: argument for argument in arguments}
        given = [
            *zip(arguments, args, strict=False),
            *((named[name], kwargs[name]) for name in kwargs if name in named),
        ]
        for argument, value in given:
            for tensor in _tensors(value):
                self._found.uses(tensor, writes=_writes(argument))
        result = issue(func, tuple(args), kwargs)
        for tensor in _tensors(result):
            self._found.returns(tensor)
        return result

    def _whole(self, func: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
        """A higher-order operator may write what it is given; what it makes of other operators is not seen."""
        for given in pytree.tree_leaves((args, kwargs)):
            if isinstance(given, torch.Tensor):
                self._found.uses(given, writes=True)
        result = issue(func, args, kwargs)
        for made in pytree.tree_leaves(result):
            if isinstance(made, torch.Tensor):
                self._found.returns(made)
        return result


class Versions:
    """The version counters of memory that stages use and none of them wrote while it was looked at."""

    def __init__(self, stages: Sequence[Touched]) -> None:
        written = {key for one in stages for key in one.written}
        self._tensors = {
            key: ref
            for one in stages
            for key, ref in one.tensors.items()
            if key not in written and (tensor := ref()) is not None and not tensor.is_inference()
        }
        self._users = {key: {n for n, one in enumerate(stages) if key in one.read} for key in self._tensors}
        self._versions: dict[int, int | None] = {}
        self.remember()

    def remember(self) -> None:
        """What was written so far, nobody used meanwhile."""
        self._versions = {key: _version(ref) for key, ref in self._tensors.items()}

    def late(self, number: int) -> bool:
        """True where a call of stage `number` wrote what another stage uses. What it uses alone is its own from now on.

        To be asked behind each call that no graph served.
        """
        changed = [key for key, ref in self._tensors.items() if _version(ref) != self._versions[key]]
        for key in changed:
            if self._users[key] != {number}:
                return True
            del self._tensors[key]
        return False


def conflict(stages: Sequence[Touched]) -> tuple[int, int] | None:
    """Two stages, the first of which writes or makes what the other one uses; None where there are none."""
    for writer, one in enumerate(stages):
        for reader, other in enumerate(stages):
            if reader != writer and not other.read.keys().isdisjoint({*one.written, *one.made}):
                return writer, reader
    return None


def _version(ref: weakref.ref[torch.Tensor]) -> int | None:
    tensor = ref()
    return None if tensor is None else tensor._version


def _writes(argument: torch._C.Argument) -> bool:
    # The schemas of batch normalization leave out that running averages are written.
    info = argument.alias_info
    return (info is not None and info.is_write) or argument.name.startswith("running_")


def _tensors(value: object) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return (value,)
    if isinstance(value, (list, tuple)):
        return [one for one in value if isinstance(one, torch.Tensor)]
    return ()


def _memory_of(tensor: torch.Tensor) -> int | None:
    """The identity of its memory; None where it has none of its own."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None
