"""Each operator of torch's own database (`op_db`) in a loop, plainly and under a stream, in a process of its own: to
load the database changes torch.

    python -m tests.property.operator_database cpu|pretended SAMPLES
"""

from __future__ import annotations

import random
import sys
import types
import warnings
from typing import Any

import torch
import torch._dynamo
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from grape.streams import Settings, Stream, open_stream

ROUNDS = 7


def database() -> list[Any]:
    """What loads it imports a library that it needs for tests only, and wraps what streams watch."""
    sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=object))  # type: ignore[arg-type]
    kinds = torch._C.ScriptFunction, torch._C.ScriptMethod
    calls = [vars(kind)["__call__"] for kind in kinds]
    from torch.testing._internal.common_methods_invocations import op_db

    for kind, call in zip(kinds, calls, strict=True):
        kind.__call__ = call  # type: ignore[method-assign]
    return [op for op in op_db if torch.float32 in op.dtypes]


def moved(value: Any) -> Any:
    """A tensor's values inside of a larger storage; anything else as it is."""
    if not isinstance(value, Tensor) or value.layout != torch.strided or not value.numel():
        return value
    view = value.new_zeros(value.numel() + 7)[3:-4].view(value.shape)
    view.copy_(value)
    return view


def look(value: Any) -> object:
    """All that Python can see of it."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return repr(value)
    storage = value.untyped_storage().nbytes()
    where = value.shape, value.stride(), value.storage_offset(), storage, value.is_conj(), value.is_neg()
    return *where, value.dtype, repr(value.resolve_conj().resolve_neg().contiguous().flatten().tolist())


def run(op: Any, sample: Any) -> list[object]:
    """What it returns, and what comes of that, in some rounds; one result is kept."""
    seen, kept = [], None
    for number in range(ROUNDS):
        torch.manual_seed(0)
        first, args, kwargs = tree_map(moved, (sample.input, sample.args, sample.kwargs))
        made = op(first, *args, **kwargs)
        more = tree_map(lambda t: t * 1 if isinstance(t, Tensor) and t.layout == torch.strided else t, made)
        kept = made if number == ROUNDS - 3 else kept
        seen.append((made, more))
    return [look(value) for value in tree_leaves((seen, kept, first))]


def samples_of(op: Any, most: int) -> list[Any]:
    try:
        found = list(op.sample_inputs("cpu", torch.float32, requires_grad=False))
    except Exception:  # what this machine lacks
        return []
    random.Random(0).shuffle(found)
    return found[:most]


def main(device: Any, most: int) -> None:
    settings = Settings(shortest=1, hot=2, settled=0, patience=0, price=0, doubt=0, device=device)
    compared = matched = 0
    for op in database():
        for sample in samples_of(op, most):
            try:
                plain = run(op, sample)
            except Exception:  # it takes no such place
                continue
            stream = open_stream(settings)
            assert isinstance(stream, Stream), stream
            try:
                with stream:
                    served: object = run(op, sample)
            except Exception as error:
                served = error
            if served != plain and run(op, sample) == plain:
                print("differs:", op.name, op.variant_test_name, served if isinstance(served, Exception) else "")
            compared, matched = compared + 1, matched + (stream.evidence().matched > 0)
    print(f"{compared} compared, {matched} matched")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]))
