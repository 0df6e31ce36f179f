"""Which of several processes this is, where something like `torchrun` started the script more than once."""

from __future__ import annotations

import os

_PLACE = "{rank}"


def own_rank() -> int:
    """0 where the script runs once. PyTorch is not loaded for it."""
    rank, size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    return int(rank) if rank.isdecimal() and size.isdecimal() and int(size) > 1 else 0


def own_file(name: str | None) -> str | None:
    """The file that this rank writes where `name` was asked for: rank 0 that one, each its own where ``{rank}`` stands
    in it, others none.
    """
    if name is None or _PLACE in name:
        return None if name is None else name.replace(_PLACE, str(own_rank()))
    return name if own_rank() == 0 else None
