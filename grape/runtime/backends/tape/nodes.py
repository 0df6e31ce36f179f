"""Nodes of a tape as a device reports them: a structure that stays, and parameters that an update may change.

A tensor is its address and layout; an operator is its name; a constant is its bytes. So a node's parameters can be kept
and written back when the graph that they came from is gone, as those of a kernel can.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from .graph import Constant, IfStep, Operation, Step, WhileStep, every_step
from .memory import bare

__all__ = [
    "Node",
    "Structure",
    "assemble",
    "fingerprint",
    "fits",
    "flat",
    "read",
    "structure_of",
    "write",
]

Node = Operation | Constant | torch.Tensor
"""The content of one node's parameters; of a conditional node it is the condition."""

Structure = tuple[tuple[Any, ...], ...]
"""Of each step its kind and its attributes: what an update cannot change."""

_CONDITIONAL: dict[str, type[IfStep] | type[WhileStep]] = {"if": IfStep, "while": WhileStep}


def structure_of(steps: Sequence[Step]) -> Structure:
    """Kinds, order and attributes of the nodes.

    As on a GPU a kernel node may get another function, but not other launch attributes: on the tape, which of its
    results are in place. A copy of more than one dimension keeps its extent; a flat one may get another.
    """
    described: list[tuple[object, ...]] = []
    for step in steps:
        match step:
            case Operation():
                described.append(("kernel", tuple(target is None for target in step.targets)))
            case Constant():
                described.append(("memcpy", tuple(step.value.shape) if step.value.dim() > 1 else step.value.dim()))
            case IfStep():
                described.append(("if", structure_of(step.steps)))
            case WhileStep():
                described.append(("while", structure_of(step.steps)))
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
            flat = torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy()) if content else torch.empty(0)
            value: Any = torch.empty(0, dtype=dtype, device="cpu")
            value.set_(flat.untyped_storage(), offset, shape, stride)
        return Constant(value, target)
    condition: torch.Tensor = rest[0]
    return condition


def fits(described: tuple[object, ...], node: Node) -> bool:
    """True where a node of this kind, with these attributes, can get these parameters."""
    if described[0] in _CONDITIONAL:
        return isinstance(node, torch.Tensor)
    return not isinstance(node, torch.Tensor) and structure_of([node])[0] == described


def flat(structure: Structure) -> list[tuple[Any, ...]]:
    """The descriptions in node order."""
    found: list[tuple[object, ...]] = []
    for described in structure:
        found.append(described)
        if described[0] in _CONDITIONAL:
            found += flat(described[1])
    return found


def assemble(structure: Structure, nodes: Iterator[Node]) -> tuple[Step, ...]:
    """The steps of such nodes, taken in node order."""
    steps: list[Step] = []
    for described in structure:
        node = next(nodes)
        if described[0] in _CONDITIONAL:
            assert isinstance(node, torch.Tensor)
            steps.append(_CONDITIONAL[described[0]](node, assemble(described[1], nodes)))
        else:
            assert not isinstance(node, torch.Tensor)
            steps.append(node)
    return tuple(steps)


def _operator(name: str, overload: str) -> object:
    namespace, _, short = name.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), short), overload or "default")


def _layout(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())


def _bytes_of(tensor: torch.Tensor) -> bytes:
    with bare():
        everything: Any = torch.empty(0, dtype=torch.uint8, device="cpu")
        everything.set_(tensor.untyped_storage(), 0, (tensor.untyped_storage().nbytes(),), (1,))
        return bytes(everything.numpy().tobytes())


def _dump(value: object) -> bytes:
    buffer = io.BytesIO()
    # `size` of a tensor's shape and tuples of plain integers must not depend on who made them.
    _Pickler(buffer, protocol=4).dump(tree_map_only(torch.Size, tuple, value))
    return buffer.getvalue()


_PLAIN = frozenset({int, float, bool, str, bytes, tuple, list, dict, type(None), torch.dtype})
"""Types that most of what is pickled has; to ask whether a value is a tensor or a generator takes far longer."""


class _Pickler(pickle.Pickler):
    """Tensors by address, with a number for each object: attention asks whether two arguments are one tensor."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._numbers: dict[int, int] = {}

    def persistent_id(self, thing: object) -> object:
        if type(thing) in _PLAIN:
            return None
        if isinstance(thing, torch.Tensor):
            storage = thing.untyped_storage()
            place = (storage.data_ptr(), storage.nbytes())
            number = self._numbers.setdefault(id(thing), len(self._numbers))
            return ("tensor", number, *place, thing.dtype, *_layout(thing), thing.is_conj(), thing.is_neg())
        if isinstance(thing, torch.Generator):
            return ("default generator",)
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._known: dict[int, torch.Tensor] = {}

    def persistent_load(self, saved: Any) -> object:
        if saved[0] == "default generator":
            return torch.default_generator
        if saved[1] not in self._known:
            self._known[saved[1]] = self._tensor(saved)
        return self._known[saved[1]]

    def _tensor(self, saved: Any) -> torch.Tensor:
        _, _, address, nbytes, dtype, shape, stride, offset, conjugate, negative = saved
        with bare():
            tensor: Any = torch.empty(0, dtype=dtype, device="cpu")
            if nbytes:
                construct: Any = torch._C._construct_storage_from_data_pointer
                tensor.set_(construct(address, torch.device("cpu"), nbytes), offset, shape, stride)
            else:
                tensor = torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
            tensor = torch._conj(tensor) if conjugate else tensor
            return torch._neg_view(tensor) if negative else tensor
