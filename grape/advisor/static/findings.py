"""What a syntax tree shows in code that runs again and again. One function per finding code; nothing has a cost."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeGuard

from .hot import HotCode
from .kinds import Kinds
from .state import root_name, state_writes

__all__ = ["StaticFinding", "find"]

_LONGEST = 48
_PRINTS = frozenset({"print", "display", "write", "info", "debug", "warning", "set_postfix", "set_description"})
_TO_HOST = frozenset({"item", "tolist", "numpy", "cpu"})
_DYNAMIC = frozenset({"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"})
_GRADIENTS = frozenset({"no_grad", "inference_mode", "set_grad_enabled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFinding:
    """A finding at `line` of one source. `subject` is the expression as it is written."""

    code: str
    line: int
    end_line: int
    subject: str
    message: str
    advice: str
    function: str
    kind: str
    """What was called ("tolist", "print", ...), where one code covers several things; else empty."""
    around: tuple[int, int]
    """First and last line of the loop, or else the function, that repeats it."""


class _Found:
    def __init__(self, kinds: Kinds, hot: HotCode) -> None:
        self.kinds = kinds
        self.hot = hot

    def at(
        self, code: str, node: ast.expr | ast.stmt, subject: ast.AST | str, message: str, advice: str, kind: str = ""
    ) -> StaticFinding:
        shown = subject if isinstance(subject, str) else _text(subject)
        function = self.hot.function(node)
        repeated = self.hot.loop(node) or function or node
        return StaticFinding(
            code=code,
            line=node.lineno,
            end_line=node.end_lineno or node.lineno,
            subject=shown,
            message=message.format(shown),
            advice=advice.format(shown),
            function=getattr(function, "name", "<module>"),
            kind=kind,
            around=(getattr(repeated, "lineno", node.lineno), getattr(repeated, "end_lineno", None) or node.lineno),
        )


def find(tree: ast.Module, kinds: Kinds | None = None) -> tuple[StaticFinding, ...]:
    """All findings of one source, one per code and line, in the order of the lines.

    Code that imports no library of tensors has none.
    """
    kinds = kinds or Kinds(tree)
    if not kinds.uses_tensors:
        return ()
    context = _Found(kinds, HotCode(kinds))
    found: dict[tuple[str, int], StaticFinding] = {}
    for rule in _RULES:
        for finding in rule(context):
            found.setdefault((finding.code, finding.line), finding)
    return tuple(sorted(found.values(), key=lambda finding: (finding.line, finding.code)))


def _text(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3].rstrip() + "..."


def _hot_nodes(context: _Found) -> tuple[ast.AST, ...]:
    return context.hot.nodes


def _host_reads(context: _Found) -> Iterator[StaticFinding]:
    """GR101: a value or a tensor goes to the CPU, or is printed."""
    kinds = context.kinds
    for node in _hot_nodes(context):
        if isinstance(node, ast.JoinedStr) and not _is_printed(context, node):
            shown = next(_formatted(kinds, node), None)
            if shown is not None:
                yield _printed(context, node, shown)
        if not isinstance(node, ast.Call):
            continue
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr == "synchronize" and kinds.of(func) == "torch":
            yield context.at(
                "GR101", node, node, "`{}` makes the CPU wait for the GPU", "synchronize once after the loop"
            )
        elif isinstance(func, ast.Attribute) and func.attr in _TO_HOST and not node.args:
            owner = kinds.of(func.value)
            if owner in ("tensor", "mask") or (func.attr == "item" and owner is None):
                if _is_test(context, node):
                    continue
                advice = "keep the value as a tensor (`x.detach()`), and read it once after the loop"
                yield context.at("GR101", node, node, "`{}` makes the CPU wait for the GPU", advice, func.attr)
        elif isinstance(func, ast.Name) and func.id in ("float", "int") and node.args and kinds.is_tensor(node.args[0]):
            advice = "keep the value as a tensor, and read it once after the loop"
            yield context.at("GR101", node, node, "`{}` makes the CPU wait for the GPU", advice)
        elif _last(func) in _PRINTS:
            shown = next(_shown(kinds, node), None)
            if shown is not None:
                yield _printed(context, node, shown)


def _printed(context: _Found, node: ast.expr, shown: ast.expr) -> StaticFinding:
    advice = "print after the loop, or every n-th iteration; keep detached tensors in a list until then"
    return context.at("GR101", node, shown, "printing `{}` makes the CPU wait for the GPU", advice, "print")


def _is_printed(context: _Found, node: ast.AST) -> bool:
    parent = context.kinds.parents.get(node)
    return isinstance(parent, ast.Call) and _last(parent.func) in _PRINTS


def _shown(kinds: Kinds, call: ast.Call) -> Iterator[ast.expr]:
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        if kinds.is_tensor(argument):
            yield argument
        elif isinstance(argument, ast.JoinedStr):
            yield from _formatted(kinds, argument)


def _formatted(kinds: Kinds, text: ast.JoinedStr) -> Iterator[ast.expr]:
    for part in text.values:
        if isinstance(part, ast.FormattedValue) and kinds.is_tensor(part.value):
            yield part.value


def _is_test(context: _Found, node: ast.AST) -> bool:
    """True where the value only decides a branch: that is GR102."""
    return any(node in ast.walk(test) for test in _tests_above(context, node))


def _tests_above(context: _Found, node: ast.AST) -> Iterator[ast.expr]:
    parent = context.kinds.parents.get(node)
    while parent is not None:
        if isinstance(parent, (ast.If, ast.While, ast.Assert, ast.IfExp)):
            yield parent.test
        if isinstance(parent, ast.stmt):
            return
        parent = context.kinds.parents.get(parent)


def _branches(context: _Found) -> Iterator[StaticFinding]:
    """GR102: a tensor's value decides."""
    advice = {
        "if": "compute both sides and select with `torch.where({}, a, b)`, or test only every n-th iteration",
        "while": "test `{}` only every n-th iteration, or run a fixed number of iterations with masked updates",
        "assert": "drop the assert from the hot path, or use `torch._assert_async({})`, which does not wait",
        "ternary": "select with `torch.where({}, a, b)`",
    }
    for node in _hot_nodes(context):
        kind = {ast.If: "if", ast.While: "while", ast.Assert: "assert", ast.IfExp: "ternary"}.get(type(node))
        if kind is not None and isinstance(node, (ast.If, ast.While, ast.Assert, ast.IfExp)):
            if _decides(context.kinds, node.test):
                message = (
                    f"`{'' if kind == 'ternary' else kind + ' '}{{}}` needs a tensor's value: the CPU waits for the GPU"
                )
                yield context.at("GR102", node, node.test, message, advice[kind])
        elif _is_value(node, context):
            advice_here = "use `&`, `|`, `~` so that the result stays a tensor"
            yield context.at("GR102", node, node, "`{}` needs a tensor's value: the CPU waits for the GPU", advice_here)


def _is_value(node: ast.AST, context: _Found) -> TypeGuard[ast.BoolOp]:
    """True for `and`/`or` on tensors whose result is kept, not tested."""
    if not isinstance(node, ast.BoolOp) or not any(map(context.kinds.is_tensor, node.values)):
        return False
    return not any(True for _ in _tests_above(context, node))


def _decides(kinds: Kinds, test: ast.expr) -> bool:
    """True where the truth of `test` is that of a tensor, or of a number read from one."""
    if isinstance(test, ast.BoolOp):
        return any(_decides(kinds, value) for value in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _decides(kinds, test.operand)
    if kinds.is_tensor(test) or kinds.root_call(test) in ("equal", "allclose"):
        return True
    reads = (node for node in ast.walk(test) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    return any(node.func.attr == "item" and kinds.is_tensor(node.func.value) for node in reads)  # type: ignore[attr-defined]


def _dynamic_shapes(context: _Found) -> Iterator[StaticFinding]:
    """GR103: the shape of a result depends on values."""
    kinds = context.kinds
    message = "the output shape of `{}` depends on data: the CPU waits for the GPU"
    for node in _hot_nodes(context):
        if isinstance(node, ast.Call):
            method = isinstance(node.func, ast.Attribute) and kinds.is_tensor(node.func.value)
            name = _last(node.func) if method else kinds.root_call(node)
            if name in _DYNAMIC or (name == "where" and len(node.args) == (0 if method else 1)):
                yield context.at(
                    "GR103", node, node, message, "use a form whose result has a fixed size (a mask, `nonzero_static`)"
                )
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and kinds.is_tensor(node.value):
            index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if any(kinds.of(part) == "mask" for part in index):
                yield context.at(
                    "GR103", node, node, message, "keep the full tensor and select with `torch.where(mask, x, 0)`"
                )


def _growth(context: _Found) -> Iterator[StaticFinding]:
    """GR202: a name is extended by concatenation at each iteration, or in a function that hands it back each time."""
    for node in _hot_nodes(context):
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


def _handed_back(context: _Found, node: ast.AST, name: str) -> bool:
    """True for an argument of the function around `node` that it returns as it is."""
    function = context.hot.function(node)
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
    items = [item for value in returned for item in (value.elts if isinstance(value, ast.Tuple) else [value])]
    return name in {arg.arg for arg in function.args.args} and name in map(ast.unparse, items)


def _host_inputs(context: _Found) -> Iterator[StaticFinding]:
    """GR302: what a loop iterates over is sent to the device, and the CPU waits for it."""
    for node in _hot_nodes(context):
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


def _is_given_anew(context: _Found, node: ast.AST, sent: ast.expr) -> bool:
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


def _constants(context: _Found) -> Iterator[StaticFinding]:
    """GR401: a tensor is made from Python values on the device."""
    for node in _hot_nodes(context):
        if not isinstance(node, ast.Call) or context.kinds.root_call(node) not in ("tensor", "as_tensor"):
            continue
        above = context.kinds.parents.get(node)
        sent = isinstance(above, ast.Attribute) and above.attr in ("to", "cuda")
        if sent or any(keyword.arg == "device" for keyword in node.keywords):
            advice = "make `{}` once outside and reuse it, or pass the Python number itself to the operator"
            yield context.at("GR401", node, node, "`{}` is made on the CPU and sent to the device each time", advice)


def _hidden_state(context: _Found) -> Iterator[StaticFinding]:
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


def _changing_numbers(context: _Found) -> Iterator[StaticFinding]:
    """GR403: the number of the iteration is passed to a function that computes with tensors."""
    kinds = context.kinds
    for node in _hot_nodes(context):
        if not isinstance(node, ast.Call) or kinds.root_call(node) is not None:
            continue
        own = isinstance(node.func, ast.Name) and node.func.id in kinds.functions
        if not own and kinds.of(node.func) != "module":
            continue
        if not any(kinds.is_tensor(argument) for argument in node.args):
            continue
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            if kinds.of(argument) == "range" and isinstance(argument, ast.Name):
                advice = "pass `{}` as a tensor on the device, made once and updated in place"
                message = f"`{{}}` is another Python number at each call of `{_text(node.func)}`"
                yield context.at("GR403", node, argument, message, advice)


def _gradients(context: _Found) -> Iterator[StaticFinding]:
    """GR405: a model is called in a loop where nothing needs its gradients, and they are recorded."""
    kinds = context.kinds
    for node in _hot_nodes(context):
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
        advice = f"call `{_text(node.func)}` under `torch.inference_mode()` or `torch.no_grad()`"
        yield context.at("GR405", node, node.func, "`{}` records gradients that this loop does not use", advice)


def _evaluates(tree: ast.Module, model: ast.expr) -> bool:
    """The source says that it evaluates (``model.eval()``), and does not freeze models (``requires_grad_(False)``)."""
    name = ast.unparse(model)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if any(
        _last(call.func) == "requires_grad_" and call.args and ast.unparse(call.args[0]) == "False" for call in calls
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
        if any(_last(one.func if isinstance(one, ast.Call) else one) in _GRADIENTS for one in given):
            return True
        parent = kinds.parents.get(parent)
    return any(kinds.root_call(n.value) == "set_grad_enabled" for n in ast.walk(kinds.tree) if isinstance(n, ast.Expr))


def _calls_backward(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Call) and _last(n.func) in ("backward", "grad", "step") for n in ast.walk(node))


def _targets(loop: ast.AST) -> Iterator[str]:
    """Names that a loop binds at each iteration."""
    found: list[ast.expr] = []
    if isinstance(loop, (ast.For, ast.AsyncFor)):
        found = [loop.target]
    elif isinstance(loop, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
        found = [generator.target for generator in loop.generators]
    return (node.id for target in found for node in ast.walk(target) if isinstance(node, ast.Name))


def _last(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


_RULES: tuple[Callable[[_Found], Iterator[StaticFinding]], ...] = (
    _host_reads,
    _branches,
    _dynamic_shapes,
    _growth,
    _host_inputs,
    _constants,
    _changing_numbers,
    _hidden_state,
    _gradients,
)
