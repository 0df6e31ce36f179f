"""Operator traces with code positions."""

from .blocks import OwnMode, blocks
from .busy import busy, grape_works, is_watched, person_runs
from .compiling import around_compilation, before_compiled
from .escapes import COMPILED, HIGHER_ORDER, OTHERWISE, SPARSE, below_dispatch
from .groups import (
    BESIDE_GROUP,
    COLLECTIVES,
    Group,
    forget_group,
    group_of_run,
    process_group,
    remember_group,
    started_as_rank,
)
from .imports import when_imported
from .issuing import as_written, issue, without_outer_casts
from .operators import HOST_READS, Operator, hides_memory, tensors_in
from .positions import PositionFinder, is_between, is_grape_code, is_own_code
from .recorder import LIMIT, ByIdentity, RecordedCall, Recorder, contents_of
from .tracer import ANNOTATIONS, Tracer, record
from .unseen import UnseenMode

__all__ = [
    "ANNOTATIONS",
    "BESIDE_GROUP",
    "COLLECTIVES",
    "COMPILED",
    "HIGHER_ORDER",
    "HOST_READS",
    "LIMIT",
    "OTHERWISE",
    "SPARSE",
    "ByIdentity",
    "Group",
    "Operator",
    "OwnMode",
    "PositionFinder",
    "RecordedCall",
    "Recorder",
    "Tracer",
    "UnseenMode",
    "around_compilation",
    "as_written",
    "before_compiled",
    "below_dispatch",
    "blocks",
    "busy",
    "contents_of",
    "forget_group",
    "grape_works",
    "group_of_run",
    "hides_memory",
    "is_between",
    "is_grape_code",
    "is_own_code",
    "is_watched",
    "issue",
    "person_runs",
    "process_group",
    "record",
    "remember_group",
    "started_as_rank",
    "tensors_in",
    "when_imported",
    "without_outer_casts",
]
