"""True where this process belongs to a process group of `torch.distributed`.

While it does, other processes wait for what this one's code does, and hooks of reducers run with its gradients: no
trace shows that, and a replay would leave it out. So everything runs as written.
"""

from __future__ import annotations

import sys

__all__ = ["BESIDE_GROUP", "COLLECTIVES", "process_group"]

BESIDE_GROUP = "a process group of torch.distributed exists, and what takes part in one runs as written"
COLLECTIVES = (
    "c10d.",
    "c10d_functional.",
    "_c10d_functional.",
    "_c10d_functional_autograd.",
    "_dtensor.",
    "symm_mem.",
    "fsdp.",
)
"""How the names of operators begin by which processes exchange tensors."""


def process_group() -> bool:
    """True from `init_process_group` until `destroy_process_group`. Imports nothing; asked at each call of a region."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(module, "_world", None)
    return world is not None and (world.default_pg is not None or bool(world.pg_map))
