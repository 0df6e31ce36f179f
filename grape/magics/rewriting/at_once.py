"""``%%grape --rewrite``: the cell runs rewritten, under its own name and lines; what was typed stays what is shown.

The tree of the rewritten source takes the place of the cell's tree before IPython compiles it. Its nodes get the lines
of what was typed, so tracebacks show that. Where anything fails the cell runs as written.
"""

from __future__ import annotations

import ast
import contextlib
import types
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...failures import log_failure
from ...quiet import without_warnings
from ...rewrite import names_bound, names_in_functions

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from ...rewrite.at_once import RewrittenCell

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A cell that ran rewritten. `written` are the codes of its functions as they were typed, by qualified name."""

    file: str
    filename: str
    source: str
    rewritten: RewrittenCell
    written: dict[str, types.CodeType]


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A value that the rewrite of the cell with this source bound, and that its functions still use."""

    source: str
    value: weakref.ref[object]


class Replacement:
    """The rewritten form of one cell, until it has taken the place of the cell's tree."""

    def __init__(self, shell: InteractiveShell, source: str, rewritten: RewrittenCell, left: dict[str, Left]) -> None:
        """`left` is what rewritten cells left behind, by name; this one adds to it."""
        self.rewritten = rewritten
        self.happened = False
        """True where the rewritten tree runs."""
        self._shell = shell
        self._source = source
        self._left = left
        self._extra: frozenset[str] = frozenset()
        self._kept: frozenset[str] = frozenset()
        self._tree: ast.Module | None = None

    def take_place(self, tree: ast.Module) -> ast.Module:
        """The rewritten tree, if `tree` is what was typed; else `tree`."""
        shell = self._shell
        old, new = shell.transform_cell(self._source), shell.transform_cell(self.rewritten.source)
        typed = ast.parse(old)
        lines = old.split("\n"), new.split("\n")
        counts = [text.rstrip("\n").count("\n") for text in (self._source, self.rewritten.source)]
        if ast.dump(typed) != ast.dump(tree) or [text.rstrip("\n").count("\n") for text in (old, new)] != counts:
            return tree
        needed = names_bound(new, imports=True) - names_bound(old, imports=True)
        if any(self._is_taken(name) for name in needed):
            return tree
        made = replaced_tree(typed, ast.parse(new), lines[0], lines[1], self.rewritten.lines)
        kept = names_in_functions(self.rewritten.source)
        self._extra = frozenset(needed - kept - set(shell.user_ns))
        self._kept = frozenset(needed & kept)
        self._tree = typed
        self.happened = True
        return made

    def tidy(self) -> None:
        """Take away the names that only the rewrite binds, but for those that its functions use."""
        if self.happened:
            for name in self._extra:
                self._shell.user_ns.pop(name, None)
            for name in self._kept & set(self._shell.user_ns):
                with contextlib.suppress(TypeError):  # what takes no reference counts as the person's
                    self._left[name] = Left(source=self._source, value=weakref.ref(self._shell.user_ns[name]))

    def _is_taken(self, name: str) -> bool:
        """True where a name holds a value that the rewrite would replace: the person's, or that of another cell."""
        if name not in self._shell.user_ns:
            return False
        value = self._shell.user_ns[name]
        if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] == "grape":
            return False
        left = self._left.get(name)
        return left is None or left.source != self._source or left.value() is not value

    def ran(self, file: str, filename: str) -> Ran:
        """The facts that are needed to give the cell's functions the code that was typed."""
        assert self._tree is not None
        flags = self._shell.compile.flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(self._tree, filename, "exec", flags=flags, dont_inherit=True)
        written = dict(_codes(code))
        return Ran(file=file, filename=filename, source=self._source, rewritten=self.rewritten, written=written)


def watch_tree(shell: InteractiveShell, replacement: Replacement) -> Callable[[], None]:
    """Have the next tree that the shell transforms replaced; the function that is returned takes that back."""

    class AtOnce(ast.NodeTransformer):
        """IPython drops a transformer that raises, with a warning: this one never does."""

        def visit(self, tree: ast.AST) -> ast.AST:
            undo()
            try:
                with without_warnings():
                    return replacement.take_place(tree) if isinstance(tree, ast.Module) else tree
            except Exception:  # the cell runs as written
                log_failure("it put a rewrite in the place of a cell")
                replacement.happened = False
                return tree

    mine = AtOnce()

    def undo() -> None:
        # A copy: the shell is going through the list.
        shell.ast_transformers = [one for one in shell.ast_transformers if one is not mine]

    shell.ast_transformers.append(mine)
    return undo


def replaced_tree(
    typed: ast.Module, rewritten: ast.Module, old: Sequence[str], new: Sequence[str], lines: Sequence[int]
) -> ast.Module:
    """`rewritten` with the lines of `typed`. What a rewrite put behind a loop runs also where the loop raises.

    `lines[i]` is the line in `old` of line `i + 1` in `new`.
    """
    known = {ast.dump(node) for node in ast.walk(typed) if isinstance(node, ast.stmt)}
    for holder in list(ast.walk(rewritten)):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(holder, field, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                block[:] = _guarded(block, known)
    for node in ast.walk(rewritten):
        if isinstance(node, (ast.expr, ast.stmt, ast.excepthandler, ast.arg, ast.keyword, ast.alias, ast.pattern)):
            _relocate(node, old, new, lines)
    names = {node.name for node in ast.walk(typed) if isinstance(node, _FUNCTIONS)}
    for function in [node for node in ast.walk(rewritten) if isinstance(node, _FUNCTIONS) and node.name in names]:
        for part in ast.walk(function):
            if isinstance(part, _FUNCTIONS) and part.name not in names:
                # IPython counts lines from the one where `inspect` finds a `def`, and here none was typed.
                part.lineno = min(part.lineno, function.lineno)
    return rewritten


def _guarded(block: list[ast.stmt], known: Collection[str]) -> Iterator[ast.stmt]:
    index = 0
    while index < len(block):
        statement = block[index]
        index += 1
        behind: list[ast.stmt] = []
        if isinstance(statement, (ast.For, ast.While)):
            while index < len(block) and _is_deferred(block[index]) and ast.dump(block[index]) not in known:
                behind.append(block[index])
                index += 1
        if behind:
            yield ast.copy_location(ast.Try([statement], [], [], behind), statement)
        else:
            yield statement


def _is_deferred(statement: ast.stmt) -> bool:
    """True where this is what GR101's fix puts behind a loop: ``xs[:] = [value.item() for value in xs]``, or a loop
    that adds parts.
    """
    if isinstance(statement, ast.Assign):
        (target, *more) = statement.targets
        whole = isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice)
        return whole and not more and isinstance(statement.value, ast.ListComp)
    adds = isinstance(statement, ast.For) and isinstance(statement.iter, (ast.Name, ast.Call)) and not statement.orelse
    return adds and all(isinstance(part, (ast.AugAssign, ast.Assign)) for part in statement.body)  # type: ignore[attr-defined]


def _relocate(node: Any, old: Sequence[str], new: Sequence[str], lines: Sequence[int]) -> None:
    first, last = node.lineno, node.end_lineno or node.lineno
    start, end = lines[first - 1], max(lines[first - 1], lines[last - 1])
    same = old[start - 1] == new[first - 1] and old[end - 1] == new[last - 1] and end - start == last - first
    node.lineno, node.end_lineno = start, end
    if not same:  # columns of another text say nothing: the whole line
        text = old[start - 1]
        node.col_offset = len(text) - len(text.lstrip())
        node.end_col_offset = len(old[end - 1].encode())
        if end == start:
            node.end_col_offset = max(node.col_offset, node.end_col_offset)


def _codes(code: types.CodeType) -> Iterator[tuple[str, types.CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant.co_qualname, constant
            yield from _codes(constant)


def restore_functions(ran: Ran, namespace: dict[str, object]) -> list[str]:
    """Give the functions that the rewritten cell defined the code that was typed; their names."""
    restored = []
    for function in _functions(namespace, ran.filename):
        written = ran.written.get(function.__qualname__)
        if written is not None and written.co_freevars == function.__code__.co_freevars:
            if function.__code__ != written:
                restored.append(function.__qualname__)
            function.__code__ = written
    return restored


def _functions(namespace: dict[str, object], filename: str) -> Iterator[types.FunctionType]:
    for value in list(namespace.values()):
        members = list(vars(value).values()) if isinstance(value, type) else [value]
        for member in members:
            member = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(member, types.FunctionType) and member.__code__.co_filename == filename:
                yield member
