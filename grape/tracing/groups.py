"""The process group of `torch.distributed` that this process belongs to, if it does.

Other processes wait for what this one's code does, and hooks of reducers run with its gradients: no trace shows that,
and a replay of a region would leave it out. So regions stand aside; streams run what other ranks wait for as written.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..originals import environ

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

_known: Group | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """The default group. `store` gives what its ranks share, as long as that is there: None afterwards."""

    rank: int
    size: int
    store: Callable[[], Any]
    of: Callable[[], object]
    has_parts: bool
    """There are groups of some of its ranks only."""
    groups: int
    """How many groups there were when this was found."""


def process_group() -> bool:
    """True from `init_process_group` until `destroy_process_group`. Imports nothing; asked at each call of a region."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(module, "_world", None)
    return world is not None and (world.default_pg is not None or bool(world.pg_map))


def started_as_rank() -> bool:
    """True where something like `torchrun` started this process as one of several."""
    size = environ.get("WORLD_SIZE", "")
    return "RANK" in environ and size.isdecimal() and int(size) > 1


def remember_group() -> None:
    """For `group_of_run`, as the group may be gone at the end of the run. Raises nothing."""
    try:
        _find()
    except Exception:  # torch changed what is not public: there is no group to tell of
        forget_group()


def group_of_run() -> Group | None:
    """The group that there is, or was when `remember_group` saw it last."""
    remember_group()
    return _known


def forget_group() -> None:
    """Unless it is there still."""
    global _known
    if _known is not None and not process_group():
        _known = None


def _find() -> None:
    global _known
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    group = module._world.default_pg if module is not None else None
    if group is None:
        return
    groups = len(module._world.pg_map)
    if _known is not None and _known.of() is group and _known.groups == groups:
        return
    size = module.get_world_size(group)
    same = _known is not None and _known.of() is group
    _known = Group(
        rank=module.get_rank(group),
        size=size,
        store=_known.store if same and _known is not None else _reference(module._get_default_store()),
        of=weakref.ref(group),
        has_parts=any(one.size() != size for one in module._world.pg_map),
        groups=groups,
    )


def _reference(store: Any) -> Callable[[], Any]:
    """A store whose server is the launcher's outlives the group. Another one is torch's to end: a new group at the same
    address must not find its keys.
    """
    return (lambda: store) if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else weakref.ref(store)
