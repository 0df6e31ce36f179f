"""One report of several processes: each rank posts what it took, rank 0 reads that; children that were forked off."""

from .beside import arrivals_of, beside_children, beside_ranks
from .children import children, count_children
from .launch import RankMessage, kept

__all__ = ["RankMessage", "arrivals_of", "beside_children", "beside_ranks", "children", "count_children", "kept"]
