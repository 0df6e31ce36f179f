"""Orchestration: one cell (or one `with` block) is observed, decided on, accelerated and reported.

The engine lives as long as the process and owns what outlives a cell; a session lives for one cell. No module here has
the name of a function below: importing it would put the module in the function's place.
"""

from .block import session
from .cell import Session
from .choice import plan, session_for
from .engine import OpenSession
from .launched import LaunchedSession
from .loops import outlined_code
from .past.history import CellKey, Mode
from .past.remembering import recall, remember
from .process import close_engine, engine, last_report, preload, release_abandoned
from .running import Cell
from .streamed.function import StreamedFunction, stream
from .streamed.plain import begin_plain_cell, end_plain_cell

__all__ = [
    "Cell",
    "CellKey",
    "LaunchedSession",
    "Mode",
    "OpenSession",
    "Session",
    "StreamedFunction",
    "begin_plain_cell",
    "close_engine",
    "end_plain_cell",
    "engine",
    "last_report",
    "outlined_code",
    "plan",
    "preload",
    "recall",
    "release_abandoned",
    "remember",
    "session",
    "session_for",
    "stream",
]
