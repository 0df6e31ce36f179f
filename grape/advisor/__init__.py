"""From evidence to findings: rules (one file per code), the cost model, and the page of each code."""

from .cost import H200, MachineCosts
from .engine import HINT_BELOW, advise
from .explanation import explain
from .from_source import advise_sources
from .prediction import predict
from .rules import RULES, Rule

__all__ = [
    "H200",
    "HINT_BELOW",
    "RULES",
    "MachineCosts",
    "Rule",
    "advise",
    "advise_sources",
    "explain",
    "predict",
]
