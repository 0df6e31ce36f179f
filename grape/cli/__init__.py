"""The command line: `grape run`, `grape demo`, `grape doctor`, `grape explain`. Light until a command runs."""

from .entry import main

__all__ = ["main"]
