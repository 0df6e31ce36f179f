"""A CUDA graph of compiled code, and where it reads and writes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .memory import copied, copied_together, lying
from .process import Graph


@dataclass(slots=True, kw_only=True)
class Made:
    graph: Graph
    placeholders: list[torch.Tensor]
    reads: set[int]
    """Inputs that are copied to them."""
    results: list[Any]
    sources: list[int | None]
    """Of each result the input that it is, if it is one."""
    together: list[list[int]]
    """Results that lie in one memory, or not where it begins."""
    kind: type
    """Of what the code returns."""
    versions: dict[int, int]
    """Of the results that are no inputs: how often autograd has seen them written. Inference tensors have none."""
    bytes: int
    """That it holds, as far as they are counted."""

    def own(self) -> list[Any]:
        """The results that are no inputs."""
        return _own(self.results, self.sources)

    def handed_out(self, inputs: Sequence[Any]) -> Any:
        """Copies of the results that are no inputs, which share memory where the code's own do."""
        found: list[Any] = [None] * len(self.results)
        for group in self.together:
            for number, one in zip(group, copied_together([self.results[at] for at in group]), strict=True):
                found[number] = one
        for number, (one, at) in enumerate(zip(self.results, self.sources, strict=True)):
            if at is not None:
                found[number] = inputs[at]
            elif found[number] is None:
                found[number] = copied(one) if isinstance(one, torch.Tensor) else one
        written = tuple(found[number] for number in self.versions)
        autograd: Any = torch._C._autograd
        autograd._unsafe_set_version_counter(written, tuple(self.versions.values()))
        return self.kind(found)


def places(reads: Sequence[Any], results: Sequence[Any], found: Sequence[Any]) -> tuple[list[int | None], Any]:
    """`sources` and `together` of a graph that has these inputs and results, of code that gave `found`. Raises
    RuntimeError where copies would not be to each other what those are.
    """
    sources = [next((at for at, read in enumerate(reads) if read is one), None) for one in results]
    kept, given = _own(results, sources), _own(found, sources)
    groups, others = lying(kept), lying([*reads, *found])
    if groups.keys() & others.keys():
        raise RuntimeError("a result is a part of an input, or of what the code holds")
    together = [group for group in groups.values() if len(group) > 1 or kept[group[0]].storage_offset()]
    same = [*groups.values()] == [*lying(given).values()]
    for number in itertools.chain(*together):
        same = same and kept[number].storage_offset() == given[number].storage_offset() and not given[number]._is_view()
    if not same:
        raise RuntimeError("results of a graph lie to each other as those of the code do not")
    return sources, together


def versions(found: Sequence[Any], sources: Sequence[int | None]) -> dict[int, int]:
    """`versions` of a graph of code that gave `found`."""
    own = enumerate(_own(found, sources))
    return {number: one._version for number, one in own if isinstance(one, torch.Tensor) and not one.is_inference()}


def _own(results: Sequence[Any], sources: Sequence[int | None]) -> list[Any]:
    return [one if at is None else None for one, at in zip(results, sources, strict=True)]
