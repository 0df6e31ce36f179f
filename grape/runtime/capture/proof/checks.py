"""What the eager run of a call must not have done, if a graph is to stand for it."""

from __future__ import annotations

from ....model import Later, Reason, Refused, RetryLater
from ...guarding.effects import EffectWatch, effect_of
from ...guarding.environment import foreign_modes
from ...guarding.guards import GuardSet
from ...guarding.structure import Layout, leaf_meta
from ..request import Request
from ..stop import Stop, changes


def check_guards(guards: GuardSet, needs_grad: bool) -> None:
    """Raise `Stop` where what the region reads is not as it was."""
    if not guards.holds():
        # An optimizer makes the state of a parameter that it has not seen before; the next call will not.
        refused = changes(guards)
        raise Stop(RetryLater(later=Later.UNSTEADY, refused=refused) if needs_grad else refused)


def places(layout: Layout) -> list[tuple[object, ...]]:
    """The facts that a call may not change of tensors that it was given, but for the contents."""
    return [(*leaf_meta(leaf), leaf.untyped_storage()._cdata, int(leaf.storage_offset())) for leaf in layout.leaves]


def check_arguments(layout: Layout, before: list[tuple[object, ...]]) -> None:
    """`before`: the arguments' `places` when the call began."""
    if places(layout) != before:
        raise Stop(Refused.because(Reason.CHANGES_ARGUMENT))


def check_effects(watch: EffectWatch, guards: GuardSet) -> None:
    """Raise `Stop` for what the run did besides operators, on a path that no earlier call may have taken."""
    effect = effect_of(watch) or guards.refuse_strays(watch.calls.own)
    if effect is not None:
        raise Stop(effect)


def check_modes(request: Request, guards: GuardSet, needs_grad: bool) -> None:
    """Raise `Stop` where somebody else saw the run's operators, or hears of its nodes of autograd."""
    foreign = foreign_modes(int(request.tracer.on_stack))
    if foreign:
        raise Stop(Refused.because(Reason.MODE, mode=foreign))
    if needs_grad and guards.has_hooked_nodes():
        raise Stop(Refused.because(Reason.NODE_HOOK))
