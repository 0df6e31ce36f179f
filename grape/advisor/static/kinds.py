"""Which expressions of a source are tensors, as far as its syntax tree shows.

Flow-insensitive: a name has one kind per function, and a name that is bound to a tensor and to something else has none.
What comes from elsewhere (a parameter that nobody in this source passes, an import) has none either: rules stay quiet
about what is not known.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from .bindings import Kind, bindings
from .reading import beside_arrays, read_name
from .syntax import Scope, Syntax
from .vocabulary import BATCHES, CONVERSIONS, MASKING, MODULES, NUMBERS, ONLY_TENSORS, PLAIN_ATTRIBUTES

_ROUNDS = 6

_FLOWING = (
    *(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor, ast.comprehension, ast.NamedExpr),
    *(ast.Return, ast.Call),
)
"""Nodes that give names, parameters or results a kind."""


def _is_tensor(kind: Kind | None) -> bool:
    return kind in ("tensor", "mask")


class Kinds(Syntax):
    """The kinds of the names in one tree, by function; and of any expression in it."""

    def __init__(self, tree: ast.Module) -> None:
        super().__init__(tree)
        self._flowing = tuple(node for node in self.nodes if isinstance(node, _FLOWING))
        self._names: dict[tuple[Scope, str], Kind] = {}
        self._attributes: dict[str, Kind] = {}
        self._returns: dict[Scope, Kind] = {}
        self._known: dict[ast.expr, Kind | None] | None = None
        self.reads_tell = not beside_arrays(self.nodes)
        """Nothing else is imported whose values are read by `item` and `tolist`: what is read so is a tensor."""
        self._bound = frozenset(
            (self.scope(node), node.id)
            for node in self.nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )
        if self.roots:
            for _ in range(_ROUNDS):
                before = (dict(self._names), dict(self._attributes), dict(self._returns))
                self._round()
                if before == (self._names, self._attributes, self._returns):
                    break
            self._known = {}

    def is_tensor(self, node: ast.expr) -> bool:
        return _is_tensor(self.of(node))

    def of(self, node: ast.expr) -> Kind | None:
        """The kind of an expression, None where it is not known."""
        if self._known is None:  # names are still being inferred
            return self._infer(node)
        if node not in self._known:
            self._known[node] = self._infer(node)
        return self._known[node]

    def _infer(self, node: ast.expr) -> Kind | None:
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.BinOp):
            kinds = (self.of(node.left), self.of(node.right))
            bits = isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.BitXor))
            return self.combined(kinds, masks=bits)
        if isinstance(node, ast.UnaryOp):
            kind = self.of(node.operand)
            if isinstance(node.op, ast.Not):
                return "other"
            return "tensor" if kind == "mask" and not isinstance(node.op, ast.Invert) else kind
        if isinstance(node, ast.Subscript):
            kind = self.of(node.value)
            return kind if _is_tensor(kind) else "tensor" if kind == "batches" else None
        if isinstance(node, ast.IfExp):
            kinds = (self.of(node.body), self.of(node.orelse))
            return kinds[0] if kinds[0] == kinds[1] else None
        if isinstance(node, (ast.Constant, ast.JoinedStr, ast.Dict, ast.Set)):
            return "other"
        if isinstance(node, (ast.List, ast.Tuple, ast.ListComp, ast.GeneratorExp)):
            items = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node.elt]
            return "batches" if items and all(self._holds(item) for item in items) else "other"
        return None

    # -- expressions -------------------------------------------------------------------------------------------------

    def _holds(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Tuple):
            return any(self._holds(item) for item in node.elts)
        return self.is_tensor(node)

    @staticmethod
    def combined(kinds: Iterable[Kind | None], *, masks: bool) -> Kind | None:
        """The kind of what operators make of values of these kinds; `masks` where they keep booleans."""
        found = tuple(kinds)
        if any(map(_is_tensor, found)):
            return "mask" if masks and "mask" in found else "tensor"
        return "other" if all(kind in ("other", "range") for kind in found) else None

    def _compare(self, node: ast.Compare) -> Kind | None:
        if any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in node.ops):
            return "other"
        kinds = [self.of(side) for side in (node.left, *node.comparators)]
        return "mask" if any(map(_is_tensor, kinds)) else self.combined(kinds, masks=True)

    def _name(self, node: ast.Name) -> Kind | None:
        if node.id in self.roots:
            return "torch"
        scope: Scope = self.scope(node)
        while True:
            kind = self._names.get((scope, node.id))
            if kind is not None or scope is None:
                return kind
            if self.binds(scope, node.id):
                return None
            scope = self.scope(scope)

    def _attribute(self, node: ast.Attribute) -> Kind | None:
        owner = self.of(node.value)
        if owner == "torch":
            return "torch"
        if _is_tensor(owner):
            return "other" if node.attr in PLAIN_ATTRIBUTES else "tensor"
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            return self._attributes.get(node.attr)
        return None

    def _call(self, node: ast.Call) -> Kind | None:
        func = node.func
        root = self.root(func)
        if root is not None:
            return self.of_framework(node, root)
        if isinstance(func, ast.Name):
            if func.id in CONVERSIONS:
                return "other"
            if func.id in self.classes:
                return "module" if self.is_module(self.classes[func.id]) else None
            if self._name(func) == "module":
                return "tensor"
            known = [self._returns.get(function) for function in self.functions.get(func.id, ())]
            return known[0] if known and len(set(known)) == 1 else None
        if isinstance(func, ast.Attribute):
            return self._method(func)
        return "tensor" if self.of(func) == "module" else None

    def _method(self, func: ast.Attribute) -> Kind | None:
        owner = self.of(func.value)
        if _is_tensor(owner):
            if func.attr in NUMBERS:
                return "other"
            return (
                "batches"
                if func.attr in BATCHES
                else "mask"
                if func.attr in MASKING
                else (owner if func.attr in ("clone", "detach", "to", "cuda", "view", "reshape") else "tensor")
            )
        if owner == "module":
            return "module" if func.attr in MODULES else "tensor" if func.attr in ("forward", "__call__") else None
        if isinstance(func.value, ast.Name) and func.value.id == "self":
            if self._attributes.get(func.attr) == "module":
                return "tensor"
            known = [self._returns.get(function) for function in self.functions.get(func.attr, ())]
            return known[0] if known and len(set(known)) == 1 else None
        return None

    # -- names -------------------------------------------------------------------------------------------------------

    def _round(self) -> None:
        """One pass over all bindings; kinds of names follow from those of the round before."""
        found: dict[tuple[Scope, str], set[Kind | None]] = {}
        attributes: dict[str, set[Kind | None]] = {}
        returns: dict[Scope, set[Kind | None]] = {}
        for node in self._flowing:
            for target, kind in bindings(node, self):
                self._bind(target, kind, found, attributes)
            if isinstance(node, ast.Return) and node.value is not None:
                returns.setdefault(self.scope(node), set()).add(self._returned(node.value))
            if isinstance(node, ast.Call):
                self._pass_on(node, found)
                self._used_as_tensor(node, found)
        for (scope, name), kinds in found.items():
            kind = _agreed(kinds)
            if kind is not None:
                self._names[(scope, name)] = kind
            else:
                self._names.pop((scope, name), None)
        self._attributes = {name: kind for name, kinds in attributes.items() if (kind := _agreed(kinds)) is not None}
        self._returns = {scope: kind for scope, kinds in returns.items() if (kind := _agreed(kinds)) is not None}

    def _returned(self, value: ast.expr) -> Kind | None:
        if isinstance(value, ast.Tuple):
            kinds = {self.of(item) for item in value.elts}
            return "tensor" if kinds and all(map(_is_tensor, kinds)) else None
        return self.of(value)

    def _bind(
        self,
        target: ast.expr,
        kind: Kind | None,
        found: dict[tuple[Scope, str], set[Kind | None]],
        attributes: dict[str, set[Kind | None]],
    ) -> None:
        if isinstance(target, ast.Name):
            found.setdefault((self.scope(target), target.id), set()).add(kind)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            attributes.setdefault(target.attr, set()).add(kind)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, None, found, attributes)

    def _pass_on(self, call: ast.Call, found: dict[tuple[Scope, str], set[Kind | None]]) -> None:
        """Parameters of the source's own functions are what they are called with."""
        for function, skip in self._callees(call):
            names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)][skip:]
            for name, value in zip(names, call.args, strict=False):
                self._note(found, function, name, self.of(value))
            for keyword in call.keywords:
                if keyword.arg is not None:
                    self._note(found, function, keyword.arg, self.of(keyword.value))

    def _callees(self, call: ast.Call) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, int]]:
        func = call.func
        if isinstance(func, ast.Name):
            for function in self.functions.get(func.id, ()):
                yield function, int(isinstance(self.parents.get(function), ast.ClassDef))
            kind = self._name(func)
        elif isinstance(func, ast.Attribute) and self.root(func) is None:
            for function in self.functions.get(func.attr, ()):
                if isinstance(self.parents.get(function), ast.ClassDef):
                    yield function, 1
            kind = self.of(func)
        else:
            return
        if kind == "module":
            for function in self.functions.get("forward", ()):
                yield function, 1

    @staticmethod
    def _note(found: dict[tuple[Scope, str], set[Kind | None]], scope: Scope, name: str, kind: Kind | None) -> None:
        """Note the kind of an argument; an unknown one counts once the names outside are known."""
        if kind is not None:
            found.setdefault((scope, name), set()).add(kind)

    def _used_as_tensor(self, call: ast.Call, found: dict[tuple[Scope, str], set[Kind | None]]) -> None:
        """A parameter with a method that tensors have and hardly anything else, or that goes to a layer, is one; so is
        whatever a value is read from, here or on a later line.
        """
        scope = self.scope(call)
        func = call.func
        names: list[ast.expr] = []
        if isinstance(func, ast.Attribute) and func.attr in ONLY_TENSORS and self.root(func) is None:
            names.append(func.value)
        if self.root(func) is None and self.of(func) == "module":
            names += call.args[:1]
        root = self.root(func)
        if root is not None and self.of_framework(call, root) in ("tensor", "mask") and root.count("."):
            names += call.args[:1]
        for name in names:
            if isinstance(name, ast.Name) and scope is not None and self.binds(scope, name.id):
                self._note(found, scope, name.id, "tensor")
        read = read_name(call) if self.reads_tell else None
        if read is not None and (self.binds(scope, read.id) or (scope, read.id) in self._bound):
            self._note(found, scope, read.id, "tensor")


def _agreed(kinds: set[Kind | None]) -> Kind | None:
    known = kinds - {None}
    if known == {"tensor", "mask"}:
        return "tensor"
    return (
        next(iter(known)) if len(known) == 1 and (None not in kinds or known & {"tensor", "mask", "module"}) else None
    )
