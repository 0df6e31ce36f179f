"""Reads of values of the device, as code has them."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from .code import Code

_KEPT_ON_DEVICE = ("detach", "cpu")


def on_device(tensor: cst.BaseExpression) -> cst.BaseExpression:
    """Without the ``.detach()`` and ``.cpu()`` at its end."""
    while (
        isinstance(tensor, cst.Call)
        and isinstance(tensor.func, cst.Attribute)
        and tensor.func.attr.value in _KEPT_ON_DEVICE
        and not tensor.args
    ):
        tensor = tensor.func.value
    return tensor


@dataclass(frozen=True, slots=True)
class Read:
    """One host read: `node` is the whole expression, `tensor` the one it reads."""

    node: cst.Call
    tensor: cst.BaseExpression

    def of(self, tensor: cst.BaseExpression) -> cst.Call:
        """The same read of another tensor."""
        if isinstance(self.node.func, cst.Attribute):
            return self.node.with_changes(func=self.node.func.with_changes(value=tensor))
        return self.node.with_changes(args=[self.node.args[0].with_changes(value=tensor)])


def kept_copy(read: Read) -> cst.BaseExpression:
    """The expression that the loop keeps instead of the value: a copy on the device, without its graph."""
    tensor = on_device(read.tensor)
    if not isinstance(tensor, (cst.Name, cst.Attribute, cst.Subscript, cst.Call)) and not tensor.lpar:
        tensor = tensor.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    for method in ("detach", "clone"):
        tensor = cst.Call(cst.Attribute(value=tensor, attr=cst.Name(method)))
    return tensor


def sees(code: Code, use: cst.CSTNode, home: cst.FunctionDef | None) -> bool:
    """True where `use`, in another function, can mean the variable of `home`: at the top, or in a closure."""
    return home is None or any(above is home for above in code.ancestors(use))
