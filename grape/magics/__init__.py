"""`%%grape` and `%grape`: the thin layer between IPython and a session. Loading it imports no torch."""

from .extension import load, unload

__all__ = ["load", "unload"]
