"""Answers from the person's own source about a line: the expression that stands there, and whether it is in a loop.

Expressions are shown as the person wrote them, or normalised where they span several lines.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache

from ...model import CellEvidence, Position
from .parsed import Function, Parsed, last_name

_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.Lambda, ast.ClassDef)
_TESTS = {"if": ast.If, "while": ast.While, "assert": ast.Assert, "ternary": ast.IfExp}
_TESTED = (ast.If, ast.While, ast.Assert, ast.IfExp)
_READS = ("item", "tolist", "cpu", "numpy", "float", "int", "bool")
_CASTS = ("float", "int", "bool")
"""They read as functions; as methods they make a tensor of another type."""
_SHOWS = ("print", "display", "format", "str", "repr", "write", "info", "warning", "debug")

_KEEPS = ("append", "appendleft", "extend", "add", "insert", "update")
"""What these give back does not follow from the value that they are given."""


@lru_cache(maxsize=64)
def _parsed(source: str) -> Parsed:
    """A notebook's reports look through the same cells again and again."""
    return Parsed(source)


class CellSource:
    """Look-ups in one cell's source, and in `others`: (name, source) of the files that its functions stand in.

    Every answer is None where the line is in none of them, or the source cannot be parsed.
    """

    def __init__(self, file: str, source: str, others: Iterable[tuple[str, str]] = ()) -> None:
        self.file = file
        self._sources = {**dict(others), file: source}

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all sources that are known, the cell's own first."""
        return (self.file, *(file for file in self._sources if file != self.file))

    def naming(self, name: str) -> Iterator[Parsed]:
        """Those in which `name` stands. To parse and walk through all others takes longer than some cells."""
        for file in self.files:
            parsed = self.parsed(file) if name in self._sources[file] else None
            if parsed is not None:
                yield parsed

    def parsed(self, file: str) -> Parsed | None:
        """The source of `file`, parsed when it is first asked for."""
        source = self._sources.get(file)
        return _parsed(source) if source is not None else None

    def functions(self, name: str) -> Iterator[tuple[str, Function]]:
        """(file, definition) of the functions and methods of that name; of a class, what calling its instance runs."""
        for file in self.files:
            parsed = self.parsed(file)
            for node in parsed.functions.get(name, ()) if parsed is not None else ():
                yield file, node

    def in_loop(self, at: Position | None) -> bool | None:
        """True where a loop of the same function (or of the cell's top level) encloses the line."""
        source = self.parsed(at.file) if at is not None else None
        if source is None or source.tree is None or at is None:
            return None
        return _in_loop(source.tree, at.line, looping=False)

    def takes_batches(self, at: Position) -> bool:
        """True where a loop over something begins on the line, or holds it, or where a function asks for the next item;
        also in a function whose source is not known.
        """
        source = self.parsed(at.file)
        if source is None or source.tree is None:
            return at.function != "<module>"
        loops = (node for node in source.nodes if isinstance(node, (ast.For, ast.AsyncFor)))
        if at.function != "<module>" and self.call(at, ("next",)) is not None:
            return True  # of an iterator that the function is given again and again
        begins = any(node.lineno <= at.line <= (node.iter.end_lineno or node.lineno) for node in loops)
        return begins or _in_loop(source.tree, at.line, looping=False)

    def only_reads(self, at: Position | None) -> bool:
        """True where the line is in a loop that does nothing but read what an earlier loop has kept.

        The first of its reads waits for the device; the others find the work done. A loop around it repeats the wait.
        """
        source = self.parsed(at.file) if at is not None else None
        if source is None or source.tree is None or at is None:
            return False
        around = list(_around(source.tree, at.line))
        loops = [node for node in around if isinstance(node, _LOOPS)]
        if not loops or not _only_reads(loops[0]):
            return False
        # What a comprehension makes a list of first is no loop around its reads.
        outer = loops[0]
        before = list(ast.walk(outer.generators[0].iter)) if isinstance(outer, ast.ListComp) else []
        return all(node in before for node in loops[1:])

    def every_nth(self, at: Position | None) -> bool:
        """True where the code does what is on that line only every n-th time: behind ``if i % n == 0``, or so."""
        source = self.parsed(at.file) if at is not None else None
        if source is None or source.tree is None or at is None:
            return False
        around = (node for node in _around(source.tree, at.line) if isinstance(node, (ast.If, ast.IfExp, ast.BoolOp)))
        return any(has_remainder(node.test if not isinstance(node, ast.BoolOp) else node) for node in around)

    def call(self, at: Position | None, names: Collection[str]) -> str | None:
        """The one call on that line to one of `names` (a method, an attribute or a plain name), as written.

        Of nested calls the innermost one counts; None where several stand side by side.
        """
        found = [(s, node) for s, node in self._on_line(at) if isinstance(node, ast.Call)]
        named = [(s, node) for s, node in found if _is_call_to(node, names)]
        calls = {id(node) for _, node in named}
        innermost = [(s, n) for s, n in named if not any(id(o) in calls for o in ast.walk(n) if o is not n)]
        if len({ast.unparse(node) for _, node in innermost}) != 1:
            return None
        source, node = innermost[0]
        return source.text(node, f"{last_name(node.func)}(...)")

    def subscript(self, at: Position | None) -> str | None:
        """The first indexing expression on that line whose index is no constant."""
        for source, node in self._on_line(at):
            if isinstance(node, ast.Subscript) and not _is_constant(node.slice):
                return source.text(node)
        return None

    def indexed_with(self, name: str, at: Position, end_line: int) -> list[str] | None:
        """The expressions that are indexed with `name` from that line on, as written, where nothing else is done with
        it; else None.
        """
        parsed = self.parsed(at.file)
        if parsed is None or parsed.tree is None:
            return None
        found, reads = [], set()
        for node in ast.walk(parsed.tree):
            if isinstance(node, ast.Name) and node.id == name and at.line <= node.lineno <= end_line:
                reads.add(node)
        for node in ast.walk(parsed.tree):  # outermost first
            inside = reads.intersection(ast.walk(node.slice)) if isinstance(node, ast.Subscript) else set()
            if inside:
                found.append(parsed.text(node, "x[...]") or "x[...]")
                reads -= inside
        return None if reads or not found else list(dict.fromkeys(found))

    def pads_edges(self, at: Position | None) -> bool:
        """True where `grape.pad_edges` is called on the line."""
        nodes = (node for _, node in self._on_line(at) if isinstance(node, ast.Call))
        return any(ast.unparse(node.func) == "grape.pad_edges" for node in nodes)

    def decides_with(self, name: str, at: Position, end_line: int) -> list[str] | None:
        """The conditions of Python that `name` is read in from that line on, as written, where nothing else is done
        with it; else None.
        """
        parsed = self.parsed(at.file)
        if parsed is None or parsed.tree is None:
            return None
        nodes = [node for node in ast.walk(parsed.tree) if at.line <= getattr(node, "lineno", 0) <= end_line]
        reads = {node for node in nodes if isinstance(node, ast.Name) and node.id == name}
        found = []
        for node in nodes:
            if isinstance(node, (ast.If, ast.IfExp)) and (inside := reads.intersection(ast.walk(node.test))):
                found.append(f"if {parsed.text(node.test, '...')}")
                reads -= inside
        return None if reads or not found else list(dict.fromkeys(found))

    def only_indexes(self, at: Position) -> bool:
        """True where the statement on that line does nothing but give names to what it indexes."""
        for _, node in self._on_line(at):
            if isinstance(node, ast.Assign):
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                return all(isinstance(value, ast.Subscript) and not _calls(value) for value in values)
        return False

    def sets_item(self, at: Position | None) -> bool:
        """True where the statement on that line is ``x[...] = value``."""
        nodes = (node for _, node in self._on_line(at) if isinstance(node, ast.Assign))
        return any(isinstance(target, ast.Subscript) for node in nodes for target in node.targets)

    def names_device(self, at: Position | None) -> bool:
        """True where a call on that line is given a `device`, or moves a tensor to one."""
        calls = [node for _, node in self._on_line(at) if isinstance(node, ast.Call)]
        keywords = {keyword.arg for call in calls for keyword in call.keywords}
        return "device" in keywords or any(last_name(call.func) in ("to", "cuda") for call in calls)

    def condition(self, at: Position | None, construct: str) -> str | None:
        """The test of the `if`, `while`, `assert` or ternary on that line, or the whole `and`/`or`/`not`."""
        for source, node in self._on_line(at):
            if isinstance(node, _TESTED) and isinstance(node, _TESTS.get(construct, ())):
                return source.text(node.test)
            if construct == "bool-op" and isinstance(node, (ast.BoolOp, ast.UnaryOp)):
                return source.text(node)
        return None

    def asks(self, at: Position | None) -> str | None:
        """The construct that asks for a tensor's value on that line, as `HostRead.construct` names it: around the reads
        that stand there, or without one around what is a tensor by itself.
        """
        nodes = [node for _, node in self._on_line(at)]
        reads = [node for node in nodes if _is_call_to(node, _READS)]
        for node in nodes:
            name = _asking(node)
            part = node.test if isinstance(node, _TESTED) else node
            if name is not None and (not reads or any(read in _asked_in(part) for read in reads)):
                return name
        return "call" if reads else None

    def leaves(self, at: Position | None) -> bool:
        """True where the `if` on that line ends the loop around it, or raises."""
        return any(isinstance(node, ast.If) and any(map(_ends_loop, node.body)) for _, node in self._on_line(at))

    def target(self, at: Position | None, calling: Collection[str] = ()) -> str | None:
        """The name that the statement on that line assigns to; of several, the first one with a call of these names."""
        found = [(source, node, target) for source, node in self._on_line(at) if (target := _assigned(node))]
        calls = [
            one
            for one in found
            if any(last_name(part.func) in calling for part in ast.walk(one[1]) if isinstance(part, ast.Call))
        ]
        for source, _, target in calls or found:
            return source.text(target)
        return None

    def _on_line(self, at: Position | None) -> Iterator[tuple[Parsed, ast.expr | ast.stmt]]:
        source = self.parsed(at.file) if at is not None else None
        if source is not None and at is not None:
            for node in source.on_line(at.line):
                yield source, node


def _is_call_to(node: ast.AST, names: Collection[str]) -> bool:
    if not isinstance(node, ast.Call) or (isinstance(node.func, ast.Attribute) and node.func.attr in _CASTS):
        return False
    return last_name(node.func) in names


def _assigned(node: ast.AST) -> ast.expr | None:
    """What a statement with one target assigns to."""
    if isinstance(node, ast.Assign):
        return node.targets[0] if len(node.targets) == 1 else None
    return node.target if isinstance(node, (ast.AnnAssign, ast.AugAssign)) else None


@lru_cache(maxsize=8)
def _looked_up(file: str, source: str, others: tuple[tuple[str, str], ...]) -> CellSource:
    return CellSource(file, source, others)


def cell_source(evidence: CellEvidence) -> CellSource:
    return _looked_up(evidence.file, evidence.source, evidence.sources)


def has_remainder(node: ast.AST) -> bool:
    """True where something is taken modulo a number, as what happens every n-th time is."""
    return any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod) for part in ast.walk(node))


def _asking(node: ast.AST) -> str | None:
    name = next((name for name, kind in _TESTS.items() if isinstance(node, kind)), None)
    if name is not None:
        return name
    if isinstance(node, ast.BoolOp) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
        return "bool-op"
    shows = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and last_name(node.func) in _SHOWS)
    return "print" if shows else None


def _asked_in(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of an expression that its value may follow from."""
    yield node
    keeps = isinstance(node, ast.Call) and last_name(node.func) in _KEEPS
    for part in ast.iter_child_nodes(node.func if keeps else node):  # type: ignore[attr-defined]
        yield from _asked_in(part)


def _calls(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Call) for part in ast.walk(node))


def _in_loop(node: ast.AST, line: int, *, looping: bool) -> bool:
    """True where any expression on the line is in a loop; a function begins outside of the loops around it."""
    found = []
    for child in ast.iter_child_nodes(node):
        first, last = getattr(child, "lineno", None), getattr(child, "end_lineno", None)
        if first is None or last is None or not first <= line <= last:
            continue
        if isinstance(child, _SCOPES):
            inside = False
        elif isinstance(child, (ast.For, ast.AsyncFor)):
            inside = looping or child.body[0].lineno <= line <= (child.body[-1].end_lineno or line)
        else:
            inside = looping or isinstance(child, _LOOPS)
        found.append(_in_loop(child, line, looping=inside))
    return any(found) if found else looping


def _around(node: ast.AST, line: int) -> Iterator[ast.AST]:
    """The nodes that enclose the line in the innermost function there, from the outside in."""
    for child in ast.iter_child_nodes(node):
        first, last = getattr(child, "lineno", None), getattr(child, "end_lineno", None)
        if first is not None and last is not None and not first <= line <= last:
            continue
        inner = list(_around(child, line))
        scope = next((i for i in reversed(range(len(inner))) if isinstance(inner[i], _SCOPES)), None)
        yield from ([child, *inner] if scope is None else inner[scope + 1 :])


def _only_reads(loop: ast.AST) -> bool:
    """`[v.item() for v in kept]`, and `for v in kept:` with one statement whose only call reads `v`."""
    if isinstance(loop, (ast.ListComp, ast.GeneratorExp, ast.SetComp)) and len(loop.generators) == 1:
        target, kept, ifs, body = loop.generators[0].target, loop.generators[0].iter, loop.generators[0].ifs, loop.elt
    elif isinstance(loop, ast.For) and len(loop.body) == 1 and isinstance(loop.body[0], (ast.AugAssign, ast.Assign)):
        target, kept, ifs, body = loop.target, loop.iter, [], loop.body[0].value
    else:
        return False
    names = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
    calls = [node for node in ast.walk(body) if isinstance(node, ast.Call)]
    if ifs or len(calls) != 1 or not isinstance(kept, (ast.Name, ast.Attribute, ast.Subscript, ast.ListComp)):
        return False
    read = calls[0]
    if isinstance(read.func, ast.Attribute):
        subject: ast.expr | None = read.func.value if read.func.attr in ("item", "tolist") and not read.args else None
    else:
        subject = read.args[0] if last_name(read.func) in ("float", "int") and len(read.args) == 1 else None
    return isinstance(subject, ast.Name) and subject.id in names


def _ends_loop(node: ast.stmt) -> bool:
    if isinstance(node, (ast.Break, ast.Raise)):
        return True
    if isinstance(node, (ast.If, ast.With, ast.Try)):
        return any(_ends_loop(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))
    return False


def _is_constant(index: ast.expr) -> bool:
    """True for a number, for a slice between numbers, and for several of them."""
    if isinstance(index, ast.Tuple):
        return all(map(_is_constant, index.elts))
    bounds = (index.lower, index.upper, index.step) if isinstance(index, ast.Slice) else (index,)
    numbers = [bound.operand if isinstance(bound, ast.UnaryOp) else bound for bound in bounds]
    return all(number is None or isinstance(number, ast.Constant) for number in numbers)
