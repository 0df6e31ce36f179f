"""Digests of what a program computed, for two processes to compare: bits of tensors, numbers, text, random states."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import pathlib
import random
import sys
import types
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash

RANDOM = "random state"
"""How the names of random states begin."""
_DEEPEST = 40
_PLAIN = (int, str, bytes, complex, range, slice, pathlib.PurePath, enum.Enum, type(None))
_DEFINED = (
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.GenericAlias,
    type,
)


class _Unknown(Exception):
    """A kind of object that has no comparison."""


@dataclasses.dataclass(slots=True)
class Digests:
    """By name. `not_compared` has the kind of what has no digest."""

    found: dict[str, str] = dataclasses.field(default_factory=dict)
    not_compared: dict[str, str] = dataclasses.field(default_factory=dict)

    def add(self, name: str, value: object) -> None:
        """Leave out what code defines, and names that nobody chose."""
        if name.startswith("__") or isinstance(value, _DEFINED):
            return
        try:
            self.found[name] = digest_of(value)
        except _Unknown as unknown:
            self.not_compared[name] = str(unknown)
        except Exception as error:  # of the person's own properties, or of the device
            self.not_compared[name] = f"{type(value).__name__}: {type(error).__name__}"


def digests_of(names: Mapping[str, object]) -> Digests:
    made = Digests()
    for name, value in list(names.items()):
        made.add(name, value)
    return made


def random_digests() -> dict[str, str]:
    """Of the generators of Python, NumPy and torch, as far as they are loaded."""
    states: dict[str, object] = {f"{RANDOM} of Python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        states[f"{RANDOM} of NumPy"] = numpy.random.get_state()
    if torch is not None:
        states[f"{RANDOM} of torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states[f"{RANDOM} of CUDA"] = torch.cuda.get_rng_state_all()
    return {name: digest_of(state) for name, state in states.items()}


def digest_of(value: object) -> str:
    """Equal for equal types, values and bits. Raises `_Unknown` for what cannot be told."""
    digest = hashlib.sha256()
    _add(digest, value, 0)
    return digest.hexdigest()[:20]


def _add(digest: _Hash, value: object, depth: int) -> None:
    if depth > _DEEPEST:
        raise _Unknown("something that holds itself, or is very deep")
    kind = type(value)
    digest.update(f"{kind.__module__}.{kind.__qualname__}:".encode())
    if isinstance(value, float):
        digest.update(value.hex().encode())
    elif isinstance(value, _PLAIN):
        digest.update(repr(value).encode() + b";")
    elif isinstance(value, Mapping):
        for key, item in list(value.items()):
            _add(digest, key, depth + 1)
            _add(digest, item, depth + 1)
        digest.update(b"}")
    elif isinstance(value, (list, tuple, deque)):
        for item in list(value):
            _add(digest, item, depth + 1)
        digest.update(b"]")
    elif isinstance(value, (set, frozenset)):
        digest.update(",".join(sorted(digest_of(item) for item in value)).encode())
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            _add(digest, getattr(value, field.name), depth + 1)
    elif not _add_array(digest, value, depth):
        raise _Unknown(kind.__qualname__)


def _add_array(digest: _Hash, value: object, depth: int) -> bool:
    """Tensors, modules and optimizers, arrays."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if torch is not None:
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided or value.is_quantized:
                raise _Unknown(f"{value.layout} tensor")
            flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous().view(-1)
            facts = (tuple(value.shape), str(value.dtype), value.device.type, value.requires_grad)
            digest.update(repr(facts).encode())
            digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
            return True
        if isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
            _add(digest, dict(value.state_dict()), depth + 1)
            return True
        if isinstance(value, (torch.dtype, torch.device)):
            digest.update(repr(value).encode())
            return True
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        array = numpy.asarray(value)
        if array.dtype.hasobject:
            raise _Unknown("array of objects")
        digest.update(repr((array.shape, array.dtype.str)).encode() + array.tobytes())
        return True
    return False
