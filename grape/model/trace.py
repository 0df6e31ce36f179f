"""The operator trace of one call: what ran, on which storages, from which line.

Pure data. `grape.tracing` makes traces; rules and the audit read them. Two calls with equal `signature()` did the
same device work up to the contents of their inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from .call import Args
from .location import Position

HOST_RANDOM = "host-random"
"""The kind of an operator that draws random numbers on the CPU, in a region that works on a device."""


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor as the trace sees it: a view of the `storage`-th storage that the call touched.

    `offset`, `shape` and `stride` count elements. `dtype` and `device` are their torch names ("float16", "cuda:0").
    """

    storage: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One operator as it was dispatched.

    `args` and `kwargs` hold `TensorView`s where tensors stood and plain values (numbers, strings, torch enums)
    elsewhere, nested as they were passed. `written` are storages that existed before and that the operator writes.
    `born` are storages that the operator allocated. `kind` is "compute", "view" (no device work), "host-read"
    (the CPU waits for a value), "transfer-in" (CPU to device), "transfer-out" (device to CPU; the CPU waits),
    "dynamic" (output shape depends on data), "random", "host" (runs on CPU tensors only) or "host-random" (draws on the
    CPU beside the device of the trace).
    """

    ordinal: int
    name: str
    kind: str
    args: Args
    kwargs: tuple[tuple[str, object], ...]
    outputs: tuple[TensorView, ...]
    written: tuple[int, ...]
    born: tuple[int, ...]
    user: Position | None
    inner: Position | None
    host_ns: int = 0

    @property
    def draws(self) -> bool:
        """True where it moves a random generator."""
        return self.kind in ("random", HOST_RANDOM)

    def tensors(self) -> Iterator[TensorView]:
        """The tensors among the arguments, in order."""
        return (value for value in self._values() if isinstance(value, TensorView))

    def scalars(self) -> tuple[object, ...]:
        """The values among the arguments that are no tensors, in order."""
        return tuple(value for value in self._values() if not isinstance(value, TensorView))

    def _values(self) -> Iterator[object]:
        return _leaves((self.args, tuple(value for _, value in self.kwargs)))

    def signature(self) -> tuple[object, ...]:
        """The facts that must be equal for two executions to have done the same work."""
        return (self.name, self.args, self.kwargs, self.outputs, self.written, self.born)

    def difference(self, other: OpRecord) -> str:
        """In words, what two executions of the operator do not have in common; "" where that is nothing."""
        for mine, theirs in zip(self.tensors(), other.tensors(), strict=False):
            if mine != theirs:
                return f"argument {_contrast(mine, theirs)}"
        for number, (mine, theirs) in enumerate(zip(self.outputs, other.outputs, strict=False)):
            if mine != theirs:
                return f"result {number} {_contrast(mine, theirs)}"
        if self.scalars() != other.scalars():
            return "other values"
        if (self.args, self.kwargs) != (other.args, other.kwargs):
            return "other arguments"
        return "other memory written or made" if self.signature() != other.signature() else ""


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _contrast(one: TensorView, other: TensorView) -> str:
    fields = [name for name in one.__slots__ if getattr(one, name) != getattr(other, name)]
    return ", ".join(f"{name} {getattr(one, name)} and then {getattr(other, name)}" for name in fields)


DECISION = "predicate"
"""The construct of a host read that a capture takes on the device instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRead:
    """A value that the CPU waited for. `value` is what it read (a Python number) or None where it was a tensor."""

    ordinal: int
    value: object
    wait_ns: int
    construct: str | None
    """The statement that used it: "if", "while", "assert", "ternary", "bool-op", "print", "call" or None.

    `DECISION` is one of `grape.cond` and its like; its ordinal is -1.
    """
    position: Position | None


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Trace:
    """All operators of one call, in order. `external` are storages that were read but neither passed in nor made.

    `cut`: there were more operators, past the limit of what is recorded. `second_order`: a backward pass recorded
    gradients (`create_graph=True`).
    """

    ops: tuple[OpRecord, ...]
    host_reads: tuple[HostRead, ...] = ()
    argument_storages: tuple[int, ...] = ()
    external_storages: tuple[int, ...] = ()
    needs_grad: bool = False
    second_order: bool = False
    wall_ns: int = 0
    cut: bool = False

    def signature(self) -> tuple[object, ...]:
        """Equal for two calls that issued the same operators on the same storages with the same scalars."""
        return tuple(op.signature() for op in self.ops)

    def first_difference(self, other: Trace) -> tuple[OpRecord | None, OpRecord | None] | None:
        """The first pair of operators that differ, or None where the traces are equal."""
        for mine, theirs in zip_longest(self.ops, other.ops):
            if mine is None or theirs is None or mine.signature() != theirs.signature():
                return mine, theirs
        return None
