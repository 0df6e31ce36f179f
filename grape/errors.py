"""The one error tree of Grape.

A message says what happened, where, and what to do. Refusing to accelerate is not an error: see
`grape.model.outcome`.
"""

from __future__ import annotations

__all__ = ["CaptureError", "GrapeError", "RewriteError", "UsageError"]


class GrapeError(Exception):
    """Root of every error that Grape raises on purpose. `exit_code` is what the CLI returns."""

    exit_code: int = 1


class UsageError(GrapeError):
    """The person asked for something that does not exist: an option, a cell, a file."""

    exit_code = 2


class CaptureError(GrapeError):
    """A backend could not capture; the runtime turns it into a `Refused` outcome."""

    exit_code = 3


class RewriteError(GrapeError):
    """A source rewrite could not be applied or undone."""

    exit_code = 4
