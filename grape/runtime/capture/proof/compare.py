"""Are two sets of tensors the same, bit for bit?"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ....model import Trace

_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

NONDETERMINISTIC = frozenset(
    {
        "aten.index_add",
        "aten.index_add_",
        "aten.index_put",
        "aten.index_put_",
        "aten.scatter_add",
        "aten.scatter_add_",
        "aten.scatter_reduce",
        "aten.scatter_reduce_",
        "aten.put_",
        "aten.histc",
        "aten.bincount",
        "aten.kthvalue",
        "aten.median",
        "aten.cumsum",
        "aten.ctc_loss",
        "aten.grid_sampler_2d_backward",
        "aten.embedding_bag",
        "aten._ctc_loss",
        "aten._embedding_bag",
    }
)
"""Operators that PyTorch documents as non-deterministic on CUDA (`torch.use_deterministic_algorithms`)."""


def nondeterministic_in(trace: Trace) -> tuple[str, ...]:
    """The documented non-deterministic operators that a trace holds."""
    return tuple(sorted({op.name for op in trace.ops if op.name.rpartition(".")[0] in NONDETERMINISTIC}))


def documented(names: tuple[str, ...]) -> str:
    """The end of a sentence about bits that differ, where those operators may be why; empty without any."""
    if not names:
        return ""
    spoken = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    are = "is" if len(names) == 1 else "are"
    return f"; {spoken} {are} documented as non-deterministic on a GPU (see --tolerance)"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.is_quantized:  # torch crashes where it views or compares such a tensor itself
        tensor = tensor.int_repr()
    return tensor.contiguous().view(_INTEGER[tensor.element_size()])


def _equal(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (_bits(one) == _bits(other)).all()


def first_mismatch(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> int | None:
    """The index of the first pair that is not bitwise equal (NaNs compare by their bits), or None.

    The host waits once, whatever the number of pairs.
    """
    flags = [_equal(one, other) for one, other in pairs if one.device.type != "cpu"]
    if flags and bool(torch.stack(flags).all()):
        pairs = [(one, other) for one, other in pairs if one.device.type == "cpu"] if len(flags) < len(pairs) else ()
    for index, (one, other) in enumerate(pairs):
        if not bool(_equal(one, other)):
            return index
    return None


def within(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], tolerance: float) -> bool:
    """True where no element differs by more than `tolerance`; integers and booleans must be equal."""
    for one, other in pairs:
        if not (one.is_floating_point() or one.is_complex()):
            if not torch.equal(one, other):
                return False
        elif not torch.allclose(one.double(), other.double(), rtol=0.0, atol=tolerance, equal_nan=True):
            return False
    return True
