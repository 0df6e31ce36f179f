"""Finds what a body may not contain if it may run without effect: the reasons for which a construct stays as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from ...code import dotted
from ..build import call
from ..tree import Statements, children
from .plain import is_flow_call

_MUTATORS = frozenset(
    {"append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "put", "remove"}
    | {"send", "setdefault", "update", "write", "writelines", "backward", "step", "zero_grad", "load_state_dict"}
    | {"register_buffer", "register_parameter", "add_module", "manual_seed", "seed"}
)
# A tensor's method of this name is of no use as a statement of its own.
_MUTATORS_AS_STATEMENTS = frozenset({"add", "sort", "reverse", "union", "difference_update"})
_EFFECTS = frozenset(
    {"print", "input", "open", "exec", "eval", "setattr", "delattr", "next", "display", "breakpoint", "iter"}
    | {"globals", "locals", "vars", "super", "exit", "quit", "dir"}
)
_EFFECT_MODULES = frozenset(
    {"logging", "logger", "log", "random", "time", "os", "sys", "wandb", "plt", "warnings", "shutil", "subprocess"}
)
_ALSO_VARIABLES = frozenset({"time", "random"})
"""Modules whose names people give to tensors too. A logger that is bound here is still one."""
_NUMBERS = (cst.Integer, cst.Float, cst.SimpleString)


class Leave(Exception):
    """A construct stays as it is: `why`, on this line. `construct` is the one that would have needed more."""

    def __init__(self, construct: int, line: int, why: str) -> None:
        super().__init__(why)
        self.construct = construct
        self.line = line
        self.why = why


@dataclass(frozen=True, slots=True)
class Places:
    """`attributes` as (owner's source, name), `items` as (owner's source, key's source)."""

    attributes: tuple[tuple[str, str], ...] = ()
    items: tuple[tuple[str, str], ...] = ()

    def arguments(self) -> list[str]:
        return [f"_flow.attribute(lambda: {owner}, {name!r})" for owner, name in self.attributes] + [
            f"_flow.item(lambda: {owner}, lambda: {key})" for owner, key in self.items
        ]


def refuse_unsafe(
    statements: Sequence[cst.CSTNode], construct: int, line: int, own: frozenset[str] = frozenset()
) -> None:
    """Raise `Leave` if these statements cannot become a body that may run without effect.

    `own` names are the person's variables, whatever module has the same name.
    """
    for statement in statements:
        for node in _own(statement):
            why = _unsafe(node, own)
            if why is not None:
                raise Leave(construct, line, why)


def _own(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The code that runs here: function bodies run when they are called."""
    yield node
    if isinstance(node, (cst.FunctionDef, cst.Lambda)):
        return
    for child in children(node):
        yield from _own(child)


def _unsafe(node: cst.CSTNode, own: frozenset[str]) -> str | None:
    if isinstance(node, (cst.Yield, cst.Await)) or (isinstance(node, (cst.For, cst.With)) and node.asynchronous):
        return "the body is suspended by a yield or an await"
    if isinstance(node, (cst.Try, cst.TryStar, cst.Raise)):
        return "exceptions are control flow that cannot move to the device"
    if isinstance(node, (cst.Global, cst.Nonlocal)):
        return "the body declares a global or nonlocal name"
    if isinstance(node, (cst.Import, cst.ImportFrom)):
        return "an import in the body has effects"
    if isinstance(node, cst.Del):
        return "the body deletes a name or an item"
    if isinstance(node, cst.Match):
        return "a match statement in the body"
    if isinstance(node, cst.ClassDef):
        return "the body defines a class"
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
        statement = node.value
        to_tensor = any(item.keyword is not None and item.keyword.value == "out" for item in statement.args)
        return _unsafe_call(statement, _MUTATORS if to_tensor else _MUTATORS | _MUTATORS_AS_STATEMENTS, own)
    if isinstance(node, cst.Call):
        return _unsafe_call(node, _MUTATORS, own)
    return None


def _unsafe_call(node: cst.Call, mutators: frozenset[str], own: frozenset[str]) -> str | None:
    if is_flow_call(node):
        return None
    if isinstance(node.func, cst.Name):
        return f"{node.func.value}() in the body has effects in Python" if node.func.value in _EFFECTS else None
    if isinstance(node.func, cst.Attribute):
        name, owner = node.func.attr.value, node.func.value
        if name in mutators:
            return f".{name}() in the body changes Python state"
        while isinstance(owner, cst.Attribute):
            name, owner = owner.attr.value, owner.value
        if isinstance(owner, cst.Name) and (
            owner.value in _EFFECT_MODULES - (own & _ALSO_VARIABLES)
            or (owner.value in ("np", "numpy") and name == "random")
        ):
            return f"{owner.value} in the body has effects in Python"
    return None


def places_of(statements: Sequence[cst.CSTNode], bound: frozenset[str], construct: int, line: int) -> Places:
    """The attributes and items that these statements assign. `bound` are the names that they bind.

    Raises `Leave` for an attribute of something that they make themselves.
    """
    attributes: dict[tuple[str, str], None] = {}
    items: dict[tuple[str, str], None] = {}
    for target in _targets(statements):
        if isinstance(target, cst.Attribute):
            owner = dotted(target.value)
            if not owner or owner.split(".")[0] in bound:
                raise Leave(construct, line, f"the body assigns the attribute {target.attr.value} of an expression")
            attributes.setdefault((owner, target.attr.value))
        elif isinstance(target, cst.Subscript) and _is_item(target, bound):
            items.setdefault((_code(target.value), _code(target.slice[0].slice)))
    full = {f"{owner}.{name}" for owner, name in attributes}
    if any(owner == name or owner.startswith(f"{name}.") for owner, _ in (*attributes, *items) for name in full):
        raise Leave(construct, line, "the body assigns an attribute, and something inside of it")
    return Places(tuple(attributes), tuple(items))


def _targets(statements: Sequence[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    for statement in statements:
        for node in _own(statement):
            if isinstance(node, (cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.For)):
                yield from _parts(node.target)
            elif isinstance(node, cst.AsName):
                yield from _parts(node.name)


def _parts(target: cst.CSTNode) -> Iterator[cst.CSTNode]:
    if isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from _parts(element.value)
    else:
        yield target


def _is_item(target: cst.Subscript, bound: frozenset[str]) -> bool:
    """True where this may be an item of a list or dict that existed before: a plain key of a name or attribute."""
    owner = dotted(target.value)
    if not owner or owner.split(".")[0] in bound or len(target.slice) != 1:
        return False
    index = target.slice[0].slice
    if not isinstance(index, cst.Index):
        return False
    key = index.value
    if isinstance(key, cst.UnaryOperation) and isinstance(key.operator, cst.Minus):
        key = key.expression
    return isinstance(key, _NUMBERS) or (isinstance(key, cst.Name) and key.value not in bound)


class _Memory(cst.CSTTransformer):
    """`x[i] = v` becomes `_flow.memory(x)[i] = v` where `x` has to be a tensor, because no place keeps its item."""

    def __init__(self, bound: frozenset[str]) -> None:
        self._bound = bound

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def _wrapped(self, target: cst.CSTNode) -> cst.CSTNode:
        if isinstance(target, (cst.Tuple, cst.List)):
            elements = [element.with_changes(value=self._wrapped(element.value)) for element in target.elements]
            return target.with_changes(elements=elements)
        if not isinstance(target, cst.Subscript) or _is_item(target, self._bound) or is_flow_call(target.value):
            return target
        return target.with_changes(value=call("memory", target.value))

    def leave_AssignTarget(self, original_node: cst.AssignTarget, updated_node: cst.AssignTarget) -> cst.AssignTarget:
        return updated_node.with_changes(target=self._wrapped(updated_node.target))

    def leave_AugAssign(self, original_node: cst.AugAssign, updated_node: cst.AugAssign) -> cst.AugAssign:
        return updated_node.with_changes(target=self._wrapped(updated_node.target))

    def leave_AnnAssign(self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign) -> cst.AnnAssign:
        return updated_node.with_changes(target=self._wrapped(updated_node.target))


def with_memory(statements: Statements, bound: frozenset[str]) -> Statements:
    """The statements, with every item assignment that no place covers held to tensors."""
    visited: Statements = []
    for statement in statements:
        writes = any(isinstance(target, cst.Subscript) for target in _targets([statement]))
        changed = statement.visit(_Memory(bound)) if writes else statement
        assert isinstance(changed, cst.BaseStatement)
        visited.append(changed)
    return visited


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)
