"""Which names code binds in its own scope and which it reads, in the order in which Python does both."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence


class Names(ast.NodeVisitor):
    """`stores`: names bound, in order. `reads`: names read, nested scopes included. `first`: read when perhaps unbound.

    `sure`: bound on every way through the code. `nested`: names that a nested scope reads or binds.
    """

    def __init__(self) -> None:
        self.stores: dict[str, None] = {}
        self.reads: dict[str, None] = {}
        self.first: dict[str, None] = {}
        self.nested: set[str] = set()
        self.sure: set[str] = set()

    # -- what happens to one name ------------------------------------------------------------------------------------

    def bind(self, name: str) -> None:
        self.stores.setdefault(name)
        self.sure.add(name)

    def read(self, name: str) -> None:
        self.reads.setdefault(name)
        if name not in self.sure:
            self.first.setdefault(name)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.read(node.id)
        else:
            self.bind(node.id)

    def _maybe(self, *parts: Iterable[ast.AST]) -> None:
        """Ways of which one is taken, or none: what all of them bind is sure only where the caller adds it."""
        before = set(self.sure)
        ends = []
        for part in parts:
            self.sure = set(before)
            for node in part:
                self.visit(node)
            ends.append(self.sure)
        self.sure = set.intersection(*ends) if ends else before

    # -- statements whose order differs from that of their fields ----------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.read(node.target.id)
        self.visit(node.value)
        self.visit(node.target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self.visit(node.target)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self.visit(node.target)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self._maybe(node.body, node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        self._maybe([node.body], [node.orelse])

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        for value in node.values[1:]:
            self._maybe([value], [])

    def visit_Compare(self, node: ast.Compare) -> None:
        self.visit(node.left)
        self.visit(node.comparators[0])
        self._maybe(node.comparators[1:], [])

    def _loop(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._maybe([node.target, *node.body], [])
        self._maybe(node.orelse, [])

    visit_For = visit_AsyncFor = _loop

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._maybe(node.body, [])
        self._maybe(node.orelse, [])

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self.visit(item)
        if all(_lets_pass(item.context_expr) for item in node.items):
            for statement in node.body:
                self.visit(statement)
        else:
            self._maybe(node.body, [])  # it may swallow an exception

    visit_With = visit_AsyncWith = _with

    def _try(self, node: ast.Try | ast.TryStar) -> None:
        self._maybe(node.body, [])
        for handler in node.handlers:
            self._maybe([handler], [])
        self._maybe(node.orelse, [])
        for item in node.finalbody:
            self.visit(item)

    visit_Try = visit_TryStar = _try

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.type is not None:
            self.visit(node.type)
        if node.name is not None:
            self.bind(node.name)
        for item in node.body:
            self.visit(item)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        for case in node.cases:
            self._maybe([case], [])

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        self.generic_visit(node)
        if node.name is not None:
            self.bind(node.name)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        if node.name is not None:
            self.bind(node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.generic_visit(node)
        if node.rest is not None:
            self.bind(node.rest)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self.bind((alias.asname or alias.name).split(".")[0])

    visit_Import = visit_ImportFrom = _import

    # -- nested scopes -----------------------------------------------------------------------------------------------

    def _inner(self, nodes: Iterable[ast.AST], own: Iterable[str]) -> None:
        """Code of a nested scope whose own names are `own`; it may run now, later or never."""
        inner = Names()
        for node in nodes:
            inner.visit(node)
        hidden = {*own, *inner.stores} - _walrus_targets(nodes)
        for name in inner.reads:
            if name not in hidden:
                self.read(name)
                self.nested.add(name)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        self.visit(node.generators[0].iter)
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        rest: list[ast.AST] = [node.generators[0].target, *node.generators[0].ifs]
        for generator in node.generators[1:]:
            rest += [generator.iter, generator.target, *generator.ifs]
        targets = [n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)]
        self._inner([*rest, *results], targets)
        for name in sorted(_walrus_targets([*rest, *results])):
            self.stores.setdefault(name)
            self.nested.add(name)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._defaults(node.args)
        self._inner([node.body], parameters_of(node.args))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._defaults(node.args)
        self._inner(node.body, parameters_of(node.args))
        self.bind(node.name)

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(part)
        self._inner(node.body, ())
        self.bind(node.name)

    def _defaults(self, arguments: ast.arguments) -> None:
        for default in (*arguments.defaults, *arguments.kw_defaults):
            if default is not None:
                self.visit(default)


_LETS_PASS = frozenset({"no_grad", "enable_grad", "inference_mode", "set_grad_enabled", "autocast"})


def _lets_pass(context: ast.expr) -> bool:
    """True where this is certainly one of torch's contexts that let exceptions pass."""
    function = context.func if isinstance(context, ast.Call) else None
    return isinstance(function, ast.Attribute) and function.attr in _LETS_PASS


def parameters_of(arguments: ast.arguments) -> list[str]:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [one.arg for one in (*every, arguments.vararg, arguments.kwarg) if one is not None]


def _walrus_targets(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that a walrus inside a comprehension binds in the scope around it."""
    return {
        item.target.id
        for node in nodes
        for item in ast.walk(node)
        if isinstance(item, ast.NamedExpr) and isinstance(item.target, ast.Name)
    }


def names_of(statements: Sequence[ast.AST], sure: Iterable[str] = ()) -> Names:
    """The names of these statements, run one after the other; those in `sure` are bound before."""
    names = Names()
    names.sure.update(sure)
    for statement in statements:
        names.visit(statement)
    return names
