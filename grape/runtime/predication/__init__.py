"""Control flow that follows the data, on the device: predicates, `cond`, `while_loop`, and how they are carried out.

`lowering.Lowering` is what a capture backend implements; `SelectLowering` works in any capture. docs/control-flow.md
says what each construct means.
"""

from . import flow
from .arms import Arms
from .functions import cond, while_loop
from .lowering.active import in_loop, iterations
from .lowering.flag import Flag, as_predicate
from .lowering.lowering import Check, Lowering, active_lowering, lowered
from .lowering.merge import UNBOUND, merge_values, restore_bits, select_bits
from .lowering.node import NodeLowering
from .lowering.select import SelectLowering
from .lowering.truth import is_tensor_predicate
from .predicate import Predicate
from .survey import Surveyed, survey

__all__ = [
    "UNBOUND",
    "Arms",
    "Check",
    "Flag",
    "Lowering",
    "NodeLowering",
    "Predicate",
    "SelectLowering",
    "Surveyed",
    "active_lowering",
    "as_predicate",
    "cond",
    "flow",
    "in_loop",
    "is_tensor_predicate",
    "iterations",
    "lowered",
    "merge_values",
    "restore_bits",
    "select_bits",
    "survey",
    "while_loop",
]
