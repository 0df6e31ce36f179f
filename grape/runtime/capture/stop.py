"""How a step of a capture ends it: with the refusal that the call's outcome becomes."""

from __future__ import annotations

from ...model import Refused
from .lockstep import Diverged

__all__ = ["Stop", "divergence"]


class Stop(Exception):
    """Ends a capture. Never leaves `capture_call`."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.why)
        self.refused = refused


def divergence(diverged: Diverged) -> Refused:
    """Why a captured run that left the eager trace is refused: GR403 for another Python value, else GR402."""
    expected, found = diverged.expected, diverged.found
    where = expected or found
    at = (where.user or where.inner) if where else None
    if expected is not None and found is not None and expected.name == found.name:
        theirs, mine = expected.scalars(), found.scalars()
        if theirs != mine:
            values = tuple(zip(theirs, mine, strict=False))
            changed = next((pair for pair in values if pair[0] != pair[1]), values[:1])
            return Refused(
                code="GR403",
                why=f"a Python value that reaches {expected.name} changed from one run to the next",
                at=at,
                evidence=(("operator", expected.name), ("values", str(changed))),
            )
    evidence = (("eager", expected.name if expected else None), ("captured", found.name if found else None))
    return Refused(
        code="GR402", why=f"the capture ran other operators than the eager call: {diverged}", at=at, evidence=evidence
    )
