"""Straight-line Python code, generated for one layout.

Names and values of the person's program reach the code as variables, never as text.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=128)
def _compiled(source: str) -> types.CodeType:
    """Layouts that differ in shapes only have one text; compiling it takes milliseconds."""
    return compile(source, __file__, "exec", dont_inherit=True)


class Writer:
    """`lines` of one function, and the values of the `names` in it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, object] = {}
        self._locals = 0

    def constant(self, value: object) -> str:
        """A name for a value."""
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name

    def local(self, expression: str) -> str:
        """A name for what an expression gives where it stands."""
        self._locals += 1
        self.lines.append(f" v{self._locals} = {expression}")
        return f"v{self._locals}"

    def function(self, parameters: str, result: str) -> Callable[..., Any]:
        """A function that runs the lines and returns `result`."""
        defaults = "".join(f", {name}={name}" for name in self.names)
        text = "\n".join([f"def made({parameters}{defaults}):", *self.lines, f" return {result}"])
        namespace: dict[str, Any] = dict(self.names)
        exec(_compiled(text), namespace)
        made: Callable[..., Any] = namespace["made"]
        namespace.clear()  # it is the function's, which has its constants as defaults
        return made
