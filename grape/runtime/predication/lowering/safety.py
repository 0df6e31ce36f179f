"""Which operators may run although their result is thrown away where the predicate is false.

A body that a plain program would have skipped runs on whatever values there are. It must not fail, read a value on
the host, or draw random numbers. Integer indices and divisors are made harmless; operators that are not known to be
harmless are refused.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ....model.call import Args, Kwargs
from ....tracing import Operator
from ...backends.operators import base_name, draws
from .active import refuse

# Neither tagged pointwise nor reduction nor a view, but total: any values give some result, without an error.
_TOTAL_NAMES = """
    _adaptive_avg_pool2d _cdist_forward _flash_attention_forward _fused_rms_norm _log_softmax _safe_softmax
    _scaled_dot_product_attention_math _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention
    _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu _softmax _to_copy _unsafe_view
    addbmm addmm addmv addr arange argsort avg_pool1d avg_pool2d baddbmm bmm bucketize cat constant_pad_nd convolution
    copy cross cummax cummin cumprod cumsum detach diag_embed diagonal_scatter dot empty empty_like empty_strided eye
    fill flip floor_divide full full_like glu index_add index_copy index_fill index_reduce isclose kthvalue lift
    lift_fresh linspace logcumsumexp max_pool2d_with_indices median mm mode mv native_group_norm native_layer_norm
    new_empty new_empty_strided new_full new_ones new_zeros ones ones_like outer repeat roll rsub scalar_tensor
    searchsorted select_scatter slice_scatter sort stack topk trace tril tril_indices triu triu_indices unfold_copy
    upsample_bilinear2d upsample_nearest2d vdot zero zeros zeros_like
"""
_TOTAL = frozenset(_TOTAL_NAMES.split())
# Where an operator takes integer positions: they are set to 0 where the predicate is false.
_POSITIONS = {
    "_index_put_impl_": "indices",
    "_unsafe_index": "indices",
    "_unsafe_index_put": "indices",
    "embedding": "indices",
    "gather": "index",
    "index": "indices",
    "index_add": "index",
    "index_copy": "index",
    "index_fill": "index",
    "index_put": "indices",
    "index_reduce": "index",
    "index_select": "index",
    "scatter": "index",
    "scatter_add": "index",
    "scatter_reduce": "index",
    "take": "index",
}
_DIVISIONS = frozenset({"div", "divide", "floor_divide", "fmod", "remainder"})


def _name_of(func: Operator) -> str:
    name = base_name(func)
    return name[:-1] if name.endswith("_") and not name.endswith("__") and name not in _POSITIONS else name


def _arguments_of(func: Operator, args: Args, kwargs: Kwargs) -> dict[str, object]:
    """The arguments of an operator's call by their names in its schema; defaults are left out."""
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def refuse_unsafe(func: Operator, args: Args, kwargs: Kwargs) -> None:
    """Raise `CaptureFailed` if this call cannot run under a predicate that may be false."""
    given = _arguments_of(func, args, kwargs)
    if draws(func, args, kwargs):
        raise refuse(f"{func} draws random numbers in a body that may not run")
    if torch.Tag.data_dependent_output in func.tags:
        raise refuse(f"{func} reads a tensor's value on the host in a body that may not run", "GR101")
    name = _name_of(func)
    if name in _POSITIONS:
        _refuse_mask(func, name, given)
        return
    if torch.Tag.dynamic_output_shape in func.tags:
        raise refuse(f"the shape of what {func} returns depends on data, in a body that may not run", "GR103")
    # What changes a tensor's shape in place is refused where the tensor is not the body's own (`WriteMode`).
    shapes = func.is_view or torch.Tag.inplace_view in func.tags
    if not (name in _TOTAL or name.startswith("_foreach_") or shapes or _computes(func)):
        raise refuse(f"{func} in a body that may not run: it is not known what it does with values that do not occur")


def _computes(func: Operator) -> bool:
    """True where any overload is tagged pointwise or a reduction; those that write to `out` are not tagged."""
    packet = func.overloadpacket
    return any(
        {torch.Tag.pointwise, torch.Tag.reduction} & set(getattr(packet, name).tags) for name in packet.overloads()
    )


def _refuse_mask(func: Operator, name: str, given: dict[str, object]) -> None:
    positions = given.get(_POSITIONS[name])
    listed = positions if isinstance(positions, (list, tuple)) else [positions]
    masked = any(isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8) for item in listed)
    if masked:
        values = given.get("values")
        # One value under one mask is a masked fill, which needs no count of the mask.
        if not isinstance(values, torch.Tensor) or values.numel() != 1 or given.get("accumulate"):
            raise refuse(f"{func} takes a boolean mask: how many elements it moves depends on data", "GR103")
    source = given.get("weight") if name == "embedding" else given.get("self")
    if isinstance(source, torch.Tensor) and source.numel() == 0:
        raise refuse(f"{func} looks up an empty tensor in a body that may not run")


def harmless(func: Operator, args: Args, kwargs: Kwargs, mask: Callable[[], torch.Tensor]) -> tuple[Args, Kwargs]:
    """The same call with positions of 0 and divisors of 1 where `mask()` is false; there it cannot fail."""
    name = _name_of(func)
    if name in _POSITIONS:
        return _replaced(func, args, kwargs, _POSITIONS[name], lambda index: _masked(index, mask, 0))
    if name in _DIVISIONS:
        given = _arguments_of(func, args, kwargs)
        operands = (given.get("self"), given.get("other"))
        if all(isinstance(item, torch.Tensor) and not item.dtype.is_floating_point for item in operands):
            return _replaced(func, args, kwargs, "other", lambda divisor: _masked(divisor, mask, 1))
    return args, kwargs


def _masked(value: object, mask: Callable[[], torch.Tensor], neutral: int) -> object:
    if isinstance(value, (list, tuple)):
        return [_masked(item, mask, neutral) for item in value]
    if not isinstance(value, torch.Tensor) or (value.dtype in (torch.bool, torch.uint8) and neutral == 0):
        return value
    return torch.where(mask(), value, torch.full((), neutral, dtype=value.dtype, device=value.device))


def _replaced(
    func: Operator, args: Args, kwargs: Kwargs, name: str, change: Callable[[object], object]
) -> tuple[Args, Kwargs]:
    if name in kwargs:
        return args, {**kwargs, name: change(kwargs[name])}
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == name and position < len(args):
            return (*args[:position], change(args[position]), *args[position + 1 :]), kwargs
    return args, kwargs
