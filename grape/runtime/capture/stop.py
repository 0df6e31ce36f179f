"""How a step of a capture ends it: with what the call's outcome becomes."""

from __future__ import annotations

from ...model import NoMemory, NoRoom, Reason, Refused, RetryLater
from ...tracing import ByIdentity
from ..guarding.guards import GuardSet
from .running.lockstep import Diverged


class Stop(Exception):
    """Ends a capture. Never leaves `capture_call`."""

    def __init__(self, outcome: Refused | RetryLater | NoMemory | NoRoom) -> None:
        super().__init__(str(outcome))
        self.outcome = outcome


def changes(guards: GuardSet) -> Refused:
    """The call changes what the guards hold to be unchanged."""
    return Refused.because(Reason.CHANGES, changed=guards.difference(), name=guards.name)


def divergence(diverged: Diverged) -> Refused:
    """Why a captured run that left the eager trace is refused: GR403 for another Python value, GR405 where values have
    no equality, else GR402.
    """
    expected, found = diverged.expected, diverged.found
    where = expected or found
    at = (where.user or where.inner) if where else None
    if expected is not None and found is not None and expected.name == found.name:
        theirs, mine = expected.scalars(), found.scalars()
        if theirs != mine:
            values = tuple(zip(theirs, mine, strict=False))
            changed = next((pair for pair in values if pair[0] != pair[1]), values[:1])
            opaque = next((value for value in changed if isinstance(value, ByIdentity)), None)
            if opaque is not None:
                return Refused.because(Reason.UNCOMPARED, at, operator=expected.name, kind=str(opaque))
            evidence = ("operator", expected.name), ("values", str(changed))
            return Refused.because(Reason.NUMBER_CHANGED, at, operator=expected.name, evidence=evidence)
    names = ("eager", expected.name if expected else None), ("captured", found.name if found else None)
    return Refused.because(Reason.DIVERGED, at, difference=diverged, evidence=names)
