"""Graphed functions: guards, audit, capture, verification, replay. OWNERSHIP.md says who owns what."""

from .accounts.attention import TRACING, Allowance
from .accounts.memory import account, enforce_budget
from .alias import Predictor
from .buffers.slots import SlotStore
from .dispatch.afterwards import CallsAfterwards
from .dispatch.intercept import Interceptor
from .dispatch.interrupts import held, hold_off, hold_off_again, let_through
from .dispatch.trampoline import prune_traceback, typed_code
from .graphed import GraphedFunction, graph, make_backend
from .regions.context import CellName, RegionContext
from .regions.region import Region
from .regions.replays import Replays

__all__ = [
    "TRACING",
    "Allowance",
    "CallsAfterwards",
    "CellName",
    "GraphedFunction",
    "Interceptor",
    "Predictor",
    "Region",
    "RegionContext",
    "Replays",
    "SlotStore",
    "account",
    "enforce_budget",
    "graph",
    "held",
    "hold_off",
    "hold_off_again",
    "let_through",
    "make_backend",
    "prune_traceback",
    "typed_code",
]
