"""Which names a piece of code binds and reads, and which it reads before it binds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

__all__ = ["Exits", "Uses", "bound_after", "exposed", "statements_of", "uses_of"]

Statement = cst.BaseStatement | cst.BaseSmallStatement


class Uses(cst.CSTVisitor):
    """Names that code binds in its own scope (`stores`, in order) and reads anywhere (`reads`, nested scopes too)."""

    def __init__(self) -> None:
        self.stores: dict[str, None] = {}
        self.reads: set[str] = set()
        self.captured: set[str] = set()
        self._inner = 0
        self._targets: set[int] = set()

    def _bind(self, name: str) -> None:
        if not self._inner:
            self.stores.setdefault(name)

    def _target(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Name):
            self._targets.add(id(node))
            self._bind(node.value)
        elif isinstance(node, (cst.Tuple, cst.List)):
            for element in node.elements:
                self._target(element.value)
        elif isinstance(node, cst.StarredElement):
            self._target(node.value)

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        self._target(node.target)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            self._target(node.target)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        if isinstance(node.target, cst.Name):
            self._bind(node.target.value)  # and it is read

    def visit_For(self, node: cst.For) -> None:
        self._target(node.target)

    def visit_AsName(self, node: cst.AsName) -> None:
        self._target(node.name)

    def visit_ImportAlias(self, node: cst.ImportAlias) -> bool:
        if node.asname is None:
            first: cst.BaseExpression = node.name
            while isinstance(first, cst.Attribute):
                first = first.value
            self._target(first)
            return False
        return True

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        # In a comprehension it binds in the scope around; to count it there is right for both.
        if isinstance(node.target, cst.Name):
            self._targets.add(id(node.target))
            self.stores.setdefault(node.target.value)

    def visit_Del(self, node: cst.Del) -> None:
        for name in _names_in(node.target):
            self._bind(name)

    def visit_MatchAs(self, node: cst.MatchAs) -> None:
        if node.name is not None:
            self._bind(node.name.value)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._targets.add(id(node.name))
        self._bind(node.name.value)
        self._inner += 1

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._inner -= 1

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._targets.add(id(node.name))
        self._bind(node.name.value)
        self._inner += 1

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self._inner -= 1

    def visit_Lambda(self, node: cst.Lambda) -> None:
        self._inner += 1

    def leave_Lambda(self, original_node: cst.Lambda) -> None:
        self._inner -= 1

    def visit_CompFor(self, node: cst.CompFor) -> None:
        for name in _names_in(node.target):
            self._targets.add(id(name))

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_Param(self, node: cst.Param) -> bool:
        if node.default is not None:
            node.default.visit(self)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        if id(node) not in self._targets:
            self.reads.add(node.value)
            if self._inner:
                self.captured.add(node.value)


def _names_in(node: cst.CSTNode) -> Iterator[str]:
    if isinstance(node, cst.Name):
        yield node.value
    elif isinstance(node, (cst.Tuple, cst.List)):
        for element in node.elements:
            yield from _names_in(element.value)


def uses_of(*nodes: cst.CSTNode | None) -> Uses:
    uses = Uses()
    for node in nodes:
        if node is not None:
            node.visit(uses)
    return uses


def statements_of(suite: cst.BaseSuite | cst.Module) -> list[Statement]:
    """The statements of a block, a line of several small statements taken apart where there are several."""
    found: list[Statement] = []
    for statement in suite.body:
        found.append(statement)
    return found


@dataclass(frozen=True, slots=True)
class Exits:
    """Names that are read where a block is left: by `break`, by `continue`."""

    on_break: frozenset[str] = frozenset()
    on_continue: frozenset[str] = frozenset()


def exposed(statements: Sequence[Statement], out: frozenset[str], exits: Exits) -> frozenset[str]:
    """The names that may be read before they are bound when `statements` run; `out` are read after them."""
    live = out
    for statement in reversed(statements):
        live = _before(statement, live, exits)
    return live


def _before(statement: cst.CSTNode, out: frozenset[str], exits: Exits) -> frozenset[str]:
    if isinstance(statement, cst.SimpleStatementLine):
        for small in reversed(statement.body):
            out = _before(small, out, exits)
        return out
    if isinstance(statement, cst.Return):
        return frozenset(uses_of(statement).reads)
    if isinstance(statement, cst.Raise):
        return out | frozenset(uses_of(statement).reads)
    if isinstance(statement, cst.Break):
        return exits.on_break
    if isinstance(statement, cst.Continue):
        return exits.on_continue
    uses = uses_of(statement)
    if isinstance(statement, (cst.Assign, cst.AnnAssign, cst.Import, cst.ImportFrom, cst.FunctionDef, cst.ClassDef)):
        return (out - frozenset(uses.stores)) | frozenset(uses.reads)
    if isinstance(statement, cst.If):
        body = exposed(statements_of(statement.body), out, exits)
        orelse = _orelse(statement.orelse, out, exits)
        return frozenset(uses_of(statement.test).reads) | body | orelse
    if isinstance(statement, cst.With):
        reads = frozenset().union(*(uses_of(item.item).reads for item in statement.items))
        return reads | exposed(statements_of(statement.body), out, exits)
    if isinstance(statement, (cst.For, cst.While)):
        return _before_loop(statement, out, exits)
    return out | frozenset(uses.reads)


def _orelse(orelse: cst.If | cst.Else | None, out: frozenset[str], exits: Exits) -> frozenset[str]:
    if orelse is None:
        return out
    if isinstance(orelse, cst.If):
        return _before(orelse, out, exits)
    return exposed(statements_of(orelse.body), out, exits)


def _before_loop(loop: cst.For | cst.While, out: frozenset[str], exits: Exits) -> frozenset[str]:
    head = loop.iter if isinstance(loop, cst.For) else loop.test
    targets = frozenset(_names_in(loop.target)) if isinstance(loop, cst.For) else frozenset()
    test = frozenset() if isinstance(loop, cst.For) else frozenset(uses_of(head).reads)
    after = out if loop.orelse is None else exposed(statements_of(loop.orelse.body), out, exits)
    body = statements_of(loop.body)
    around = after | test
    for _ in range(2):  # the second time with what the next iteration reads
        inner = Exits(on_break=out, on_continue=around)
        around = after | test | (exposed(body, around, inner) - targets)
    return around | frozenset(uses_of(head).reads)


def bound_after(statements: Sequence[Statement], before: frozenset[str]) -> frozenset[str]:
    """The names that are certainly bound after `statements`, if those come to their end."""
    bound = before
    for statement in statements:
        bound = _bound(statement, bound)
    return bound


def _bound(statement: cst.CSTNode, before: frozenset[str]) -> frozenset[str]:
    if isinstance(statement, cst.SimpleStatementLine):
        for small in statement.body:
            before = _bound(small, before)
        return before
    if isinstance(statement, cst.Del):
        return before - frozenset(_names_in(statement.target))
    if isinstance(statement, cst.If):
        body = bound_after(statements_of(statement.body), before)
        if isinstance(statement.orelse, cst.If):
            return body & _bound(statement.orelse, before)
        other = before if statement.orelse is None else bound_after(statements_of(statement.orelse.body), before)
        return body & other
    if isinstance(statement, cst.With):
        names = uses_of(*statement.items).stores
        return bound_after(statements_of(statement.body), before | frozenset(names))
    if isinstance(statement, (cst.For, cst.While, cst.Try, cst.TryStar, cst.Match)):
        deleted = frozenset(
            name for node in _descendants(statement) if isinstance(node, cst.Del) for name in _names_in(node.target)
        )
        return before - deleted
    if isinstance(statement, (cst.Assign, cst.AnnAssign, cst.Import, cst.ImportFrom, cst.FunctionDef, cst.ClassDef)):
        return before | frozenset(uses_of(statement).stores)
    return before


def _descendants(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _descendants(child)
