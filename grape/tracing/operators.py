"""Facts about PyTorch's operators: what they read and write, and what one execution of them was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from ..model import HOST_RANDOM, TensorView
from ..model.call import Args, Kwargs

aten = torch.ops.aten
HOST_READS = frozenset({aten._local_scalar_dense.default, aten.item.default, aten.is_nonzero.default})
"""Operators whose result is a Python value that the host waits for."""

_MASKS = (torch.bool, torch.uint8)
_STATISTICS: dict[object, tuple[int, int, int | None]] = {
    aten.native_batch_norm: (3, 4, 5),
    aten.cudnn_batch_norm: (3, 4, 5),
    aten.miopen_batch_norm: (3, 4, 5),
    # In inference mode, operators that are made of others may reach a dispatch mode whole.
    aten.batch_norm: (3, 4, 5),
    aten._batch_norm_impl_index: (3, 4, 5),
    aten.instance_norm: (3, 4, None),
    aten.batch_norm_update_stats: (1, 2, None),
    aten.batch_norm_gather_stats: (3, 4, None),
    aten.batch_norm_gather_stats_with_counts: (3, 4, None),
}
"""Positions of the running mean and variance, which these write although no schema says so, and of `training`."""
_SEEDS = ("philox_seed", "philox_offset")
"""Seeds that PyTorch's attention leaves for its backward: on the CPU where it runs eagerly, on the device in a capture.
"""

Operator: TypeAlias = torch._ops.OpOverload[..., object]
"""As dispatch modes are given it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of an operator, by its schema. `writes`: (position, name, keyword only) of what it writes;
    `seeds`: positions of results that lie on another device in a capture."""

    function: Operator
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


_facts: dict[int, Facts] = {}
"""By identity: operators hash slowly. The facts keep the operator alive."""


def facts_of(function: Operator) -> Facts:
    """Read once per operator."""
    known = _facts.get(id(function))
    if known is None:
        known = _facts[id(function)] = Facts(
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
            statistics=_STATISTICS.get(function.overloadpacket),
            seeds=_seeds_among(function, function._schema.returns),
            given_seeds=_seeds_among(function, function._schema.arguments),
        )
    return known


def _seeds_among(function: Operator, named: Sequence[torch._C.Argument]) -> tuple[int, ...]:
    """Operators of others may use the names for anything."""
    return tuple(i for i, one in enumerate(named) if one.name in _SEEDS) if function.namespace == "aten" else ()


def tensors_in(value: object) -> Iterable[torch.Tensor]:
    """The tensors among an operator's (nested) arguments or results, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)


def hides_memory(value: object) -> bool:
    """True where tensors are behind an operator's (nested) arguments or results that `tensors_in` does not give."""
    if isinstance(value, torch.Tensor):
        return type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if isinstance(value, (tuple, list)):
        return any(map(hides_memory, value))
    return isinstance(value, (dict, torch.ScriptObject))


def kind_of(
    facts: Facts,
    args: Args,
    kwargs: Kwargs,
    inputs: list[TensorView],
    outputs: tuple[TensorView, ...],
    born: tuple[int, ...],
    written: tuple[int, ...],
    here: Callable[[str], bool],
) -> str:
    """The `OpRecord.kind` of one execution, from what went in and came out. `here`: is this the recording's device?"""
    if not here("meta"):  # shapes without data, as forward derivatives are inferred with: nothing is copied
        if outputs and all(view.device == "meta" for view in outputs):
            return "host"
        inputs = [view for view in inputs if view.device != "meta"]
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


def _draws(function: Operator, args: Args, kwargs: Kwargs) -> bool:
    """Attention is tagged as random but draws nothing without dropout."""
    for position, argument in enumerate(function._schema.arguments):
        if argument.name == "dropout_p":
            given = args[position] if position < len(args) and not argument.kwarg_only else kwargs.get("dropout_p", 0.0)
            return bool(given != 0)
    return True


def _depends_on_data(function: Operator, args: Args) -> bool:
    """`index` is tagged as dynamic but has a fixed shape unless an index is a mask."""
    if function.overloadpacket in (aten.index, aten.index_put, aten.index_put_, aten._unsafe_index):
        return any(tensor.dtype in _MASKS for tensor in tensors_in(args[1]))
    if function.overloadpacket is aten.repeat_interleave:
        return not (len(args) > 1 and isinstance(args[1], int)) and function is not aten.repeat_interleave.self_int
    return True
