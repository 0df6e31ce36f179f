"""Control flow that is left to the device: the trace of all ways, results that are refused, branches compared."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence

import torch
from torch.utils._pytree import tree_leaves

from ...model import DECISION, Reason, Refused, Trace
from ...quiet import without_warnings
from ..buffers.placeholders import Placeholders
from ..guarding.effects import EffectBan
from ..guarding.guards import GuardSet
from ..guarding.structure import Layout
from ..predication import Arms, Flag, NodeLowering, Surveyed, survey
from ..replaying.building import rebuild
from ..replaying.value_guards import ValueGuards
from .request import EagerRun, Request
from .stop import Stop

_arms: weakref.WeakValueDictionary[tuple[Hashable, object], Arms] = weakref.WeakValueDictionary()
"""The branches that replays of a region took and were compared, by its owner and the layout of the arguments."""


def is_left_to_device(trace: Trace) -> bool:
    return any(read.construct == DECISION for read in trace.host_reads)


def survey_call(
    request: Request, layout: Layout, value_guards: ValueGuards, placeholders: Placeholders, guards: GuardSet
) -> Surveyed | Refused:
    """A trace of all ways through the code, where the eager one shows one way; nothing is executed."""
    if value_guards.steps:
        read = next(
            (step.op for step in value_guards.steps if step.op.ordinal in value_guards.reads), value_guards.steps[0].op
        )
        return Refused.because(Reason.READ_BESIDE_FLOW, read.user or read.inner, operator=read.name)

    def call() -> None:
        args, kwargs = rebuild(layout.root, placeholders.tensors)
        with without_warnings():
            request.function(*args, **kwargs)

    positions = request.tracer.positions
    with EffectBan(positions):
        surveyed = survey(request.backend, call, placeholders.tensors, positions)
    if not guards.holds():
        return Refused.because(Reason.BRANCH_CHANGES, changed=guards.difference())
    return surveyed


def refuse_flags(result: object) -> None:
    """Raise `Stop` where a result holds a truth value of the device."""
    if any(isinstance(leaf, Flag) for leaf in tree_leaves(result)):
        raise Stop(Refused.because(Reason.TRUTH_RETURNED))


def check_ties(lowering: NodeLowering, leaving: Layout, given: Sequence[torch.Tensor], guards: GuardSet) -> None:
    """Raise `Stop` where it depends on data whether a result shares memory with something that is known outside."""
    leaves = {leaf.untyped_storage()._cdata for leaf in leaving.leaves}
    outside = leaves | {tensor.untyped_storage()._cdata for tensor in given} | set(guards.sources)
    for one, other in lowering.ties.pairs():
        if one.cdata in leaves and other.cdata in outside:
            raise Stop(Refused.because(Reason.TIED_RESULTS))


def learn_arms(arms: Arms, eager: EagerRun, surveyed: Surveyed, key: tuple[Hashable, object]) -> None:
    """The verifying replay ran these branches; so did those of other graphs of the same program."""
    arms.learn()
    arms.program = (eager.call.trace.signature(), tuple(sorted(surveyed.choices.items())))
    known = _arms.get(key)
    if known is not None:
        arms.join(known)
    _arms[key] = arms
