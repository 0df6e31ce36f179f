"""Records the operators of one call as frozen `OpRecord`s, and keeps what is needed to run parts of them again.

Storages are numbered in the order in which the call meets them, arguments first, so that two calls that do the same
work have equal traces whatever the addresses. A weak reference to every storage is held until the call ends: while it
is held, the identity of a freed storage cannot be given to a new one.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..model import HOST_RANDOM, HostRead, OpRecord, Position, TensorView, Trace

__all__ = ["HOST_READS", "LIMIT", "RecordedCall", "Recorder", "contents_of", "tensors_in"]

aten = torch.ops.aten
HOST_READS = frozenset({aten._local_scalar_dense.default, aten.item.default, aten.is_nonzero.default})
"""Operators whose result is a Python value that the host waits for."""

_dtypes: dict[torch.dtype, str] = {}
_devices: dict[torch.device, str] = {}
_MASKS = (torch.bool, torch.uint8)
_STATISTICS: dict[Any, tuple[int, int, int | None]] = {
    aten.native_batch_norm.default: (3, 4, 5),
    aten.cudnn_batch_norm.default: (3, 4, 5),
    aten.miopen_batch_norm.default: (3, 4, 5),
    # In inference mode, operators that are made of others may reach a dispatch mode whole.
    aten.batch_norm.default: (3, 4, 5),
    aten._batch_norm_impl_index.default: (3, 4, 5),
    aten.instance_norm.default: (3, 4, None),
    aten.batch_norm_update_stats.default: (1, 2, None),
    aten.batch_norm_gather_stats.default: (3, 4, None),
    aten.batch_norm_gather_stats_with_counts.default: (3, 4, None),
}
"""Positions of the running mean and variance, which these write although no schema says so, and of `training`."""


_SEEDS = ("philox_seed", "philox_offset")
"""What PyTorch's attention leaves for its backward: on the CPU where it runs eagerly, on the device in a capture."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known of an operator, by its schema. `writes`: (position, name, keyword only) of what it writes;
    `seeds`: positions of results that lie on another device in a capture."""

    function: Any
    name: str
    reads: bool
    lifts: bool
    copies: bool
    dynamic: bool
    seeded: bool
    writes: tuple[tuple[int, str, bool], ...]
    statistics: tuple[int, int, int | None] | None
    seeds: tuple[int, ...]
    given_seeds: tuple[int, ...]


_facts: dict[int, _Facts] = {}
"""By identity: operators hash slowly. The facts keep the operator alive."""


def _facts_of(function: Any) -> _Facts:
    known = _facts.get(id(function))
    if known is None:
        known = _facts[id(function)] = _Facts(
            function=function,
            name=str(function),
            reads=function in HOST_READS or function is aten.equal.default,
            lifts=function is aten.lift_fresh.default,
            copies=function is aten.copy_.default,
            dynamic=torch.Tag.dynamic_output_shape in function.tags,
            seeded=torch.Tag.nondeterministic_seeded in function.tags,
            writes=tuple(
                (position, argument.name, argument.kwarg_only)
                for position, argument in enumerate(function._schema.arguments)
                if argument.alias_info is not None and argument.alias_info.is_write
            ),
            statistics=_STATISTICS.get(function),
            seeds=_seeds_among(function, function._schema.returns),
            given_seeds=_seeds_among(function, function._schema.arguments),
        )
    return known


def _seeds_among(function: Any, named: Sequence[Any]) -> tuple[int, ...]:
    """Operators of others may use the names for anything."""
    return tuple(i for i, one in enumerate(named) if one.name in _SEEDS) if function.namespace == "aten" else ()


def tensors_in(value: Any) -> Iterable[torch.Tensor]:
    """The tensors among an operator's (nested) arguments or results, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A trace together with the operators themselves and, where they still live, the storages that it named.

    `functions[i]` ran as `trace.ops[i]`. `storages[n]` refers weakly to the n-th storage.
    """

    trace: Trace
    functions: tuple[Any, ...]
    storages: tuple[StorageWeakRef, ...]
    born: frozenset[int]
    values: Mapping[int, Any]
    """What the host read, by ordinal of the operator."""
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
        self.values: dict[int, Any] = {}
        self.constants: dict[int, torch.Tensor] = {}
        self.arrivals: dict[int, torch.Tensor] = {}
        self.overflowed = False
        self._numbers: dict[int, int] = {}
        self._bases: list[int] = []
        self._references: list[StorageWeakRef] = []
        self._born: set[int] = set()
        self._seeds: dict[int, str] = {}
        """Storages of seeds, and the device that the trace gives them."""
        self._ops: list[OpRecord] = []
        self._functions: list[Any] = []
        self._reads: list[HostRead] = []
        self._needs_grad = False
        self.escapes: list[tuple[str, Position | None]] = []
        for leaf in leaves:
            number = self._number(leaf)
            if number < len(self._bases):
                self._bases[number] = min(self._bases[number], int(leaf.storage_offset()))
            else:
                self._bases.append(int(leaf.storage_offset()))
        self._arguments = tuple(range(len(self._references)))

    def __len__(self) -> int:
        return len(self._ops)

    @property
    def ops(self) -> Sequence[OpRecord]:
        """What was recorded so far."""
        return self._ops

    @property
    def born(self) -> Collection[int]:
        """Storages that were made since the recording began."""
        return self._born

    def storage(self, number: int) -> int:
        """The identity of the storage with this number."""
        return int(self._references[number].cdata)

    @property
    def last_read(self) -> HostRead | None:
        return self._reads[-1] if self._reads else None

    def _number(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
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
            int(tensor.storage_offset()) - base,
            tuple(tensor.shape),
            tensor.stride(),
            _dtypes.get(tensor.dtype) or _dtypes.setdefault(tensor.dtype, str(tensor.dtype)[6:]),
            self._seeds.get(number)
            or _devices.get(tensor.device)
            or _devices.setdefault(tensor.device, str(tensor.device)),
            tensor.nbytes,
        )

    def _freeze(self, value: Any, found: list[TensorView]) -> Any:
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
        return value

    def _place(self, seeds: Sequence[Any], device: torch.device) -> None:
        """Have the trace say that they lie on `device`."""
        self._seeds.update((self._number(seed), str(device)) for seed in seeds if isinstance(seed, torch.Tensor))

    def before(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Freeze the arguments as they stand before `function` runs; give the result to `after`.

        `lift_fresh` takes a tensor that nobody has seen before: what counts is what comes out of it.
        """
        inputs: list[TensorView] = []
        if function is aten.lift_fresh.default:
            return (), (), inputs, len(self._references)
        facts = _facts_of(function)
        if facts.given_seeds:
            self._place([args[at] for at in facts.given_seeds if at < len(args)], args[0].device)
        frozen = self._freeze(args, inputs)
        items = [(name, self._freeze(value, inputs)) for name, value in kwargs.items()] if kwargs else ()
        return frozen, tuple(items), inputs, len(self._references)

    def after(
        self,
        before: tuple[Any, ...],
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        positions: tuple[Position | None, Position | None],
        host_ns: int,
        contents: Any = None,
    ) -> OpRecord:
        """Add the operator that has just run. `contents` stands in for those of a tensor that cannot be read now."""
        frozen, frozen_kwargs, inputs, known = before
        facts = _facts_of(function)
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
            self._born.update(born)
        written = self._written(facts, args, kwargs) if facts.writes or facts.statistics else ()
        if not self._needs_grad and torch.is_grad_enabled():
            # Seen from below autograd, results carry no mark yet; what they are computed from does.
            given = (*tensors_in(args), *tensors_in(tuple(kwargs.values())))
            self._needs_grad = any(tensor.requires_grad for tensor in given)
        record = OpRecord(
            len(self._ops),
            facts.name,
            self._kind(facts, args, kwargs, inputs, outputs, born, written),
            frozen,
            frozen_kwargs,
            outputs,
            written,
            born,
            positions[0],
            positions[1],
            host_ns,
        )
        self._ops.append(record)
        self._functions.append(function)
        if facts.reads and function in HOST_READS:
            self.values[record.ordinal] = result
        if self.keep:
            self._keep(record, function, args, results)
        if len(self._ops) >= self.limit:
            self.overflowed = True
        return record

    def _keep(self, record: OpRecord, function: Any, args: tuple[Any, ...], results: list[torch.Tensor]) -> None:
        if function is aten.lift_fresh.default:
            copy = results[0].clone()
            self.constants[record.outputs[0].storage] = copy
            if copy.device.type == self.device.type:
                self.arrivals[record.ordinal] = copy
        elif record.kind == "transfer-in":
            source = args[1] if function is aten.copy_.default else results[0]
            self.arrivals[record.ordinal] = source.to(self.device, copy=True)

    def add_read(self, record: OpRecord, value: Any, construct: str | None, position: Position | None) -> None:
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

    def _written(self, facts: _Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
        written: set[int] = set()
        for position, name, keyword_only in facts.writes:
            value = args[position] if not keyword_only and position < len(args) else kwargs.get(name)
            written.update(self._number(tensor) for tensor in tensors_in(value))
        if facts.statistics is not None:
            mean, variance, training = facts.statistics
            if training is None or args[training]:
                written.update(self._number(tensor) for tensor in tensors_in((args[mean], args[variance])))
        return tuple(sorted(written))

    def _kind(
        self,
        facts: _Facts,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[TensorView],
        outputs: tuple[TensorView, ...],
        born: tuple[int, ...],
        written: tuple[int, ...],
    ) -> str:
        here = self._here
        if facts.lifts:
            return "view" if any(here(view.device) for view in outputs) else "host"
        sources = {view.device for view in inputs}
        inside = any(map(here, sources))
        if facts.reads:
            return "host-read" if inside else "host"
        results_inside = any(here(view.device) for view in outputs)
        if facts.copies and written and inputs:
            source_inside, target_inside = here(inputs[1].device), here(inputs[0].device)
            if source_inside != target_inside:
                return "transfer-in" if target_inside else "transfer-out"
        if inside and outputs and not results_inside:
            return "transfer-out"
        if inputs and not inside and results_inside:
            return "transfer-in"
        if not inside and not results_inside:
            if facts.seeded and (born or written) and _draws(facts.function, args, kwargs):
                return HOST_RANDOM
            return "host" if inputs or outputs else "compute"
        if facts.dynamic and _depends_on_data(facts.function, args):
            return "dynamic"
        if not written and not born:
            return "view"
        if facts.seeded and _draws(facts.function, args, kwargs):
            return "random"
        outside = len(sources) > 1 and any(view.shape and not here(view.device) for view in inputs)
        return "transfer-in" if outside else "compute"

    def _here(self, device: str) -> bool:
        return device.startswith(self._kind_of_device)

    def finish(self, wall_ns: int = 0) -> RecordedCall:
        """The trace of what was recorded. The recorder is not used after that."""
        met = range(len(self._arguments), len(self._references))
        external = tuple(number for number in met if number not in self._born)
        return RecordedCall(
            trace=Trace(
                ops=tuple(self._ops),
                host_reads=tuple(self._reads),
                argument_storages=self._arguments,
                external_storages=external,
                needs_grad=self._needs_grad,
                wall_ns=wall_ns,
                cut=self.overflowed,
            ),
            functions=tuple(self._functions),
            storages=tuple(self._references),
            born=frozenset(self._born),
            values=self.values,
            constants=self.constants,
            arrivals=self.arrivals,
        )


def contents_of(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor that was just made from Python values; their digest if there are many.

    The memory is read as it lies: an operator, or `tolist`, would be seen by whoever watches operators.
    """
    host = tensor if tensor.device.type == "cpu" else tensor.cpu()
    if host.numel() == 0:
        return b""
    size = (1 + sum((n - 1) * stride for n, stride in zip(host.shape, host.stride(), strict=True))) * host.itemsize
    raw = ctypes.string_at(host.data_ptr(), size)
    return raw if len(raw) <= 64 else hashlib.blake2b(raw, digest_size=16).digest()


def _draws(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Attention is tagged as random but draws nothing without dropout."""
    for position, argument in enumerate(function._schema.arguments):
        if argument.name == "dropout_p":
            given = args[position] if position < len(args) and not argument.kwarg_only else kwargs.get("dropout_p", 0.0)
            return bool(given != 0)
    return True


def _depends_on_data(function: Any, args: tuple[Any, ...]) -> bool:
    """`index` is tagged as dynamic but has a fixed shape unless an index is a mask."""
    if function.overloadpacket in (aten.index, aten.index_put, aten.index_put_, aten._unsafe_index):
        return any(tensor.dtype in _MASKS for tensor in tensors_in(args[1]))
    if function.overloadpacket is aten.repeat_interleave:
        return not (len(args) > 1 and isinstance(args[1], int)) and function is not aten.repeat_interleave.self_int
    return True
