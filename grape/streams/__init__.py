"""Operator streams: operators that repeat are matched with what was recorded and issued by segments. Internal."""

from __future__ import annotations

from .session import Evidence, Settings, Stream, open_stream

__all__ = ["Evidence", "Settings", "Stream", "open_stream"]
