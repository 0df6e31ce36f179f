"""Control flow that follows the data, on the device: predicates, `cond`, `while_loop`, and how they are carried out.

`lowering.Lowering` is what a capture backend implements; `SelectLowering` works in any capture. docs/control-flow.md
says what each construct means.
"""

from . import flow
from .arms import Arms
from .functions import cond, while_loop
from .lowering.active import in_loop, iterations
from .lowering.flag import Flag
from .lowering.node import NodeLowering
from .predicate import Predicate
from .survey import Surveyed, survey

__all__ = [
    "Arms",
    "Flag",
    "NodeLowering",
    "Predicate",
    "Surveyed",
    "cond",
    "flow",
    "in_loop",
    "iterations",
    "survey",
    "while_loop",
]
