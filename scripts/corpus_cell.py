"""A cell of the labelled corpus, and how its statements run."""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass
from typing import Any

__all__ = ["CorpusCell", "linecached", "statements"]


@dataclass(frozen=True, kw_only=True)
class CorpusCell:
    """One cell; `labels` are (code, file, line), with the file names that findings show."""

    name: str
    title: str
    setup: str
    source: str
    device: str
    headers: dict[str, str]
    labels: frozenset[tuple[str, str, int]]
    near_misses: frozenset[str]

    @property
    def codes(self) -> frozenset[str]:
        return frozenset(code for code, _, _ in self.labels)


def statements(source: str, filename: str, namespace: dict[str, Any], after: Any = None) -> None:
    """Run `source` statement by statement, as a notebook does."""
    linecached(source, filename)
    for statement in ast.parse(source, filename).body:
        exec(compile(ast.Module([statement], []), filename, "exec"), namespace)
        if after is not None:
            after()


def linecached(source: str, filename: str) -> None:
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
