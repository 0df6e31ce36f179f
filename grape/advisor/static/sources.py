"""Several sources read as one program: the cells of a notebook share their names. Nothing is run or imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from ..code.parsed import Parsed
from .context import Context, InSource, StaticFinding
from .kinds import Kinds

_MAGIC = re.compile(r"\A(?:# )?%%grape.*")
"""The line of the magic, which is a comment in what IPython keeps of the cell, and may name other options."""

_MOST_READS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A finding, and the source it is in; its lines count from that source's first one."""

    file: str
    finding: StaticFinding


_READS: dict[tuple[str, ...], tuple[Placed, ...]] = {}
"""Results of `reads_in_sources`, by the texts."""


def find_in_sources(sources: tuple[tuple[str, str], ...], rules: tuple[InSource, ...]) -> tuple[Placed, ...]:
    """The findings of `rules` in (name, source) pairs that share one namespace, in their order.

    Magic and shell lines count as empty ones; a source that is no Python is left out.
    """
    found = _remembered(tuple(_MAGIC.sub("#", text, count=1) for _, text in sources), rules)
    return tuple(replace(one, file=sources[int(one.file)][0]) for one in found)


@lru_cache(maxsize=32)
def _remembered(texts: tuple[str, ...], rules: tuple[InSource, ...]) -> tuple[Placed, ...]:
    """By the texts alone: a cell that runs again has another name, and maybe other options."""
    return _found(texts, rules=rules)


def synchronizes_in_loops(source: str) -> bool:
    """True where ``torch.cuda.synchronize()`` stands in code that runs again and again."""
    return bool(find_in_sources((("", source),), (_synchronizations,)))


def _synchronizations(context: Context) -> Iterator[StaticFinding]:
    for node in context.hot.nodes:
        if isinstance(node, ast.Call) and context.synchronizes(node) and not context.is_seldom(node):
            yield context.at("GR101", node, node, "", "")


def reads_in_sources(sources: Iterable[tuple[str, str]], most_lines: float, host_reads: InSource) -> tuple[Placed, ...]:
    """Those of `host_reads` alone; none where the sources have more than `most_lines` and were not looked at before.

    Of a source that is there more than once, as a cell that ran again, the last one stands in the place of the first.
    """
    names: dict[str, str] = {}
    for name, text in sources:
        names[_MAGIC.sub("#", text, count=1)] = name
    texts = tuple(names)
    found = _READS.pop(texts, None)
    if found is None:
        if sum(text.count("\n") for text in texts) > most_lines:
            return ()
        found = _found(texts, rules=(host_reads,))
    _READS[texts] = found
    while len(_READS) > _MOST_READS:
        del _READS[next(iter(_READS))]
    files = list(names.values())
    return tuple(replace(one, file=files[int(one.file)]) for one in found)


def find(tree: ast.Module, rules: Iterable[InSource]) -> tuple[StaticFinding, ...]:
    """The findings of `rules` in one source, one per code and line, in the order of the lines; nothing has a cost.

    Code that imports no library of tensors has none.
    """
    kinds = Kinds(tree)
    if not kinds.uses_tensors:
        return ()
    context = Context(kinds)
    found: dict[tuple[str, int], StaticFinding] = {}
    for rule in rules:
        for finding in rule(context):
            found.setdefault((finding.code, finding.line), finding)
    return tuple(sorted(found.values(), key=lambda finding: (finding.line, finding.code)))


def _found(texts: tuple[str, ...], *, rules: Iterable[InSource]) -> tuple[Placed, ...]:
    """The file of each is the number of its source."""
    body: list[ast.stmt] = []
    starts: list[tuple[int, str]] = []
    offset = 0
    for number, source in enumerate(texts):
        tree = Parsed(source).tree
        if tree is not None:
            body += ast.increment_lineno(tree, offset).body if offset else tree.body
            starts.append((offset, str(number)))
        offset += source.count("\n") + 1
    try:
        found = find(ast.Module(body=body, type_ignores=[]), rules)
    except RecursionError:  # an expression of thousands of operators, made by a program
        return ()
    return tuple(_placed(finding, starts) for finding in found)


def _placed(finding: StaticFinding, starts: Iterable[tuple[int, str]]) -> Placed:
    offset, name = max(start for start in starts if start[0] < finding.line)
    first, last = finding.around
    return Placed(
        file=name,
        finding=replace(
            finding,
            line=finding.line - offset,
            end_line=finding.end_line - offset,
            around=(first - offset, last - offset),
        ),
    )
