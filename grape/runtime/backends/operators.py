"""Facts about operators that captures need, and how they run the ones that are made of others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...model.call import Args, Kwargs
from ...tracing import Operator, as_written

Function: TypeAlias = Callable[..., object]
"""What a mode is given: an operator, a higher-order operator, or a function of torch."""

ALLOCATIONS = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
"""Operators that make memory and launch nothing."""


def base_name(func: Operator) -> str:
    """The name without its overload, and without a namespace where it is torch's own."""
    return func._schema.name.removeprefix("aten::")


def memory_of(result: object) -> list[torch.UntypedStorage]:
    """The storages of what an operator made. Whoever holds these does not hold the tensors: of one that nothing else
    refers to, torch makes the next result otherwise (`index_add` on fresh zeros, torch 2.13).
    """
    made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided]
    return [tensor.untyped_storage() for tensor in made]


def draws(func: Operator, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """True where this call of an operator moves a generator.

    Attention and recurrent layers are tagged so, but draw nothing without dropout, and dropout nothing in evaluation:
    in inference mode it is seen whole.
    """
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for position, argument in enumerate(func._schema.arguments):
        if argument.name in _NOTHING_AT:
            value = args[position] if position < len(args) else kwargs.get(argument.name, argument.default_value)
            if value is not None and value == _NOTHING_AT[argument.name]:
                return False
    return True


_NOTHING_AT = {"dropout_p": 0.0, "dropout": 0.0, "train": False, "training": False}
"""Arguments of operators that draw, and the value at which they do not."""


def is_composite(func: Operator, args: Args, kwargs: Kwargs) -> bool:
    """True for an operator that is made of others where its tensors are, and that a dispatch mode sees whole in
    inference mode.

    `silu_backward` and a few more are made of others on most devices, and have a kernel of their own, with other last
    bits, on some.
    """
    if not _has_kernel(func, "CompositeImplicitAutograd"):
        return False
    tensor = next((leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)), None)
    return tensor is None or not _has_kernel(func, tensor.device.type.upper())


@functools.cache
def _has_kernel(func: Operator, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)


def decompose(mode: TorchDispatchMode, func: Operator, args: Args, kwargs: Kwargs) -> object:
    """Run the eager kernel of a composite operator; the operators it is made of come to `mode` one by one.

    Views must be tracked inside as they are outside of a mode: `matmul` looks at `requires_grad` of a weight's
    transpose when it chooses between `mm` and `bmm`.
    """

    def run() -> object:
        with mode:
            return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)

    return as_written(func, run)


def copy_each(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each source into its target, with one launch for each dtype."""
    groups: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        into, out_of = groups.setdefault(target.dtype, ([], []))
        into.append(target)
        out_of.append(source)
    for into, out_of in groups.values():
        torch._foreach_copy_(into, out_of)
