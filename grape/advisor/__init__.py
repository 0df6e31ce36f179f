"""From evidence to findings: rules (one file per code), the cost model, and the page of each code."""

from ..model.times.machine import H200, MachineCosts
from .engine import advise
from .explanation import explain
from .from_source import advise_sources
from .prediction import predict
from .rules import RULES, Rule

__all__ = [
    "H200",
    "RULES",
    "MachineCosts",
    "Rule",
    "advise",
    "advise_sources",
    "explain",
    "predict",
]
