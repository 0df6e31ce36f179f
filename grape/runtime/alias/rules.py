"""The callables whose result can be written somewhere else: what they would return, and how to have it written there.

A rule looks at the arguments of one call and says which contiguous tensor the call would return; None where it does
not know for certain. It never looks at values. What the person's call would raise, the original raises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...model.call import Args, Kwargs

_T = torch.Tensor
_Parts = list[torch.Tensor] | tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of a call: contiguous, of this shape and dtype. `write` computes it into the tensor it is given."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    inputs: tuple[torch.Tensor, ...]
    write: Callable[[torch.Tensor], object]


Rule = Callable[[Args, Kwargs], Plan | None]


def _dense(tensor: torch.Tensor) -> bool:
    """True where its strides are those of a new contiguous tensor.

    A dimension of one element may have any stride in a contiguous tensor (`transpose` of one token's heads), and most
    operators hand it on.
    """
    if not tensor.is_contiguous():
        return False
    if 1 not in tensor.shape and 0 not in tensor.shape:
        return True
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != step:
            return False
        step *= max(size, 1)
    return True


def _index_select(args: Args, kwargs: Kwargs) -> Plan | None:
    if kwargs or len(args) != 3:
        return None
    source, dim, index = args
    if type(dim) is not int or not source.dim() or index.dim() != 1 or not -source.dim() <= dim < source.dim():
        return None
    shape = list(source.shape)
    shape[dim] = index.shape[0]
    return Plan(
        tuple(shape), source.dtype, (source, index), lambda out: torch.index_select(source, dim, index, out=out)
    )


def _cat(args: Args, kwargs: Kwargs) -> Plan | None:
    parts, dim = _parts(args, kwargs)
    if parts is None:
        return None
    first = parts[0]
    if not first.dim() or not -first.dim() <= dim < first.dim() or not all(map(_dense, parts)):
        return None
    shape = list(first.shape)
    rest = shape[:dim] + shape[dim:][1:]
    for part in parts[1:]:
        other = list(part.shape)
        if part.dtype != first.dtype or part.dim() != first.dim():
            return None
        if other[:dim] + other[dim:][1:] != rest:
            return None
    shape[dim] = sum(part.shape[dim] for part in parts)
    if 0 in shape:
        return None
    return Plan(tuple(shape), first.dtype, tuple(parts), lambda out: torch.cat(parts, dim, out=out))


def _stack(args: Args, kwargs: Kwargs) -> Plan | None:
    parts, dim = _parts(args, kwargs)
    if parts is None:
        return None
    first = parts[0]
    if not -first.dim() - 1 <= dim <= first.dim():
        return None
    if any(p.shape != first.shape or p.dtype != first.dtype or not _dense(p) for p in parts):
        return None
    shape = list(first.shape)
    shape.insert(dim if dim >= 0 else dim + first.dim() + 1, len(parts))
    return Plan(tuple(shape), first.dtype, tuple(parts), lambda out: torch.stack(parts, dim, out=out))


def _parts(args: Args, kwargs: Kwargs) -> tuple[_Parts | None, int]:
    """The sequence and the dimension of a `cat` or `stack`."""
    if not args or len(args) > 2 or set(kwargs) - {"dim"} or (len(args) == 2 and kwargs):
        return None, 0
    dim = args[1] if len(args) == 2 else kwargs.get("dim", 0)
    parts = args[0]
    if type(parts) not in (list, tuple) or not parts or type(dim) is not int:
        return None, 0
    if not all(type(part) is _T or type(part) is torch.nn.Parameter for part in parts):
        return None, 0
    return parts, dim


def _where(args: Args, kwargs: Kwargs) -> Plan | None:
    if kwargs or len(args) != 3 or not all(isinstance(arg, _T) for arg in args):
        return None
    condition, one, other = args
    if one.dtype != other.dtype or not (one.shape == other.shape == condition.shape):
        return None
    if not all(arg.is_contiguous() for arg in args) or condition.dtype is not torch.bool:
        return None
    return Plan(tuple(one.shape), one.dtype, args, lambda out: torch.where(condition, one, other, out=out))


def _binary(function: Callable[..., object], integers: bool) -> Rule:
    def rule(args: Args, kwargs: Kwargs) -> Plan | None:
        if kwargs or len(args) != 2:
            return None
        one, other = args
        if not isinstance(one, _T) or not _dense(one) or one.is_complex():
            return None
        floating = one.dtype.is_floating_point
        if isinstance(other, _T):
            scalar = not other.dim() and one.dim()
            if other.dtype != one.dtype or not (scalar or (other.shape == one.shape and _dense(other))):
                return None
        elif type(other) is not int and not (type(other) is float and floating):
            return None
        if not floating and (not integers or one.dtype is torch.bool):
            return None
        inputs = (one, other) if isinstance(other, _T) else (one,)
        return Plan(tuple(one.shape), one.dtype, inputs, lambda out: function(one, other, out=out))

    return rule


def _gather(args: Args, kwargs: Kwargs) -> Plan | None:
    if kwargs or len(args) != 3 or type(args[1]) is not int or not isinstance(args[2], _T):
        return None
    source, dim, index = args
    if not source.dim():
        return None
    return Plan(
        tuple(index.shape), source.dtype, (source, index), lambda out: torch.gather(source, dim, index, out=out)
    )


def _argmax(args: Args, kwargs: Kwargs) -> Plan | None:
    if len(args) > 2 or set(kwargs) - {"dim", "keepdim"} or (len(args) == 2 and "dim" in kwargs):
        return None
    source, dim, keep = args[0], args[1] if len(args) == 2 else kwargs.get("dim"), kwargs.get("keepdim", False)
    if type(dim) is not int or type(keep) is not bool or not -source.dim() <= dim < source.dim():
        return None
    shape = list(source.shape)
    if keep:
        shape[dim] = 1
    else:
        del shape[dim]
    return Plan(tuple(shape), torch.int64, (source,), lambda out: torch.argmax(source, dim, keep, out=out))


def _clone(args: Args, kwargs: Kwargs) -> Plan | None:
    if kwargs or len(args) != 1 or not _dense(args[0]):
        return None
    source = args[0]
    return Plan(tuple(source.shape), source.dtype, (source,), lambda out: out.copy_(source))


_ADD, _SUB, _MUL = _binary(torch.add, True), _binary(torch.sub, True), _binary(torch.mul, True)
_DIV = _binary(torch.div, False)

CALLABLES: tuple[tuple[object, str, Rule], ...] = (
    (torch, "index_select", _index_select),
    (torch, "cat", _cat),
    (torch, "concat", _cat),
    (torch, "concatenate", _cat),
    (torch, "stack", _stack),
    (torch, "where", _where),
    (torch, "gather", _gather),
    (torch, "argmax", _argmax),
    (torch, "add", _ADD),
    (torch, "sub", _SUB),
    (torch, "mul", _MUL),
    (torch, "div", _DIV),
    (torch, "clone", _clone),
)
"""Owner, attribute and rule of every callable that can be predicted: functions of modules. Methods and operators of
tensors cannot be: to set an attribute of `torch.Tensor` fills slots of the type for good."""
