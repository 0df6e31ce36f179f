"""Where runs and their parts live, as they see it."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from ..model import Position
from ..rewrite.outlining import RunSource
from ..runtime import Interceptor, RegionContext


class Home(Protocol):
    """The outliner of the process (`Outliner`)."""

    context: RegionContext
    interceptor: Interceptor
    name_of: Callable[[str], str]

    @property
    def in_charge(self) -> bool:
        """True where this thread is the one that meets Grape, and Grape may serve it."""

    def at_work(self) -> AbstractContextManager[None]:
        """Around what Grape does for a loop between the person's statements."""

    def is_alone(self, run: object) -> bool:
        """True for the only run of its loop."""

    def replays(self, callables: Sequence[object]) -> bool:
        """True where one of these modules or functions is a region that replays graphs."""

    def holds(self, code: types.CodeType, at: Position) -> bool:
        """True where a position lies in this code."""


class Owner(Protocol):
    """The run that a part is of (`Run`)."""

    outliner: Home
    source: RunSource
    namespace: dict[str, object]
    filename: str
    flags: int
    codes: set[types.CodeType]

    @property
    def name(self) -> str:
        """The name of the code that holds the loop."""
