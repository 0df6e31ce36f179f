"""From evidence to findings: rules (one file per code), the cost model, and the page of each code."""

from .engine import advise
from .explanation import explain
from .from_source import advise_sources
from .prediction import predict

__all__ = ["advise", "advise_sources", "explain", "predict"]
