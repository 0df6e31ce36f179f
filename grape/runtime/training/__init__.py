"""Regions that contain autograd: gradients are state, and graphs of autograd end inside the region."""

from .consumed import seal, seal_all, sealable
from .gradients import GradientCapture, GradientPlan
from .results import graph_that_leaves

__all__ = ["GradientCapture", "GradientPlan", "graph_that_leaves", "seal", "seal_all", "sealable"]
