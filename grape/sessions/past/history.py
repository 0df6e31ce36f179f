"""Remembers what became of a cell, and so how much attention it gets when it runs again unchanged.

A cell is the same if its source is, and what that source names: the code of functions and classes, the kinds of
objects, flags. A cell in which nothing can be served is left alone from then on; one whose graphs replay is served
without being looked at; until that is known it is watched, and each run has an allowance for it. On a GPU operator
streams serve it before anything is known.
"""

from __future__ import annotations

import ast
import dis
import functools
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ...model import CellEvidence, Finding
from ...options import Applied
from ...quiet import syntax_tree
from .digest import digest_of

Mode = Literal["watch", "serve", "leave", "stream"]
CellKey = tuple[str, frozenset[object]]

MOST_CELLS = 256
MOST_AGAIN = 3
"""So often a cell is looked at again because its graphs served no call of a run; then it is left. A look that made the
cell slow counts twice: where graphs serve no run at all, every second one would be such a look."""
DEAR = 0.5
"""The plain cell's share of the time of a run that was slow."""
OUT_OF_DATE = "what its graphs depend on is another one again and again"
_MAGIC = re.compile(r"^([ \t]*)[%!].*$", re.MULTILINE)
_GRAPE = re.compile(r"\A(\s*)(?:# )?%%grape\b.*")
_FLAGS = (bool, str, bytes, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Led:
    """Runs of a cell that operator streams served before regions have looked at any."""

    runs: int = 0
    matched: float = 0.0
    """The share of its operators in the last run."""
    settled: bool = False
    """The last two runs were alike."""
    saved: float = 0.0
    """In all runs, as a share of what the plain cell takes."""
    trains: bool = False
    """There are backward passes in it."""
    untold: int = 0
    """Runs in a row of which it is not known what they take as written."""
    wall_ms: float = 0.0
    """What the last run took, but for captures, which later ones do not repeat."""
    gains: bool = True
    """The last run saved some time, as far as is known; or too little of it matched yet to tell."""
    clear: bool = False
    """The last run saved so much that no estimate is off by that."""
    learns: bool = False
    """Graphs were made in the last run, or were still to be made."""
    invested: bool = False
    """Graphs were made in one of its runs."""
    timed: bool = False
    """One of its runs went as written, and what streams take has been compared with that."""
    early: bool = False
    """The same while graphs were made, and most of it did not match yet."""
    grows: bool = False
    """Its shapes grow: regions would capture each."""
    doubted: bool = False
    """In the last run some of it went as written to see what that takes, so that the run counts for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The last watched run of a cell, the `runs`-th; 0 where regions have not looked yet. `settled`: there is nothing
    more to learn; `served`: graphs replayed in it; `applied`: the options that decide it. `evidence` holds no traces.
    """

    runs: int
    settled: bool
    served: bool
    evidence: CellEvidence
    findings: tuple[Finding, ...]
    applied: Applied
    why: str | None = None
    """The reason against graphs that were captured; None where they serve, or where there were none."""
    outbid: bool = False
    """Graphs would have served, if operator streams were not expected to save more."""
    streamed: bool = False
    """Operator streams served it in its last run."""
    operators: int | None = None
    """In the first run that they served."""
    lost: int = 0
    """Runs in a row in which they gained nothing."""
    learning: int = 0
    """Runs in which they still made graphs, or were to, and gained nothing yet."""
    paid: float = 0.0
    """What those took longer than the plain cell, as a share of it."""
    streamless: str | None = None
    """Why operator streams serve it no more."""
    led: Led | None = None
    """What operator streams did until regions look for the first time; None once they have."""
    again: int = 0
    """So often it was looked at again because its graphs served no call of a run."""
    dear: bool = False
    """The last look made it slow."""
    recalled: bool = False
    """It is what another process has learned of the same cell."""


class History:
    """Of one process; it keeps the cells that ran last."""

    def __init__(self) -> None:
        self._past: dict[CellKey, Past] = {}
        self._recalled: dict[str, Past] = {}

    def clear(self) -> None:
        self._past.clear()
        self._recalled.clear()

    def known(self) -> dict[str, Past]:
        """What would help another process, by the digest of the cell: what was recalled, and what was learned here."""
        learned = {digest_of(key): past for key, past in self._past.items() if past.settled}
        return {**self._recalled, **learned}

    def recall(self, pasts: Mapping[str, Past]) -> None:
        """What another process learned, by the digest of the cell: it counts until the cell has run here."""
        self._recalled.update(pasts)

    @property
    def streamed(self) -> bool:
        """True where operator streams serve any of the cells."""
        return any(past.streamed for past in self._past.values())

    def of(self, key: CellKey | None, applied: Applied) -> Past | None:
        """None where it last ran with other options: what served it then, and what was found, may not hold."""
        past = self._past.get(key) if key is not None else None
        if past is None and key is not None and self._recalled:
            past = self._recalled.get(digest_of(key))
            past = replace(past, evidence=replace(past.evidence, source=key[0])) if past is not None else None
        return past if past is not None and past.applied == applied else None

    def remember(self, key: CellKey, past: Past) -> None:
        self._past.pop(key, None)
        self._past[key] = past
        while len(self._past) > MOST_CELLS:
            del self._past[next(iter(self._past))]


def recalled_shapes(past: Past | None) -> frozenset[tuple[tuple[str, tuple[int, ...]], ...]]:
    """The shapes of calls that graphs served in another process; none where the past is of this one."""
    if past is None or not past.recalled or not past.served:
        return frozenset()
    return frozenset(count.shapes for region in past.evidence.regions if region.replays for count in region.shapes)


def key_of(source: str, namespace: Mapping[str, object]) -> CellKey | None:
    """The facts that make two runs runs of the same cell; None where the source cannot be read.

    `source` as IPython compiles it or as it was typed; lines of magics do not matter to what it names. Nor does what
    `%%grape` is asked for, a file for the report or its name: `Applied` has the options that decide what serves it.
    """
    names = _names(source)
    if names is None:
        return None
    used, bound = names
    facts: set[object] = set()
    seen: set[str] = set()
    left = set(used)
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in bound:  # the source says what it is
            continue
        value = namespace.get(name)
        facts.add((name, _fact(value)))
        for code in _codes(value):
            facts.add(code)
            left |= _named_by(code)
    return _GRAPE.sub(r"\1%%grape", source, count=1), frozenset(facts)


def _names(source: str) -> tuple[frozenset[str], frozenset[str]] | None:
    """The names that a cell uses, and those that it binds."""
    tree = syntax_tree(source) or syntax_tree(_MAGIC.sub(r"\1pass", source))
    if tree is None:
        return None
    nodes = list(ast.walk(tree))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    stored = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    defined = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    return frozenset(node.id for node in names), frozenset(stored | defined)


def _codes(value: Any) -> Iterator[types.CodeType]:
    """The code of a function, or of the methods of a class, that the person wrote; of an object, of its class."""
    from ...runtime import typed_code
    from ...tracing import is_own_code

    members = [value]
    if type(value) is not types.FunctionType:  # `isinstance` may ask the person's own `__class__`
        cls = value if issubclass(type(value), type) else type(value)
        members = [member for base in cls.__mro__ for member in list(vars(base).values())]
    for member in members:
        function = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        if isinstance(function, types.FunctionType) and is_own_code(function.__code__.co_filename):
            yield typed_code(function)


@functools.lru_cache(maxsize=4096)
def _named_by(code: types.CodeType) -> frozenset[str]:
    """The global names that code uses, that of functions inside it included."""
    names = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = (_named_by(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(names).union(*inner)


def _fact(value: Any) -> object:
    """The part of a value that decides how code runs: its kind, of a module how it is set up, of a plain flag what it
    is.
    """
    import torch

    kind = type(value)
    if issubclass(kind, torch.nn.Module):
        own = list(vars(value).get("_parameters", {}).values())
        with torch._C.DisableTorchFunction():  # a parameter may be of a class of the person's
            settings = tuple([(one.requires_grad, one.device.type) for one in own if one is not None])
        return kind.__qualname__, settings
    if kind in (torch.Tensor, torch.nn.Parameter):
        return value.device.type, value.requires_grad
    if kind in _FLAGS:
        return repr(value)[:200]
    return kind.__qualname__
