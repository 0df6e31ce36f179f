"""Where a piece of code stands: its scope, what is read and bound around it, and what its jumps become."""

from __future__ import annotations

from dataclasses import dataclass, field

from .facts.jumps import Jump
from .facts.names import Exits


@dataclass(frozen=True)
class Scope:
    """One function, or the cell itself (`module`).

    `shared` names are seen by nested functions or declared global, `plain` ones hold plain values, `own` ones are bound
    here by something else than an import.
    """

    module: bool
    shared: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Context:
    """Where a block stands. `live` names are read after it, `bound` ones are certainly bound before it.

    `tail`: the function ends with the block. `iteration_tail`: the iteration does. `stops`: the flags of the loops
    around, innermost last; `skip`: the flag of a `continue`; `result`: the flag and the value of a `return`.
    """

    scope: Scope
    live: frozenset[str] = frozenset()
    bound: frozenset[str] = frozenset()
    exits: Exits = field(default_factory=Exits)
    tail: bool = True
    iteration_tail: bool = False
    step: bool = False
    stop: str | None = None
    stops: tuple[str, ...] = ()
    skip: str | None = None
    result: tuple[str, str] | None = None

    def flagged(self) -> frozenset[Jump]:
        """The jumps that cannot stay jumps here, whatever they leave."""
        found: set[Jump] = set()
        if self.step:
            found |= {"break", "continue"}
        if self.result is not None:
            found.add("return")
        return frozenset(found)

    def flags(self, kinds: frozenset[Jump]) -> list[str]:
        """The names that jumps of these kinds assign."""
        names: list[str] = []
        if "break" in kinds and self.stop is not None:
            names.append(self.stop)
        if "continue" in kinds and self.skip is not None:
            names.append(self.skip)
        if "return" in kinds and self.result is not None:
            names += [*self.result, *(stop for stop in self.stops if stop not in names)]
        return names
