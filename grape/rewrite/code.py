"""Python source as a concrete syntax tree: what stands on a line, what encloses it, and replacing parts of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import libcst as cst
from libcst.metadata import (
    CodeRange,
    ExpressionContext,
    ExpressionContextProvider,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
)

Loop = cst.For | cst.While
_Line = cst.SimpleStatementLine | cst.BaseCompoundStatement
_Node = TypeVar("_Node", bound=cst.CSTNode)
_Scope = (cst.FunctionDef, cst.Lambda, cst.ClassDef)
Replacement = cst.CSTNode | Sequence[cst.BaseStatement] | Callable[[Any], Sequence[cst.BaseStatement]]


class Block:
    """The statements of one suite, in order, and the node that holds them."""

    def __init__(self, holder: cst.Module | cst.IndentedBlock) -> None:
        self.holder = holder
        self.statements: Sequence[cst.CSTNode] = holder.body

    def index(self, statement: cst.CSTNode) -> int:
        return next(i for i, other in enumerate(self.statements) if other is statement)


class Code:
    """One source. Nodes are those of `module`; positions count lines from 1."""

    def __init__(self, text: str, elsewhere: Collection[str] = ()) -> None:
        """`elsewhere` are global names that functions of other cells use.

        Raises `libcst.ParserSyntaxError` where `text` is no Python that LibCST reads.
        """
        self._elsewhere = frozenset(elsewhere)
        self.module, self._positions, self._parents, self._contexts, self._nodes = _parsed(text)

    def lines(self, node: cst.CSTNode) -> tuple[int, int]:
        """First and last line."""
        span = self._positions[node]
        return span.start.line, span.end.line

    def line(self, node: cst.CSTNode) -> int:
        return self.lines(node)[0]

    def text(self, node: cst.CSTNode) -> str:
        return self.module.code_for_node(node)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self._parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """From the parent outwards."""
        above = self._parents.get(node)
        while above is not None:
            yield above
            above = self._parents.get(above)

    def on_line(self, line: int, kind: type[_Node]) -> list[_Node]:
        """Nodes of `kind` that cover `line`, outermost first; compound statements by their first line only."""
        found = []
        for node in self._nodes:
            if isinstance(node, kind):
                first, last = self.lines(node)
                if first == line or (first <= line <= last and not isinstance(node, cst.BaseCompoundStatement)):
                    found.append(node)
        return found

    def statement(self, node: cst.CSTNode) -> cst.SimpleStatementLine | cst.BaseCompoundStatement | None:
        """The statement line or compound statement that holds `node` (or is it)."""
        for above in (node, *self.ancestors(node)):
            if isinstance(above, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
                return above
        return None

    def block(self, statement: cst.CSTNode) -> Block | None:
        """The suite that holds the statement; None for a suite on the line of its header."""
        parent = self._parents.get(statement)
        return Block(parent) if isinstance(parent, (cst.Module, cst.IndentedBlock)) else None

    def loops(self, node: cst.CSTNode) -> list[Loop]:
        """The loops whose bodies hold `node`, innermost first, within one function."""
        found: list[Loop] = []
        below = node
        for above in self.ancestors(node):
            if isinstance(above, _Scope):
                break
            if isinstance(above, Loop) and below is above.body:
                found.append(above)
            below = above
        return found

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The function that holds `node`, if one does."""
        return next((above for above in self.ancestors(node) if isinstance(above, cst.FunctionDef)), None)

    def is_stored(self, node: cst.CSTNode) -> bool:
        """True for a name, attribute or subscript that is assigned to or deleted."""
        return self._contexts.get(node) in (ExpressionContext.STORE, ExpressionContext.DEL)

    def uses(self, name: str, within: cst.CSTNode | None = None) -> list[cst.Name]:
        """Where the variable `name` stands, in the order of the source; not as an attribute or a keyword."""
        nodes = descendants(within) if within is not None else self._nodes
        return [node for node in nodes if isinstance(node, cst.Name) and node.value == name and self._is_variable(node)]

    def stored(self, within: cst.CSTNode) -> set[str]:
        """Names that are bound within a node, definitions and imports included."""
        names = set()
        for node in descendants(within):
            if isinstance(node, cst.Name) and self.is_stored(node) and self._is_variable(node):
                names.add(node.value)
            elif isinstance(node, (cst.FunctionDef, cst.ClassDef)):
                names.add(node.name.value)
            elif isinstance(node, cst.ImportAlias):
                names.add(node.evaluated_alias or (node.evaluated_name or "").partition(".")[0])
        return names

    def is_shared(self, name: str, home: cst.FunctionDef | None) -> bool:
        """True where a function declares `name`, a variable of `home`, global or nonlocal, or one elsewhere uses it."""
        if home is None and name in self._elsewhere:
            return True
        declared = (node for node in self._nodes if isinstance(node, (cst.Global, cst.Nonlocal)))
        return any(item.name.value == name for node in declared for item in node.names)

    def all_names(self) -> set[str]:
        return {node.value for node in self._nodes if isinstance(node, cst.Name)}

    def fresh(self, wanted: str) -> str:
        """`wanted`, or `wanted` with a number where the source has that name."""
        taken, name, number = self.all_names(), wanted, 2
        while name in taken:
            name, number = f"{wanted}_{number}", number + 1
        return name

    def replaced(self, edits: Mapping[cst.CSTNode, Replacement]) -> str:
        """The source with nodes replaced.

        A sequence of statements takes the place of one statement, none removes it; a function makes the sequence from
        the statement as it is after the edits inside it.
        """
        return self.module.visit(_Replace(edits)).code

    def _is_variable(self, node: cst.Name) -> bool:
        parent = self._parents.get(node)
        if isinstance(parent, cst.Attribute):
            return parent.attr is not node
        if isinstance(parent, cst.Arg):
            return parent.keyword is not node
        return not isinstance(parent, (cst.ImportAlias, cst.AsName)) or self.is_stored(node)


@lru_cache(maxsize=16)
def _parsed(
    text: str,
) -> tuple[
    cst.Module,
    Mapping[cst.CSTNode, CodeRange],
    Mapping[cst.CSTNode, cst.CSTNode],
    Mapping[cst.CSTNode, ExpressionContext | None],
    Sequence[cst.CSTNode],
]:
    """The tree of a source, positions, parents and contexts of its nodes, and all of these in order. Nothing of it is
    changed, so that the fixes of one source share it.
    """
    wrapper = MetadataWrapper(cst.parse_module(text))
    positions, parents = wrapper.resolve(PositionProvider), wrapper.resolve(ParentNodeProvider)
    contexts = wrapper.resolve(ExpressionContextProvider)
    return wrapper.module, positions, parents, contexts, tuple(descendants(wrapper.module))


class _Replace(cst.CSTTransformer):
    def __init__(self, edits: Mapping[cst.CSTNode, Replacement]) -> None:
        super().__init__()
        self._edits = edits

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> object:  # type: ignore[override]
        edit = self._edits.get(original_node)
        if edit is None:
            return super().on_leave(original_node, updated_node)
        if isinstance(edit, cst.CSTNode):
            return edit
        statements = edit(updated_node) if callable(edit) else edit
        return cst.FlattenSentinel(statements) if statements else cst.RemoveFromParent()


def beside(
    before: cst.BaseStatement, after: Sequence[cst.BaseStatement] = ()
) -> Callable[[_Line], list[cst.BaseStatement]]:
    """An edit that leaves a statement between others; the comments above it stand above the first of them."""

    def edit(statement: _Line) -> list[cst.BaseStatement]:
        first = before.with_changes(leading_lines=statement.leading_lines)
        return [first, statement.with_changes(leading_lines=[]), *after]

    return edit


def under(context: str) -> Callable[[_Line], list[cst.BaseStatement]]:
    """An edit that puts a statement under ``with context:``."""

    def edit(statement: _Line) -> list[cst.BaseStatement]:
        body = cst.IndentedBlock([statement.with_changes(leading_lines=[])])
        return [cst.With([cst.WithItem(cst.parse_expression(context))], body, leading_lines=statement.leading_lines)]

    return edit


def importing(code: Code, text: str, name: str = "torch") -> str:
    """`text`, a rewrite of `code`, with ``import name`` at its top where `code` did not have the name."""
    if name in code.all_names():
        return text
    return with_import(cst.parse_module(text), f"import {name}").code


def with_import(module: cst.Module, statement: str) -> cst.Module:
    """The module with an import behind its docstring and ``from __future__`` imports."""
    first = next((i for i, one in enumerate(module.body) if not _comes_first(one)), len(module.body))
    imported = cst.parse_statement(statement, module.config_for_parsing)
    return module.with_changes(body=[*module.body[:first], imported, *module.body[first:]])


def _comes_first(statement: cst.CSTNode) -> bool:
    """Docstrings and ``from __future__`` imports."""
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if isinstance(small, cst.Expr):
        return isinstance(small.value, (cst.SimpleString, cst.ConcatenatedString))
    return isinstance(small, cst.ImportFrom) and small.module is not None and dotted(small.module) == "__future__"


def edited(node: cst.CSTNode, edits: Mapping[cst.CSTNode, cst.CSTNode]) -> cst.CSTNode:
    """`node` with nodes below it replaced."""
    visited = node.visit(_Replace(edits))
    assert isinstance(visited, cst.CSTNode)
    return visited


def descendants(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and all below it, in the order of the source."""
    yield node
    for child in node.children:
        yield from descendants(child)


def dotted(node: cst.CSTNode) -> str:
    """``torch.cuda.synchronize`` of such an expression; "" for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr.value}" if before else ""
    return ""


def same(one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """True where two nodes are the same code."""
    return one.deep_equals(other)
