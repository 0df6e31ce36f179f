"""Rules about what each call brings anew: growing state (GR202), host inputs (GR302) and constants (GR401), numbers
(GR403), Python state (GR404), gradients that nobody uses (GR405).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..code.source import last_name
from .context import Context, StaticFinding, shown
from .kinds import Kinds
from .state import root_name, state_writes

__all__ = ["changing_numbers", "constants", "gradients", "growth", "hidden_state", "host_inputs"]

_GRADIENTS = frozenset({"no_grad", "inference_mode", "set_grad_enabled"})


def growth(context: Context) -> Iterator[StaticFinding]:
    """GR202: a name is extended by concatenation at each iteration, or in a function that hands it back each time."""
    for node in context.hot.nodes:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        for target, value in _pairs(node.targets[0], node.value):
            name = ast.unparse(target)
            if context.kinds.root_call(value) not in ("cat", "concat", "concatenate", "hstack", "vstack"):
                continue
            parts = value.args[0] if isinstance(value, ast.Call) and value.args else None
            extends = isinstance(parts, (ast.List, ast.Tuple)) and any(ast.unparse(part) == name for part in parts.elts)
            if extends and (context.hot.loop(node) is not None or _handed_back(context, node, name)):
                advice = "allocate `{}` once at its final length and write each step by index, with a mask"
                message = "`{}` grows by concatenation each time: every call has a new shape"
                yield context.at("GR202", node, name, message, advice)


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    lists = (ast.Tuple, ast.List)
    if isinstance(target, lists) and isinstance(value, lists) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def _handed_back(context: Context, node: ast.AST, name: str) -> bool:
    """True for an argument of the function around `node` that it returns as it is."""
    function = context.hot.function(node)
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
    items = [item for value in returned for item in (value.elts if isinstance(value, ast.Tuple) else [value])]
    return name in {arg.arg for arg in function.args.args} and name in map(ast.unparse, items)


def host_inputs(context: Context) -> Iterator[StaticFinding]:
    """GR302: what a loop iterates over is sent to the device, and the CPU waits for it."""
    for node in context.hot.nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in ("to", "cuda") or not context.kinds.is_tensor(node.func.value) or _is_dtype(node):
            continue
        if any(keyword.arg == "non_blocking" for keyword in node.keywords):
            continue
        if _is_given_anew(context, node, node.func.value):
            advice = (
                "pin the data (`pin_memory=True`) and copy with `non_blocking=True`, or move it once before the loop"
            )
            message = "`{}` sends data to the device each time, and waits for it"
            yield context.at("GR302", node, node, message, advice)


def _is_given_anew(context: Context, node: ast.AST, sent: ast.expr) -> bool:
    """True for what the loop binds or picks at each iteration, and for arguments of a function called in a loop."""
    loop, function = context.hot.loop(node), context.hot.function(node)
    if loop is not None and {part.id for part in ast.walk(sent) if isinstance(part, ast.Name)} & set(_targets(loop)):
        return True
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) or not context.hot.is_called_often(function):
        return False
    return root_name(sent) in {arg.arg for arg in (*function.args.args, *function.args.kwonlyargs)}


def _is_dtype(call: ast.Call) -> bool:
    """``x.to(torch.float16)`` and ``x.to(other)`` of what is no device move nothing."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    named = [ast.unparse(argument) for argument in given]
    return any(text.startswith("torch.") and not text.startswith("torch.device") for text in named) and len(named) == 1


def constants(context: Context) -> Iterator[StaticFinding]:
    """GR401: a tensor is made from Python values on the device."""
    for node in context.hot.nodes:
        if not isinstance(node, ast.Call) or context.kinds.root_call(node) not in ("tensor", "as_tensor"):
            continue
        above = context.kinds.parents.get(node)
        sent = isinstance(above, ast.Attribute) and above.attr in ("to", "cuda")
        if sent or any(keyword.arg == "device" for keyword in node.keywords):
            advice = "make `{}` once outside and reuse it, or pass the Python number itself to the operator"
            yield context.at("GR401", node, node, "`{}` is made on the CPU and sent to the device each time", advice)


def hidden_state(context: Context) -> Iterator[StaticFinding]:
    """GR404: a function that computes with tensors also changes Python state outside of it."""
    kinds = context.kinds
    for function in (f for many in kinds.functions.values() for f in many):
        if not any(
            context.hot.is_hot(statement) and context.hot.loop(statement) is None for statement in function.body
        ):
            continue
        if not any(isinstance(n, ast.expr) and kinds.is_tensor(n) for n in ast.walk(function)) or _calls_backward(
            function
        ):
            continue
        for node, name in state_writes(function):
            advice = "return the state and pass it back in, or keep `{}` in a tensor that is updated in place"
            message = f"`{function.name}` changes `{{}}`, which a replay would not"
            yield context.at("GR404", node, name, message, advice)


def changing_numbers(context: Context) -> Iterator[StaticFinding]:
    """GR403: the number of the iteration is passed to a function that computes with tensors."""
    kinds = context.kinds
    for node in context.model_calls():
        if not any(kinds.is_tensor(argument) for argument in node.args):
            continue
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            if kinds.of(argument) == "range" and isinstance(argument, ast.Name):
                advice = "pass `{}` as a tensor on the device, made once and updated in place"
                message = f"`{{}}` is another Python number at each call of `{shown(node.func)}`"
                yield context.at("GR403", node, argument, message, advice)


def gradients(context: Context) -> Iterator[StaticFinding]:
    """GR405: a model is called in a loop where nothing needs its gradients, and they are recorded."""
    kinds = context.kinds
    for node in context.hot.nodes:
        loop = context.hot.loop(node)
        if (
            not isinstance(node, ast.Call)
            or loop is None
            or kinds.of(node.func) != "module"
            or not kinds.is_tensor(node)
        ):
            continue
        if _calls_backward(loop) or _without_gradients(kinds, node) or not _evaluates(kinds.tree, node.func):
            continue
        advice = f"call `{shown(node.func)}` under `torch.inference_mode()` or `torch.no_grad()`"
        yield context.at("GR405", node, node.func, "`{}` records gradients that this loop does not use", advice)


def _evaluates(tree: ast.Module, model: ast.expr) -> bool:
    """The source says that it evaluates (``model.eval()``), and does not freeze models (``requires_grad_(False)``)."""
    name = ast.unparse(model)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if any(
        last_name(call.func) == "requires_grad_" and call.args and ast.unparse(call.args[0]) == "False"
        for call in calls
    ):
        return False
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "eval"
        and (ast.unparse(call.func.value) == name or not isinstance(call.func.value, ast.Name))
        for call in calls
    )


def _without_gradients(kinds: Kinds, node: ast.AST) -> bool:
    parent = kinds.parents.get(node)
    while parent is not None:
        given: Iterable[ast.expr] = ()
        if isinstance(parent, (ast.With, ast.AsyncWith)):
            given = [item.context_expr for item in parent.items]
        elif isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            given = parent.decorator_list
        if any(last_name(one.func if isinstance(one, ast.Call) else one) in _GRADIENTS for one in given):
            return True
        parent = kinds.parents.get(parent)
    return any(kinds.root_call(n.value) == "set_grad_enabled" for n in ast.walk(kinds.tree) if isinstance(n, ast.Expr))


def _calls_backward(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Call) and last_name(n.func) in ("backward", "grad", "step") for n in ast.walk(node))


def _targets(loop: ast.AST) -> Iterator[str]:
    """Names that a loop binds at each iteration."""
    found: list[ast.expr] = []
    if isinstance(loop, (ast.For, ast.AsyncFor)):
        found = [loop.target]
    elif isinstance(loop, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
        found = [generator.target for generator in loop.generators]
    return (node.id for target in found for node in ast.walk(target) if isinstance(node, ast.Name))
