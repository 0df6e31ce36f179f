"""Which names a piece of code binds and reads, and which it reads before it binds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import libcst as cst

from ..tree import children, descendants
from .plain import is_flow_call, is_generated

Statement = cst.BaseStatement | cst.BaseSmallStatement
_BINDS = (cst.Assign, cst.AnnAssign, cst.Import, cst.ImportFrom, cst.FunctionDef, cst.ClassDef)


class Uses:
    """Names that code binds in its own scope (`stores`, in order) and reads anywhere (`reads`, nested scopes too).

    `captured` names are read inside of nested functions, lambdas and classes; what a rewrite made is none of these,
    for it is called where it stands and kept nowhere.
    """

    def __init__(self) -> None:
        self.stores: dict[str, None] = {}
        self.reads: set[str] = set()
        self.captured: set[str] = set()

    def add(self, other: Uses) -> None:
        self.stores |= other.stores
        self.reads |= other.reads
        self.captured |= other.captured


class _Scan:
    """Fills a `Uses`; `inner` counts the nested scopes around the current node."""

    def __init__(self) -> None:
        self.uses = Uses()
        self._inner = 0
        self._hidden: frozenset[str] | None = frozenset()  # not captured, of the scope at hand; None: nothing is
        self._generated: set[int] = set()

    def _bind(self, name: str) -> None:
        if not self._inner:
            self.uses.stores.setdefault(name)

    def _target(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Name):
            self._bind(node.value)
        elif isinstance(node, (cst.Tuple, cst.List)):
            for element in node.elements:
                self._target(element.value)
        else:
            self.scan(node)

    def scan(self, node: cst.CSTNode | None) -> None:
        if node is None:
            return
        if isinstance(node, cst.Name):
            self.uses.reads.add(node.value)
            if self._inner and self._hidden is not None and node.value not in self._hidden:
                self.uses.captured.add(node.value)
        elif isinstance(node, (cst.Attribute, cst.Arg)):
            self.scan(node.value)
        elif isinstance(node, (cst.AssignTarget, cst.CompFor, cst.For, cst.AnnAssign, cst.NamedExpr, cst.AsName)):
            self._binding(node)
        elif isinstance(node, cst.AugAssign):
            if isinstance(node.target, cst.Name):
                self._bind(node.target.value)
            self.scan(node.target)
            self.scan(node.value)
        elif isinstance(node, cst.ImportAlias):
            first: cst.BaseExpression = node.name
            while isinstance(first, cst.Attribute):
                first = first.value
            self._target(first if node.asname is None else node.asname.name)
        elif isinstance(node, cst.Del):
            for name in _names_in(node.target):
                self._bind(name)
            self.scan(node.target)
        elif isinstance(node, cst.MatchAs):
            if node.name is not None:
                self._bind(node.name.value)
            self.scan(node.pattern)
        elif isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            self._scope(node)
        else:
            if is_flow_call(node):
                self._generated |= {id(item.value) for item in children(node) if isinstance(item, cst.Arg)}
            for child in children(node):
                self.scan(child)

    def _binding(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.AssignTarget):
            self._target(node.target)
        elif isinstance(node, cst.AsName):
            self._target(node.name)
        elif isinstance(node, cst.NamedExpr):
            # In a comprehension it binds in the scope around; to count it there is right for both.
            if isinstance(node.target, cst.Name):
                self.uses.stores.setdefault(node.target.value)
            self.scan(node.value)
        elif isinstance(node, cst.AnnAssign):
            if node.value is not None:
                self._target(node.target)
            self.scan(node.value)
        elif isinstance(node, cst.CompFor):
            for part in (node.iter, *node.ifs, node.inner_for_in):
                self.scan(part)
        elif isinstance(node, cst.For):
            self._target(node.target)
            self.scan(node.iter)
            self.scan(node.body)
            self.scan(node.orelse)

    def _scope(self, node: cst.FunctionDef | cst.ClassDef | cst.Lambda) -> None:
        if not isinstance(node, cst.Lambda):
            self._bind(node.name.value)
        outer = self._hidden
        if id(node) in self._generated or (isinstance(node, cst.FunctionDef) and is_generated(node)):
            self._hidden = None
        elif not isinstance(node, cst.ClassDef):
            self._hidden = (outer or frozenset()) | {
                item.name.value for item in descendants(node.params) if isinstance(item, cst.Param)
            }
        self._inner += 1
        for child in children(node):
            if isinstance(child, cst.Parameters):
                for item in descendants(child):
                    if isinstance(item, cst.Param):
                        self.scan(item.default)
            elif isinstance(node, cst.Lambda) or child is not node.name:
                self.scan(child)
        self._inner -= 1
        self._hidden = outer


def _names_in(node: cst.CSTNode) -> Iterator[str]:
    if isinstance(node, cst.Name):
        yield node.value
    elif isinstance(node, (cst.Tuple, cst.List)):
        for element in node.elements:
            yield from _names_in(element.value)


@lru_cache(maxsize=8192)
def _uses(node: cst.CSTNode) -> Uses:
    scan = _Scan()
    scan.scan(node)
    return scan.uses


def uses_of(*nodes: cst.CSTNode | None) -> Uses:
    """The uses of several nodes together."""
    uses = Uses()
    for node in nodes:
        if node is not None:
            uses.add(_uses(node))
    return uses


@dataclass(frozen=True, slots=True)
class Exits:
    """Names that are read where a block is left: by `break`, by `continue`.

    `through`: jumps become flags, so that control goes on behind them.
    """

    on_break: frozenset[str] = frozenset()
    on_continue: frozenset[str] = frozenset()
    through: bool = False


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
    if exits.through and isinstance(statement, (cst.Return, cst.Break, cst.Continue)):
        return out | frozenset(uses_of(statement).reads)
    if isinstance(statement, cst.Return):
        return frozenset(uses_of(statement).reads)
    if isinstance(statement, cst.Raise):
        return out | frozenset(uses_of(statement).reads)
    if isinstance(statement, cst.Break):
        return exits.on_break
    if isinstance(statement, cst.Continue):
        return exits.on_continue
    uses = uses_of(statement)
    if isinstance(statement, _BINDS):
        return (out - frozenset(uses.stores)) | frozenset(uses.reads)
    if isinstance(statement, cst.If):
        body = exposed(statement.body.body, out, exits)
        orelse = _orelse(statement.orelse, out, exits)
        return frozenset(uses_of(statement.test).reads) | body | orelse
    if isinstance(statement, cst.With):
        reads = frozenset().union(*(uses_of(item.item).reads for item in statement.items))
        return reads | exposed(statement.body.body, out, exits)
    if isinstance(statement, (cst.For, cst.While)):
        return _before_loop(statement, out, exits)
    return out | frozenset(uses.reads)


def _orelse(orelse: cst.If | cst.Else | None, out: frozenset[str], exits: Exits) -> frozenset[str]:
    if orelse is None:
        return out
    if isinstance(orelse, cst.If):
        return _before(orelse, out, exits)
    return exposed(orelse.body.body, out, exits)


def _before_loop(loop: cst.For | cst.While, out: frozenset[str], exits: Exits) -> frozenset[str]:
    head = loop.iter if isinstance(loop, cst.For) else loop.test
    targets = frozenset(_names_in(loop.target)) if isinstance(loop, cst.For) else frozenset()
    test = frozenset() if isinstance(loop, cst.For) else frozenset(uses_of(head).reads)
    after = out if loop.orelse is None else exposed(loop.orelse.body.body, out, exits)
    body = loop.body.body
    around = after | test
    for _ in range(2):  # the second time with what the next iteration reads
        inner = Exits(on_break=out, on_continue=around, through=exits.through)
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
        body = bound_after(statement.body.body, before)
        if isinstance(statement.orelse, cst.If):
            return body & _bound(statement.orelse, before)
        other = before if statement.orelse is None else bound_after(statement.orelse.body.body, before)
        return body & other
    if isinstance(statement, cst.With):
        names = uses_of(*statement.items).stores
        return bound_after(statement.body.body, before | frozenset(names))
    if isinstance(statement, (cst.For, cst.While, cst.Try, cst.TryStar, cst.Match)):
        deleted = frozenset(
            name for node in descendants(statement) if isinstance(node, cst.Del) for name in _names_in(node.target)
        )
        return before - deleted
    if isinstance(statement, _BINDS):
        return before | frozenset(uses_of(statement).stores)
    return before
