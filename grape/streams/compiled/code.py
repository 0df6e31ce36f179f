"""What Inductor says of the code that it made, and whether a CUDA graph of it could serve."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from ...model.stream import COMPILED

_HEADER = "async_compile.wait"
"""Stands behind imports and kernels, before the calls."""
_LAUNCH = re.compile(r"\.run\(|extern_kernels\.\w+\(|torch\.ops\.")
_NAMESPACE = re.compile(r"torch\.ops\.(\w+)")
_KNOWN = frozenset({"aten", "prims", "rngprims"})
"""Operators of other libraries may do on the host what a graph does not repeat."""
_ON_THE_HOST = re.compile(
    r"inductor_ops\.|_quantized\.|aten\._print|aten\.set_|_cudnn_rnn|\.item\(|run_intermediate_hooks\("
    r"|_print_debugging_tensor_value_info|nvtx\.|record_function\(|start_graph\(|proton|empty_strided_p2p\("
    r"|get_external_object_by_index|with stream\d|cpp_wrapper_src"
)
"""What code does beside launches on the current stream: memory that comes or goes, prints, marks of profilers, other
streams, and what reads the host's memory when it is launched.
"""
_BEYOND = re.compile(r"aten\.(as_strided|resize|set_)")
"""Operators that may read memory beside the elements of an input."""
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


def read(made: Any, inputs: int, device: torch.device) -> Code:
    """Of code that is called with so many inputs, beside a stream of `device`. What a version of torch does not tell
    refuses it.
    """
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
            and not options.get("cpp_wrapper")
            and set(made.device_types) == {"cuda"}
            and set(made.device_idxs) == {device.index or 0}
            and not made.disabled_cudagraphs_reason
            and not made.torchbind_constants
            and source
            and not _ON_THE_HOST.search(source)
            and not _BEYOND.search(made.runnable_graph_str)
            and set(_NAMESPACE.findall(source)) <= _KNOWN
            and set(code.changed) <= set(code.static)
        ):
            code.refused = ""
    except (AttributeError, KeyError, TypeError):
        pass
    return code
