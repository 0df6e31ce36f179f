"""Which operators draw random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["draws"]


def draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call of an operator moves a generator. Attention is tagged so, but draws nothing without dropout."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            return bool((args[position] if position < len(args) else kwargs.get("dropout_p", 0.0)) != 0)
    return True
