"""Conditions that are certainly no tensors: left as they are. Everything else is decided at run time."""

from __future__ import annotations

import re

import libcst as cst

from ...code import dotted

FLOW = "_flow"
_PLAIN_CALLS = frozenset(
    {"isinstance", "issubclass", "len", "hasattr", "callable", "type", "id", "is_tensor", "is_available", "dim"}
)
_PLAIN_METHODS = frozenset(
    {"dim", "endswith", "is_available", "is_contiguous", "is_floating_point", "is_grad_enabled", "is_tensor", "numel"}
    | {"size", "startswith", "is_complex", "is_initialized", "isdigit", "isalpha", "ndimension"}
    | {"item", "tolist"}  # the host has waited for the value: to decide on the device would win nothing
)
_PLAIN_ATTRIBUTES = frozenset({"device", "dtype", "is_cuda", "ndim", "requires_grad", "shape", "training"})
_IDENTITY = (cst.Is, cst.IsNot)


_GENERATED = re.compile(r"_(then|else|rest|body)_[0-9]+(_[0-9]+)?")


def is_generated(node: cst.FunctionDef) -> bool:
    """True where this is, by its name, a function that a rewrite made."""
    return _GENERATED.fullmatch(node.name.value) is not None


def flow_call(node: cst.CSTNode) -> str:
    """The name in `_flow` that this calls, where it is a call that a rewrite made; else ""."""
    home, _, name = dotted(node.func).rpartition(".") if isinstance(node, cst.Call) else ("", "", "")
    return name if home == FLOW else ""


def is_flow_call(node: cst.CSTNode) -> bool:
    return bool(flow_call(node))


def is_plain(node: cst.BaseExpression, names: frozenset[str] = frozenset()) -> bool:
    """True where the truth of `node` certainly depends on no tensor's value, or on one that the host has read already.
    `names` hold plain values.
    """
    if isinstance(node, (cst.BaseNumber, cst.BaseString, cst.Dict, cst.List, cst.Set, cst.Tuple, cst.Lambda)):
        return True
    if isinstance(node, cst.Name):
        return node.value in ("True", "False", "None", "__debug__", "__name__") or node.value in names
    if is_flow_call(node):
        return True
    if isinstance(node, cst.Call):
        return _is_plain_call(node)
    if isinstance(node, cst.Attribute):
        return node.attr.value in _PLAIN_ATTRIBUTES
    if isinstance(node, cst.Subscript):
        return isinstance(node.value, cst.Attribute) and node.value.attr.value == "shape"
    if isinstance(node, cst.UnaryOperation):
        return is_plain(node.expression, names)
    if isinstance(node, (cst.BooleanOperation, cst.BinaryOperation)):
        return is_plain(node.left, names) and is_plain(node.right, names)
    if isinstance(node, cst.Comparison):
        if all(isinstance(target.operator, _IDENTITY) for target in node.comparisons):
            return True
        return is_plain(node.left, names) and all(is_plain(item.comparator, names) for item in node.comparisons)
    return False


def _is_plain_call(node: cst.Call) -> bool:
    if isinstance(node.func, cst.Name):
        return node.func.value in _PLAIN_CALLS
    return isinstance(node.func, cst.Attribute) and node.func.attr.value in _PLAIN_METHODS
