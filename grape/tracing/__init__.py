"""Operator traces with code positions."""

from .groups import BESIDE_GROUP, COLLECTIVES, process_group
from .operators import HOST_READS, tensors_in
from .positions import PositionFinder, is_grape_code, is_own_code
from .recorder import LIMIT, RecordedCall, Recorder, contents_of
from .tracer import ANNOTATIONS, SPARSE, EscapeWatch, Tracer, record, without_outer_casts
from .unseen import UnseenMode

__all__ = [
    "ANNOTATIONS",
    "BESIDE_GROUP",
    "COLLECTIVES",
    "HOST_READS",
    "LIMIT",
    "SPARSE",
    "EscapeWatch",
    "PositionFinder",
    "RecordedCall",
    "Recorder",
    "Tracer",
    "UnseenMode",
    "contents_of",
    "is_grape_code",
    "is_own_code",
    "process_group",
    "record",
    "tensors_in",
    "without_outer_casts",
]
