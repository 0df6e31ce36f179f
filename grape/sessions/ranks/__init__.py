"""One report of several processes: each rank posts what it took, rank 0 reads that; children that were forked off."""

from .beside import arrivals_of, beside_ranks
from .children import count_children

__all__ = ["arrivals_of", "beside_ranks", "count_children"]
