"""State that a callable can read besides its arguments: found by a walk, and compared by `guards.GuardSet`."""

from .checked import Check, are_of, have, held_by, never
from .classes import attributes_of, is_plain, why_odd
from .containers import Contents
from .contents import LEAVES, attribute_names, is_defined_again, is_equal, read
from .hooks import (
    HOOKS,
    HOOKS_OF_ALL_MODULES,
    HOOKS_OF_ALL_OPTIMIZERS,
    hooks_of,
    is_node_hooked,
    new_hooks,
    unseen_handles,
)
from .kept import KeptState
from .libraries import known_instances
from .names import ABSENT, TooLarge
from .namespaces import MODULE, TENSOR, Namespaces, is_persons
from .own_code import is_own_class, is_own_module
from .walk import Reach

__all__ = [
    "ABSENT",
    "HOOKS",
    "HOOKS_OF_ALL_MODULES",
    "HOOKS_OF_ALL_OPTIMIZERS",
    "LEAVES",
    "MODULE",
    "TENSOR",
    "Check",
    "Contents",
    "KeptState",
    "Namespaces",
    "Reach",
    "TooLarge",
    "are_of",
    "attribute_names",
    "attributes_of",
    "have",
    "held_by",
    "hooks_of",
    "is_defined_again",
    "is_equal",
    "is_node_hooked",
    "is_own_class",
    "is_own_module",
    "is_persons",
    "is_plain",
    "known_instances",
    "never",
    "new_hooks",
    "read",
    "unseen_handles",
    "why_odd",
]
