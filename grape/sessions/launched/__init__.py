"""Processes that a cell or a script starts (`notebook_launcher`, `mp.spawn`): Grape serves them, and not who waits for
them. The report is that of rank 0, with the others beside it.
"""

from .cell import LaunchedSession

__all__ = ["LaunchedSession"]
