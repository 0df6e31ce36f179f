"""Executables of the tape: made from a graph, they serve one shape after the other, as `cudaGraphExec_t` does."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....model.overlap import OverlapPlan
from .graph import Attachment, Constant, LaunchQueue, Program, every_step
from .nodes import Node, assemble, fingerprint, fits, flat, read, structure_of, write


@dataclass(frozen=True, slots=True, eq=False)
class PreparedNodes:
    """Implements `Prepared`: nodes that were read from their parameters, by number."""

    nodes: dict[int, Node]
    nbytes: int


class ReferenceExecutable:
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

    def update_from(self, graph: object) -> bool:
        self._require_alive()
        assert isinstance(graph, ReferenceGraph)
        if structure_of(graph.program.steps) != self._structure:
            return False
        self._nodes = [write(parameters) for parameters in graph.parameters()]
        self._program = graph.program
        return True

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


class ReferenceGraph:
    """Implements `UpdatableGraph`. `nodes` counts the steps, those in bodies too; `nbytes` is 0, for a tape has no
    executable on a device.

    `make` gives an executable the memory that it pretends to need, or raises; `node_bytes` is what a node pretends to
    need on the host.
    """

    nbytes = 0

    def __init__(
        self, program: Program, queue: LaunchQueue, make: Callable[[Program], ReferenceExecutable], node_bytes: int
    ) -> None:
        self.nodes = sum(1 for _ in every_step(program.steps))
        self._program: Program | None = program
        self._queue = queue
        self._make = make
        self._node_bytes = node_bytes
        self._parameters: tuple[bytes, ...] | None = None

    @property
    def program(self) -> Program:
        """Raises RuntimeError once the graph is released."""
        if self._program is None:
            raise RuntimeError("replay of a released graph")
        return self._program

    def replay(self) -> None:
        """Raises what `Program.run` raises, and `RuntimeError` where the graph was released."""
        self._queue.submit(self.program.run)

    def drew(self, before: object, after: object) -> None:
        """Its operators draw from the generator as eager ones do."""

    def compare_orders(self, plan: OverlapPlan) -> None:
        """Nothing runs beside anything here, so nothing is measured."""

    @property
    def topology(self) -> str | None:
        try:
            self.parameters()
        except (TypeError, AttributeError, pickle.PicklingError):
            return None
        return fingerprint(structure_of(self.program.steps))

    @property
    def constant_bytes(self) -> int:
        """Bytes of the values that the host made in the body."""
        steps = self._program.steps if self._program is not None else ()
        return sum(step.value.nbytes for step in every_step(steps) if isinstance(step, Constant))

    @property
    def host_bytes(self) -> int:
        return self.constant_bytes + self._node_bytes * self.nodes

    @property
    def attachment(self) -> Attachment:
        return self.program.attachment

    def parameters(self) -> tuple[bytes, ...]:
        if self._parameters is None:
            self._parameters = read(self.program.steps)
        return self._parameters

    def instantiate(self) -> ReferenceExecutable:
        return self._make(self.program)

    def release(self) -> None:
        self._program = self._parameters = None
