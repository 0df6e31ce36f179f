"""What is remembered of a cell that ran once, and of which nothing could be served."""

from __future__ import annotations

from grape.model import CellEvidence
from grape.options import Options
from grape.sessions.past.history import Past

LEFT = Past(
    runs=1,
    settled=True,
    served=False,
    evidence=CellEvidence(file="In[1]", source="", device="CPU", backend="tape", wall_ms=1.0),
    findings=(),
    applied=Options().applied,
)
