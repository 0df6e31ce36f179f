"""Operator traces with code positions."""

from .positions import PositionFinder, is_own_code
from .recorder import HOST_READS, RecordedCall, Recorder, contents_of, tensors_in
from .tracer import EscapeWatch, Tracer, record

__all__ = [
    "HOST_READS",
    "EscapeWatch",
    "PositionFinder",
    "RecordedCall",
    "Recorder",
    "Tracer",
    "contents_of",
    "is_own_code",
    "record",
    "tensors_in",
]
