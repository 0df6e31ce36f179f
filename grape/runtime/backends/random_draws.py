"""Which operators draw random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["draws"]


def draws(func: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """True where this call of an operator moves a generator.

    Attention and recurrent layers are tagged so, but draw nothing without dropout, and dropout nothing in evaluation:
    in inference mode it is seen whole.
    """
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for position, argument in enumerate(func._schema.arguments):
        if argument.name in _NOTHING_AT:
            value = args[position] if position < len(args) else kwargs.get(argument.name, argument.default_value)
            if value is not None and value == _NOTHING_AT[argument.name]:
                return False
    return True


_NOTHING_AT = {"dropout_p": 0.0, "dropout": 0.0, "train": False, "training": False}
"""Arguments of operators that draw, and the value at which they do not."""
