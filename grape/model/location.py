"""Where in a person's code something happened."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One line of code.

    `file` is a name to show: ``In[4]`` for a notebook cell, a path for a file. `function` is the qualified name of
    the function that holds the line (``<module>`` at the top of a cell). `instruction` is the offset of the
    bytecode instruction, the finest code position there is (alias prediction keys on it); -1 where unknown.
    """

    file: str
    line: int
    function: str
    instruction: int = -1

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


def line_of(at: Position | None) -> tuple[str, int] | None:
    """File and line: equal for positions on one line."""
    return (at.file, at.line) if at is not None else None
