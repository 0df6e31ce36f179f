"""Graphed functions: guards, audit, capture, verification, replay. OWNERSHIP.md says who owns what."""

from .afterwards import CallsAfterwards
from .alias import Predictor
from .attention import TRACING, Allowance, Attention
from .graphed import GraphedFunction, graph, make_backend
from .intercept import Interceptor
from .interrupts import held, hold_off, hold_off_again, let_through
from .memory import account, enforce_budget
from .region import Region, Situation
from .replays import Replays
from .slots import SlotStore
from .traced_calls import CellName
from .trampoline import prune_traceback, typed_code

__all__ = [
    "TRACING",
    "Allowance",
    "Attention",
    "CallsAfterwards",
    "CellName",
    "GraphedFunction",
    "Interceptor",
    "Predictor",
    "Region",
    "Replays",
    "Situation",
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
