"""Control flow that follows the data, on the device: predicates, `cond`, `while_loop`, and how they are carried out.

`lowering.Lowering` is what a capture backend implements; `SelectLowering` works in any capture. docs/control-flow.md
says what each construct means.
"""

from . import flow
from .functions import cond, while_loop
from .lowering import Check, Lowering, active_lowering, lowered
from .merge import UNBOUND, merge_values, restore_bits, select_bits
from .predicate import Predicate
from .select import SelectLowering
from .truth import Flag, as_predicate, is_tensor_predicate

__all__ = [
    "UNBOUND",
    "Check",
    "Flag",
    "Lowering",
    "Predicate",
    "SelectLowering",
    "active_lowering",
    "as_predicate",
    "cond",
    "flow",
    "is_tensor_predicate",
    "lowered",
    "merge_values",
    "restore_bits",
    "select_bits",
    "while_loop",
]
