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
from .vocabulary import (
    BATCHES,
    CONVERSIONS,
    FRAMEWORKS,
    MASKING,
    MODULES,
    NOT_TENSORS,
    NUMBERS,
    ONLY_TENSORS,
    PLAIN_ATTRIBUTES,
)

__all__ = ["Kind", "Kinds", "Scope"]

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | None
"""A function, or None for the top level."""

_ROUNDS = 6

_SHARED = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
"""Nodes without children, one object for all places."""

_FLOWING = (
    *(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor, ast.comprehension, ast.NamedExpr),
    *(ast.Return, ast.Call),
)
"""Nodes that give names, parameters or results a kind."""


def _is_tensor(kind: Kind | None) -> bool:
    return kind in ("tensor", "mask")


class Kinds:
    """The kinds of the names in one tree, by function; and of any expression in it."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.parents: dict[ast.AST, ast.AST] = {}
        self.nodes = _walked(tree, self.parents)
        """All nodes of the tree in the order of `ast.walk`, without operators and contexts, which are shared."""
        self.roots = frozenset(_frameworks(self.nodes))
        self._scopes: dict[ast.AST, Scope] = {}
        self._flowing = tuple(node for node in self.nodes if isinstance(node, _FLOWING))
        self.functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        for node in self.nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self.functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
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
        self._layers = frozenset(
            alias.asname or alias.name
            for node in self.nodes
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.nn")
            for alias in node.names
            if alias.name[:1].isupper()
        )
        """Names imported from ``torch.nn`` itself: `Linear`, `Sequential`, ..."""
        if self.roots:
            for _ in range(_ROUNDS):
                before = (dict(self._names), dict(self._attributes), dict(self._returns))
                self._round()
                if before == (self._names, self._attributes, self._returns):
                    break
            self._known = {}

    @property
    def uses_tensors(self) -> bool:
        """False for code that imports none of the libraries whose values are tensors."""
        return bool(self.roots)

    def scope(self, node: ast.AST) -> Scope:
        """The innermost function around `node`; the decorators and defaults of a function lie outside of it."""
        if node not in self._scopes:
            self._scopes[node] = self._found_scope(node)
        return self._scopes[node]

    def _found_scope(self, node: ast.AST) -> Scope:
        child, parent = node, self.parents.get(node)
        while parent is not None:
            if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and child in parent.body:
                return parent
            if isinstance(parent, ast.Lambda) and child is parent.body:
                return parent
            child, parent = parent, self.parents.get(parent)
        return None

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

    def root_call(self, node: ast.expr) -> str | None:
        """The function's name where `node` calls something of a framework: ``torch.cat(...)`` is "cat"."""
        if not isinstance(node, ast.Call) or self._root(node.func) is None:
            return None
        return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)

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
            if self._binds(scope, node.id):
                return None
            scope = self.scope(scope)

    @staticmethod
    def _binds(scope: Scope, name: str) -> bool:
        """True for a parameter: the name of the same spelling outside is another one."""
        if scope is None:
            return False
        given = scope.args
        return any(arg.arg == name for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs))

    def _attribute(self, node: ast.Attribute) -> Kind | None:
        owner = self.of(node.value)
        if owner == "torch":
            return "torch"
        if _is_tensor(owner):
            return "other" if node.attr in PLAIN_ATTRIBUTES else "tensor"
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            return self._attributes.get(node.attr)
        return None

    def _root(self, func: ast.expr) -> str | None:
        """The dotted name of a callable that belongs to a framework."""
        parts: list[str] = []
        node = func
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.roots:
            return None
        return ".".join([node.id, *reversed(parts)])

    def _call(self, node: ast.Call) -> Kind | None:
        func = node.func
        root = self._root(func)
        if root is not None:
            return self._of_framework(node, root)
        if isinstance(func, ast.Name):
            if func.id in CONVERSIONS:
                return "other"
            if func.id in self.classes:
                return "module" if self._is_module(self.classes[func.id]) else None
            if self._name(func) == "module":
                return "tensor"
            known = [self._returns.get(function) for function in self.functions.get(func.id, ())]
            return known[0] if known and len(set(known)) == 1 else None
        if isinstance(func, ast.Attribute):
            return self._method(func)
        return "tensor" if self.of(func) == "module" else None

    def _of_framework(self, node: ast.Call, root: str) -> Kind | None:
        last = root.rpartition(".")[2]
        if last in BATCHES:
            return "batches"
        if last == "Parameter":
            return "tensor"
        if last == "from_pretrained" or ("nn" in root.split(".") and last[:1].isupper()):
            return "module"
        if last[:1].isupper():
            return "module" if root.split(".")[0] in self.roots and "." not in root and last in self._layers else None
        if last in NOT_TENSORS or last.startswith("is_") or ".utils." in root or ".cuda." in root or ".optim" in root:
            return None
        return "mask" if last in MASKING or _is_bool(node) else "tensor"

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

    def _is_module(self, node: ast.ClassDef) -> bool:
        for base in node.bases:
            root = self._root(base)
            if root is not None and root.rpartition(".")[2] == "Module":
                return True
            if isinstance(base, ast.Name) and base.id in self.classes and self.classes[base.id] is not node:
                return self._is_module(self.classes[base.id])
        return False

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
        elif isinstance(func, ast.Attribute) and self._root(func) is None:
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
        if isinstance(func, ast.Attribute) and func.attr in ONLY_TENSORS and self._root(func) is None:
            names.append(func.value)
        if self._root(func) is None and self.of(func) == "module":
            names += call.args[:1]
        root = self._root(func)
        if root is not None and self._of_framework(call, root) in ("tensor", "mask") and root.count("."):
            names += call.args[:1]
        for name in names:
            if isinstance(name, ast.Name) and scope is not None and self._binds(scope, name.id):
                self._note(found, scope, name.id, "tensor")
        read = read_name(call) if self.reads_tell else None
        if read is not None and (self._binds(scope, read.id) or (scope, read.id) in self._bound):
            self._note(found, scope, read.id, "tensor")


def _agreed(kinds: set[Kind | None]) -> Kind | None:
    known = kinds - {None}
    if known == {"tensor", "mask"}:
        return "tensor"
    return (
        next(iter(known)) if len(known) == 1 and (None not in kinds or known & {"tensor", "mask", "module"}) else None
    )


def _is_bool(call: ast.Call) -> bool:
    return any(
        keyword.arg == "dtype" and isinstance(keyword.value, ast.Attribute) and keyword.value.attr == "bool"
        for keyword in call.keywords
    )


def _walked(tree: ast.Module, parents: dict[ast.AST, ast.AST]) -> tuple[ast.AST, ...]:
    """The nodes below and with `tree`, breadth first; `parents` is filled. Several times as fast as `ast.walk`."""
    nodes: list[ast.AST] = [tree]
    for node in nodes:  # which grows
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                for item in value:
                    if isinstance(item, ast.AST) and not isinstance(item, _SHARED):
                        parents[item] = node
                        nodes.append(item)
            elif isinstance(value, ast.AST) and not isinstance(value, _SHARED):
                parents[value] = node
                nodes.append(value)
    return tuple(nodes)


def _frameworks(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names bound by imports of torch and of libraries around it."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in FRAMEWORKS:
                    yield alias.asname or alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FRAMEWORKS:
            for alias in node.names:
                yield alias.asname or alias.name
