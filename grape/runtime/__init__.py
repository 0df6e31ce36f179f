"""Graphed functions: guards, audit, capture, verification, replay. OWNERSHIP.md says who owns what."""

from .graphed import GraphedFunction, graph, make_backend
from .intercept import Interceptor
from .placeholders import Arena
from .region import Region, Situation

__all__ = ["Arena", "GraphedFunction", "Interceptor", "Region", "Situation", "graph", "make_backend"]
