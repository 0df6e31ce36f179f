"""State that a callable can read besides its arguments: found by a walk, and compared by `guards.GuardSet`."""

from .containers import Contents
from .contents import LEAVES, attribute_names, is_defined_again, is_equal, read
from .hooks import HOOKS, HOOKS_OF_ALL_MODULES, HOOKS_OF_ALL_OPTIMIZERS, hooks_of, is_node_hooked, new_hooks
from .kept import KeptState
from .walk import ABSENT, Reach, TooLarge

__all__ = [
    "ABSENT",
    "HOOKS",
    "HOOKS_OF_ALL_MODULES",
    "HOOKS_OF_ALL_OPTIMIZERS",
    "LEAVES",
    "Contents",
    "KeptState",
    "Reach",
    "TooLarge",
    "attribute_names",
    "hooks_of",
    "is_defined_again",
    "is_equal",
    "is_node_hooked",
    "new_hooks",
    "read",
]
