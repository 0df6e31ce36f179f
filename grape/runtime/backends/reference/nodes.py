"""Nodes of a tape as a device reports them: a structure that stays, and parameters that an update may change.

A tensor is its address and layout; an operator is its name; a constant is its bytes. So a node's parameters can be kept
and written back when the graph that they came from is gone, as those of a kernel can.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from ....tracing import Operator
from .graph import Constant, IfStep, Operation, Step, WhileStep, every_step
from .memory import at_address, bare, over, with_bits

Node = Operation | Constant | torch.Tensor
"""The content of one node's parameters; of a conditional node it is the condition."""


@dataclass(frozen=True, slots=True)
class Described:
    """The kind of a step and its attributes, which an update cannot change; `steps` are those of its body."""

    kind: str
    attributes: object = None
    steps: Structure = ()


Structure: TypeAlias = tuple[Described, ...]

_CONDITIONAL: dict[str, type[IfStep] | type[WhileStep]] = {"if": IfStep, "while": WhileStep}


def structure_of(steps: Sequence[Step]) -> Structure:
    """Kinds, order and attributes of the nodes.

    As on a GPU a kernel node may get another function, but not other launch attributes: on the tape, which of its
    results are in place. A copy of more than one dimension keeps its extent; a flat one may get another.
    """
    described: list[Described] = []
    for step in steps:
        match step:
            case Operation():
                described.append(Described("kernel", tuple(target is None for target in step.targets)))
            case Constant():
                extent = tuple(step.value.shape) if step.value.dim() > 1 else step.value.dim()
                described.append(Described("memcpy", extent))
            case IfStep():
                described.append(Described("if", steps=structure_of(step.steps)))
            case WhileStep():
                described.append(Described("while", steps=structure_of(step.steps)))
            case _:
                raise TypeError(f"a {type(step).__name__} has no parameters")
    return tuple(described)


def fingerprint(structure: Structure) -> str:
    return hashlib.blake2b(repr(structure).encode(), digest_size=16).hexdigest()


def read(steps: Sequence[Step]) -> tuple[bytes, ...]:
    """The parameters of all nodes, those of bodies behind their conditional node.

    Raises TypeError or pickle.PicklingError for an argument that is no plain value, such as a script object.
    """
    nodes: list[bytes] = []
    for step in every_step(steps):
        match step:
            case Operation():
                called = (step.func._schema.name, step.func._overloadname, step.args, step.kwargs)
                nodes.append(_dump(("kernel", called, step.targets)))
            case Constant():
                nodes.append(
                    _dump(("memcpy", _bytes_of(step.value), step.value.dtype, *_layout(step.value), step.target))
                )
            case IfStep() | WhileStep():
                nodes.append(_dump(("condition", step.pred)))
            case _:
                raise TypeError(f"a {type(step).__name__} has no parameters")
    return tuple(nodes)


def write(parameters: bytes) -> Node:
    """The node that has these parameters."""
    kind, *rest = _Unpickler(io.BytesIO(parameters)).load()
    if kind == "kernel":
        (name, overload, args, kwargs), targets = rest
        return Operation(_operator(name, overload), args, kwargs, targets)
    if kind == "memcpy":
        content, dtype, shape, stride, offset, target = rest
        with bare():
            held = torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy()) if content else torch.empty(0)
            return Constant(over(held.untyped_storage(), dtype, offset, shape, stride), target)
    condition: torch.Tensor = rest[0]
    return condition


def fits(described: Described, node: Node) -> bool:
    """True where a node of this kind, with these attributes, can get these parameters."""
    if described.kind in _CONDITIONAL:
        return isinstance(node, torch.Tensor)
    return not isinstance(node, torch.Tensor) and structure_of([node])[0] == described


def flat(structure: Structure) -> list[Described]:
    """The descriptions in node order."""
    found: list[Described] = []
    for described in structure:
        found += [described, *flat(described.steps)]
    return found


def assemble(structure: Structure, nodes: Iterator[Node]) -> tuple[Step, ...]:
    """The steps of such nodes, taken in node order."""
    steps: list[Step] = []
    for described in structure:
        node = next(nodes)
        if described.kind in _CONDITIONAL:
            assert isinstance(node, torch.Tensor)
            steps.append(_CONDITIONAL[described.kind](node, assemble(described.steps, nodes)))
        else:
            assert not isinstance(node, torch.Tensor)
            steps.append(node)
    return tuple(steps)


def _operator(name: str, overload: str) -> Operator:
    namespace, _, short = name.partition("::")
    found: Operator = getattr(getattr(getattr(torch.ops, namespace), short), overload or "default")
    return found


_Layout: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]
"""Shape, strides and offset."""


def _layout(tensor: torch.Tensor) -> _Layout:
    return tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())


def _bytes_of(tensor: torch.Tensor) -> bytes:
    with bare():
        storage = tensor.untyped_storage()
        return over(storage, torch.uint8, 0, (storage.nbytes(),), (1,)).numpy().tobytes()


def _dump(value: object) -> bytes:
    buffer = io.BytesIO()
    # `size` of a tensor's shape and tuples of plain integers must not depend on who made them.
    _Pickler(buffer).dump(tree_map_only(torch.Size, tuple, value))
    return buffer.getvalue()


_PLAIN = frozenset({int, float, bool, str, bytes, tuple, list, dict, type(None), torch.dtype})
"""Types that most of what is pickled has; to ask whether a value is a tensor or a generator takes far longer."""


class _Pickler(pickle.Pickler):
    """Tensors by address, with a number for each object: attention asks whether two arguments are one tensor."""

    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, protocol=4)
        self._numbers: dict[int, int] = {}

    def persistent_id(self, thing: object) -> object:
        if type(thing) in _PLAIN:
            return None
        if isinstance(thing, torch.Tensor):
            storage = thing.untyped_storage()
            place, bits = (storage.data_ptr(), storage.nbytes()), (thing.is_conj(), thing.is_neg())
            number = self._numbers.setdefault(id(thing), len(self._numbers))
            return ("tensor", number, place, thing.dtype, _layout(thing), bits)
        if isinstance(thing, torch.Generator):
            return ("default generator",)
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer)
        self._known: dict[int, torch.Tensor] = {}

    def persistent_load(self, saved: Any) -> object:
        if saved[0] == "default generator":
            return torch.default_generator
        if saved[1] not in self._known:
            self._known[saved[1]] = _tensor(*saved[2:])
        return self._known[saved[1]]


def _tensor(place: tuple[int, int], dtype: torch.dtype, layout: _Layout, bits: tuple[bool, bool]) -> torch.Tensor:
    shape, stride, offset = layout
    with bare():
        if place[1]:
            tensor = over(at_address(*place), dtype, offset, shape, stride)
        else:
            tensor = torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
        return with_bits(tensor, conjugate=bits[0], negative=bits[1])
