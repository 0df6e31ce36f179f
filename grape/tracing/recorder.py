"""Records the operators of one call as frozen `OpRecord`s, and keeps what is needed to run parts of them again.

Storages are numbered in the order in which the call meets them, arguments first, so that two calls that do the same
work have equal traces whatever the addresses. A weak reference to every storage is held until the call ends: while it
is held, the identity of a freed storage cannot be given to a new one.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..model import HostRead, OpRecord, Position, TensorView, Trace
from ..model.call import Args, Kwargs
from .operators import HOST_READS, Facts, Operator, facts_of, kind_of, tensors_in

aten = torch.ops.aten

_base = torch._C.TensorBase  # a statement that runs now may put other methods in the place of `Tensor`'s
_storage, _offset, _strides, _address = _base.untyped_storage, _base.storage_offset, _base.stride, _base.data_ptr
_dtypes: dict[torch.dtype, str] = {}
_devices: dict[torch.device, str] = {}


_COMPARED = frozenset(
    {type(None), str, bytes, complex, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size}
)
"""Kinds of arguments that are equal where their values are."""


class ByIdentity:
    """An argument whose `==` may raise, or give no bool (a script object with packed weights): equal to itself only."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return type(self.value).__name__


Before = tuple[tuple[object, ...], tuple[tuple[str, object], ...], list[TensorView], int]
"""Of an operator that is about to run: its arguments, frozen, the tensors among them, the number of known storages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A trace together with the operators themselves and, where they still live, the storages that it named.

    `functions[i]` ran as `trace.ops[i]`. `storages[n]` refers weakly to the n-th storage.
    """

    trace: Trace
    functions: tuple[object, ...]
    storages: tuple[StorageWeakRef, ...]
    born: frozenset[int]
    values: Mapping[int, object]
    """Values that the host read, by ordinal of the operator."""
    constants: Mapping[int, torch.Tensor]
    """Copies of tensors made from Python values, by storage number; kept on request."""
    arrivals: Mapping[int, torch.Tensor]
    """Device copies of what operators brought to the device, by ordinal; kept on request."""


LIMIT = 20_000
"""A call with so many operators is not recorded to its end."""


class Recorder:
    """Collects the operators of one call on `device`. Not reentrant; `limit` bounds the number of operators.

    With `keep`, copies of host data that reached the device are kept for a capture of the same call.
    """

    def __init__(
        self, device: torch.device, leaves: Sequence[torch.Tensor] = (), limit: int = LIMIT, keep: bool = False
    ) -> None:
        self.device = device
        self._kind_of_device = device.type
        self.limit = limit
        self.keep = keep
        self.values: dict[int, object] = {}
        self.constants: dict[int, torch.Tensor] = {}
        self.arrivals: dict[int, torch.Tensor] = {}
        self.overflowed = False
        self._numbers: dict[int, int] = {}
        self._bases: list[int] = []
        self._references: list[StorageWeakRef] = []
        self.born: set[int] = set()
        """Storages that were made since the recording began."""
        self._seeds: dict[int, str] = {}
        """Storages of seeds, and the device that the trace gives them."""
        self.ops: list[OpRecord] = []
        """The records so far."""
        self._functions: list[object] = []
        self._reads: list[HostRead] = []
        self._needs_grad = self._second_order = False
        self.escapes: list[tuple[str, Position | None]] = []
        for leaf in leaves:
            number = self._number(leaf)
            if number < len(self._bases):
                self._bases[number] = min(self._bases[number], int(_offset(leaf)))
            else:
                self._bases.append(int(_offset(leaf)))
        self._arguments = tuple(range(len(self._references)))

    def __len__(self) -> int:
        return len(self.ops)

    def storage(self, number: int) -> int:
        return int(self._references[number].cdata)

    @property
    def last_read(self) -> HostRead | None:
        return self._reads[-1] if self._reads else None

    def _number(self, tensor: torch.Tensor) -> int:
        storage = _storage(tensor)
        key = storage._cdata
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._references)
            self._references.append(StorageWeakRef(storage))
        return number

    def _view(self, tensor: torch.Tensor) -> TensorView:
        number = self._number(tensor)
        base = self._bases[number] if number < len(self._bases) else 0
        return TensorView(
            number,
            int(_offset(tensor)) - base,
            tuple(tensor.shape),
            _strides(tensor),
            _dtypes.get(tensor.dtype) or _dtypes.setdefault(tensor.dtype, str(tensor.dtype)[6:]),
            self._seeds.get(number)
            or _devices.get(tensor.device)
            or _devices.setdefault(tensor.device, str(tensor.device)),
            tensor.nbytes,
        )

    def _freeze(self, value: object, found: list[TensorView]) -> object:
        """`value` as frozen data; the tensors in it are added to `found`, in order."""
        kind = type(value)
        if kind is int or kind is bool:
            return (kind.__name__, value)
        if isinstance(value, torch.Tensor):
            view = self._view(value)
            found.append(view)
            return view
        if isinstance(value, (tuple, list)):
            return tuple([self._freeze(item, found) for item in value])
        if isinstance(value, float) and value != value:
            return "nan"
        if isinstance(value, float) and value == 0.0 and math.copysign(1.0, value) < 0.0:
            return (kind.__name__, "-0.0")  # which equals 0.0, and gives other bits
        if isinstance(value, (int, float)):
            return (kind.__name__, value)
        return value if kind in _COMPARED or kind.__eq__ is object.__eq__ else ByIdentity(value)

    def _place(self, seeds: Sequence[object], device: torch.device) -> None:
        """Have the trace say that they lie on `device`."""
        self._seeds.update((self._number(seed), str(device)) for seed in seeds if isinstance(seed, torch.Tensor))

    def before(self, function: Operator, args: Args, kwargs: Kwargs) -> Before:
        """Freeze the arguments as they stand before `function` runs; give the result to `after`.

        `lift_fresh` takes a tensor that nobody has seen before: what counts is what comes out of it.
        """
        inputs: list[TensorView] = []
        if function is aten.lift_fresh.default:
            return (), (), inputs, len(self._references)
        facts = facts_of(function)
        if facts.given_seeds:
            self._place([args[at] for at in facts.given_seeds if at < len(args)], args[0].device)
        frozen = tuple([self._freeze(value, inputs) for value in args])
        items = tuple([(name, self._freeze(value, inputs)) for name, value in kwargs.items()])
        return frozen, items, inputs, len(self._references)

    def after(
        self,
        before: Before,
        function: Operator,
        args: Args,
        kwargs: Kwargs,
        result: Any,
        positions: tuple[Position | None, Position | None],
        host_ns: int,
        contents: object = None,
    ) -> OpRecord:
        """Add the operator that has just run. `contents` stands in for those of a tensor that cannot be read now."""
        frozen, frozen_kwargs, inputs, known = before
        facts = facts_of(function)
        results = [result] if isinstance(result, torch.Tensor) else list(tensors_in(result))
        if facts.seeds and results:
            self._place([result[at] for at in facts.seeds], results[0].device)
        outputs = tuple([self._view(tensor) for tensor in results])
        if facts.lifts:
            # A tensor made from Python values enters here; its contents are scalars of the trace.
            frozen_kwargs = (*frozen_kwargs, ("contents", contents or contents_of(args[0])))
        born: tuple[int, ...] = ()
        if len(self._references) > known:
            born = tuple(sorted({view.storage for view in outputs if view.storage >= known}))
            self.born.update(born)
        written = self._written(facts, args, kwargs) if facts.writes or facts.statistics else ()
        if torch.is_grad_enabled() and not self._second_order:
            self._second_order = torch._C._current_graph_task_id() != -1
        if not self._needs_grad and torch.is_grad_enabled():
            # Seen from below autograd, results carry no mark yet; what they are computed from does.
            given = (*tensors_in(args), *tensors_in(tuple(kwargs.values())))
            self._needs_grad = any(tensor.requires_grad for tensor in given)
        record = OpRecord(
            len(self.ops),
            facts.name,
            kind_of(facts, args, kwargs, inputs, outputs, born, written, self._here),
            frozen,
            frozen_kwargs,
            outputs,
            written,
            born,
            positions[0],
            positions[1],
            host_ns,
        )
        self.ops.append(record)
        self._functions.append(function)
        if facts.reads and function in HOST_READS:
            self.values[record.ordinal] = result
        if self.keep:
            self._keep(record, function, args, results)
        if len(self.ops) >= self.limit:
            self.overflowed = True
        return record

    def _keep(self, record: OpRecord, function: object, args: Args, results: list[torch.Tensor]) -> None:
        if function is aten.lift_fresh.default:
            copy = results[0].clone()
            self.constants[record.outputs[0].storage] = copy
            if copy.device.type == self.device.type:
                self.arrivals[record.ordinal] = copy
        elif record.kind == "transfer-in":
            source = args[1] if function is aten.copy_.default else results[0]
            self.arrivals[record.ordinal] = source.to(self.device, copy=True)

    def add_read(self, record: OpRecord, value: object, construct: str | None, position: Position | None) -> None:
        """Note that the host waited for `value` at `record`."""
        self._reads.append(
            HostRead(
                ordinal=record.ordinal,
                value=value if isinstance(value, (bool, int, float, complex)) else None,
                wait_ns=record.host_ns,
                construct=construct,
                position=position,
            )
        )

    def add_decision(self, value: bool, wait_ns: int, construct: str, position: Position | None) -> None:
        """Note a value that decided what came next, and that a capture need not read: no operator stands for it."""
        self._reads.append(HostRead(ordinal=-1, value=value, wait_ns=wait_ns, construct=construct, position=position))

    def _written(self, facts: Facts, args: Args, kwargs: Kwargs) -> tuple[int, ...]:
        written: set[int] = set()
        for position, name, keyword_only in facts.writes:
            value = args[position] if not keyword_only and position < len(args) else kwargs.get(name)
            written.update(self._number(tensor) for tensor in tensors_in(value))
        if facts.statistics is not None:
            mean, variance, training = facts.statistics
            if training is None or args[training]:
                written.update(self._number(tensor) for tensor in tensors_in((args[mean], args[variance])))
        return tuple(sorted(written))

    def _here(self, device: str) -> bool:
        return device.startswith(self._kind_of_device)

    def finish(self, wall_ns: int = 0) -> RecordedCall:
        """The trace of what was recorded. The recorder is not used after that."""
        met = range(len(self._arguments), len(self._references))
        external = tuple(number for number in met if number not in self.born)
        return RecordedCall(
            trace=Trace(
                ops=tuple(self.ops),
                host_reads=tuple(self._reads),
                argument_storages=self._arguments,
                external_storages=external,
                needs_grad=self._needs_grad,
                second_order=self._second_order,
                wall_ns=wall_ns,
                cut=self.overflowed,
            ),
            functions=tuple(self._functions),
            storages=tuple(self._references),
            born=frozenset(self.born),
            values=self.values,
            constants=self.constants,
            arrivals=self.arrivals,
        )


def contents_of(tensor: torch.Tensor) -> object:
    """The bytes of a tensor that was just made from Python values; their digest if there are many.

    The memory is read as it lies: an operator, or `tolist`, would be seen by whoever watches operators.
    """
    host = tensor if tensor.device.type == "cpu" else tensor.cpu()
    if host.numel() == 0:
        return b""
    size = (1 + sum((n - 1) * stride for n, stride in zip(host.shape, _strides(host), strict=True))) * host.itemsize
    raw = ctypes.string_at(_address(host), size)
    return raw if len(raw) <= 64 else hashlib.blake2b(raw, digest_size=16).digest()
