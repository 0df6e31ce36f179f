"""The autograd graph that one run of a region left: what it saved, which leaves it leads to, and its derivatives.

A leaf that is used several times gets its gradient in several parts, and outside of the region further parts may come,
from a penalty on a weight or a second call. Sums of floating-point numbers depend on their order, so the parts are
taken one by one, as autograd would add them up (`Recorded.differentiate`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.graph import Node, get_gradient_edge

from ..replaying.node_numbers import unnumbered
from ..state import unseen_handles
from .consumed import saved_names


class Unfit(Exception):
    """The autograd graph cannot be gone through by a replay."""


class Recorded:
    """Of the tensors `outputs`. `leaves` are those that its gradients are wanted of, by name; others may not be there.

    `parts` says of each leaf that is used in how many parts its gradient comes; `saved` are the identities of the
    storages that the graph has saved for `backward`, `objects` those of the saved tensors. Raises `Unfit`.
    """

    def __init__(self, outputs: Sequence[torch.Tensor], leaves: Mapping[Hashable, torch.Tensor]) -> None:
        self.outputs = tuple(outputs)
        self.saved: set[int] = set()
        self.objects: dict[int, torch.Tensor] = {}
        self._edges: dict[tuple[Node | None, int], Hashable] = {}
        with unnumbered():
            edges = {name: get_gradient_edge(leaf) for name, leaf in leaves.items()}
        self._edges.update({(edge.node, edge.output_nr): name for name, edge in edges.items()})
        self._feeding: dict[Hashable, list[tuple[Node, int]]] = {}
        self._walk()
        self.used = {name: leaf for name, leaf in leaves.items() if name in self._feeding}
        self.parts = {name: len(self._feeding[name]) for name in self.used}

    def _walk(self) -> None:
        pending: list[Any] = [tensor.grad_fn for tensor in self.outputs]
        stops = {node for node, _ in self._edges}
        seen: set[Node] = set()
        while pending:
            node = pending.pop()
            if node is None or node in seen or node in stops:
                continue
            seen.add(node)
            if hasattr(node, "variable"):
                raise Unfit("it leads to a tensor that requires a gradient, and that Grape cannot find")
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                raise Unfit(f"its backward is Python code ({type(node).__name__})")
            self._note_saved(node)
            for position, (following, number) in enumerate(node.next_functions):
                name = self._edges.get((following, number))
                if name is not None:
                    self._feeding.setdefault(name, []).append((node, position))
                else:
                    pending.append(following)

    def _note_saved(self, node: Node) -> None:
        kind: object = type(node)
        for name in saved_names(kind):
            value = getattr(node, name)
            for one in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(one, torch.Tensor):
                    self.saved.add(one.untyped_storage()._cdata)
                    self.objects[id(one)] = one

    def saved_how(self, tensor: torch.Tensor) -> tuple[bool, bool]:
        """True where the tensor itself was saved, and whether a view of its memory was."""
        storage = tensor.untyped_storage()._cdata
        here = [one for one in self.objects.values() if one.untyped_storage()._cdata == storage]
        return any(one is tensor for one in here), any(one is not tensor for one in here)

    def differentiate(
        self, gradients: Sequence[torch.Tensor | None], *, create_graph: bool = False
    ) -> dict[Hashable, list[torch.Tensor | None]]:
        """The parts of each leaf's gradient, in the order in which autograd adds them up; as many as `parts` says.

        `gradients` are those of the outputs; None for one that nobody has used.
        """
        found: dict[Hashable, list[torch.Tensor | None]] = {}
        single = [name for name, parts in self.parts.items() if parts == 1]
        with unseen_handles() as handles:
            handles += [node.register_hook(_take(positions, found)) for node, positions in self._several().items()]
        pairs = [pair for pair in zip(self.outputs, gradients, strict=True) if pair[1] is not None]
        try:
            sums = torch.autograd.grad(
                [output for output, _ in pairs],
                list(self.used.values()),
                [gradient for _, gradient in pairs],
                retain_graph=True,
                create_graph=create_graph,
                allow_unused=True,
            )
        finally:
            for handle in handles:
                handle.remove()
        for name, gradient in zip(self.used, sums, strict=True):
            if name in single:
                found[name] = [gradient]
        return {name: [*found.get(name, ()), *[None] * parts][:parts] for name, parts in self.parts.items()}

    def _several(self) -> dict[Node, list[tuple[int, Hashable]]]:
        """The nodes that give parts of a gradient that has several: which of their results is a part of which."""
        nodes: dict[Node, list[tuple[int, Hashable]]] = {}
        for name, feeding in self._feeding.items():
            for node, position in feeding if len(feeding) > 1 else ():
                nodes.setdefault(node, []).append((position, name))
        return nodes


def _take(
    positions: Sequence[tuple[int, Hashable]], found: dict[Hashable, list[torch.Tensor | None]]
) -> Callable[..., None]:
    ordered = sorted(positions, key=lambda one: one[0])

    def hook(given: Sequence[torch.Tensor | None], _: object) -> None:
        for position, name in ordered:
            if given[position] is not None:
                found.setdefault(name, []).append(given[position])

    return hook
