"""Regions that contain autograd: gradients are state, and graphs of autograd end inside the region."""

from .consumed import keeps_graph_back, seal, seal_all, sealable
from .gradients import GradientCapture, GradientPlan
from .observed import Backwards
from .results import gets_gradient, graph_that_leaves, leaves_a_graph, need_gradients, no_pair, with_graphs_of_results

__all__ = [
    "Backwards",
    "GradientCapture",
    "GradientPlan",
    "gets_gradient",
    "graph_that_leaves",
    "keeps_graph_back",
    "leaves_a_graph",
    "need_gradients",
    "no_pair",
    "seal",
    "seal_all",
    "sealable",
    "with_graphs_of_results",
]
