"""Executables of the tape: made from a graph, they serve one shape after the other, as `cudaGraphExec_t` does."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .graph import Attachment, LaunchQueue, Program, TapeGraph
from .nodes import Node, assemble, fingerprint, fits, flat, read, structure_of, write

__all__ = ["PreparedNodes", "TapeExecutable", "UpdatableTapeGraph"]


@dataclass(frozen=True, slots=True, eq=False)
class PreparedNodes:
    """Implements `Prepared`: nodes that were read from their parameters, by number."""

    nodes: dict[int, Node]
    nbytes: int


class TapeExecutable:
    """Implements `Executable`. An update replaces the program, so launches that wait keep theirs."""

    def __init__(self, program: Program, queue: LaunchQueue, nbytes: int, released: Callable[[int], None]) -> None:
        self._program: Program | None = program
        self._structure = structure_of(program.steps)
        self._flat = flat(self._structure)
        self._nodes: list[Node] = [write(parameters) for parameters in read(program.steps)]
        self._queue = queue
        self._released = released
        self.nbytes = nbytes

    def replay(self) -> None:
        if self._program is None:
            raise RuntimeError("replay of a released executable")
        self._queue.submit(self._program.run)

    def waits(self) -> bool:
        return self._queue.waits

    def update_from(self, graph: Any) -> bool:
        self._require_alive()
        program: Program = graph.program
        if structure_of(program.steps) != self._structure:
            return False
        self._nodes = [write(parameters) for parameters in graph.parameters()]
        self._program = Program(program.steps, program.attachment)
        return True

    def update_nodes(self, changes: Sequence[tuple[int, bytes]], attachment: object) -> bool:
        return self.update_prepared([self.prepare(changes)], attachment)

    def prepare(self, changes: Sequence[tuple[int, bytes]]) -> PreparedNodes:
        nodes = {number: write(parameters) for number, parameters in changes}
        return PreparedNodes(nodes, sum(len(parameters) for _, parameters in changes))

    def update_prepared(self, sets: Sequence[PreparedNodes], attachment: object) -> bool:
        self._require_alive()
        assert isinstance(attachment, Attachment)
        nodes = list(self._nodes)
        for number, node in (change for one in sets for change in one.nodes.items()):
            if not fits(self._flat[number], node):
                return False
            nodes[number] = node
        self._nodes = nodes
        self._program = Program(assemble(self._structure, iter(nodes)), attachment)
        return True

    def release(self) -> None:
        """Launches that wait are still done."""
        if self._program is not None:
            self._program = None
            self._nodes = []
            self._released(self.nbytes)

    def _require_alive(self) -> None:
        if self._program is None:
            raise RuntimeError("update of a released executable")


class UpdatableTapeGraph(TapeGraph):
    """Implements `UpdatableGraph`. The backend sets `make`, which gives an executable the memory that it pretends to
    need, or raises, and `node_bytes`, what a node of the graph pretends to need on the host."""

    make: Callable[[Program], TapeExecutable]
    node_bytes: int = 0
    _parameters: tuple[bytes, ...] | None = None

    def drew(self, before: torch.Tensor, after: torch.Tensor) -> None:
        """Its operators draw from the generator as eager ones do."""

    @property
    def topology(self) -> str | None:
        try:
            self.parameters()
        except (TypeError, AttributeError, pickle.PicklingError):
            return None
        return fingerprint(structure_of(self.program.steps))

    @property
    def host_bytes(self) -> int:
        return self.constant_bytes + self.node_bytes * self.nodes

    @property
    def attachment(self) -> Attachment:
        return self.program.attachment

    def parameters(self) -> tuple[bytes, ...]:
        if self._parameters is None:
            self._parameters = read(self.program.steps)
        return self._parameters

    def instantiate(self) -> TapeExecutable:
        return self.make(self.program)

    def release(self) -> None:
        super().release()
        self._parameters = None
