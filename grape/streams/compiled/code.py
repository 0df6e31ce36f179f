"""What Inductor says of the code that it made, and whether a CUDA graph of it could serve."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ...model.stream import COMPILED

_HEADER = "async_compile.wait"
"""Stands behind imports and kernels, before the calls."""
_LAUNCH = re.compile(r"\.run\(|extern_kernels\.\w+\(|torch\.ops\.")
_NAMESPACE = re.compile(r"torch\.ops\.(\w+)")
_KNOWN = frozenset({"aten", "prims", "inductor", "rngprims"})
"""Operators of other libraries may do on the host what a graph does not repeat."""
_BY_TORCH = "a CUDA graph of torch's already"


@dataclass(slots=True)
class Code:
    """One `CompiledFxGraph`. Inputs, by their numbers, are `static`, which stay where they lie, or `moving`."""

    launches: int
    """As many as its source has."""
    refused: str = ""
    """Why no graph of it can serve."""
    static: tuple[int, ...] = ()
    moving: tuple[int, ...] = ()
    changed: tuple[int, ...] = ()
    """Static ones that it writes."""


def read(made: Any, inputs: int) -> Code:
    """Of code that is called with so many inputs. What a version of torch does not tell refuses it."""
    source = str(getattr(made, "source_code", "")).rpartition(_HEADER)[2]
    code = Code(launches=max(1, len(_LAUNCH.findall(source))), refused=COMPILED)
    try:
        options = made.fx_kwargs
        code.static = tuple(at for at in sorted(options["static_input_idxs"] or ()) if at < inputs)
        code.moving = tuple(at for at in range(inputs) if at not in set(code.static))
        code.changed = tuple(sorted(made.mutated_input_idxs))
        if options["cudagraphs"]:
            code.refused = _BY_TORCH
        elif (
            options["is_inference"]
            and set(made.device_types) == {"cuda"}
            and len(made.device_idxs) == 1
            and not made.disabled_cudagraphs_reason
            and not made.torchbind_constants
            and source
            and "empty_strided_p2p(" not in source
            and set(_NAMESPACE.findall(source)) <= _KNOWN
            and set(code.changed) <= set(code.static)
        ):
            code.refused = ""
    except (AttributeError, KeyError, TypeError):
        pass
    return code
