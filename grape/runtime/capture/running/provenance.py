"""Where the containers and tensors of a captured result come from; what cannot be told is refused."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Sequence

import torch

from ....model import Reason, Refused
from ...buffers.strided import strided
from ...guarding.guards import GuardSet
from ...guarding.structure import Layout
from ...replaying.looks import kinship
from ...replaying.output_spec import ArgumentView, Origin, Outside
from ..stop import Stop


def compare_structure(leaving: Layout, eager: Layout) -> None:
    """Raise `Stop` where the captured run's result has another structure than the eager one's."""
    if leaving.key != eager.key:
        pairs = zip(leaving.key, eager.key, strict=False)
        mine, theirs = next(((a, b) for a, b in pairs if a != b), (len(leaving.key), len(eager.key)))
        raise Stop(Refused.because(Reason.RESULT_DIFFERS, difference=f"{theirs} and {mine}"[:250]))


def found_outside(leaving: Layout, eager: Layout, guards: GuardSet) -> dict[int, object]:
    """Containers in the result that the call did not make: the eager run gave the very same objects. A tuple may be a
    constant of the code."""
    attributes = {id(vars(container)) for container in leaving.containers if hasattr(container, "__dict__")}
    found = {}
    for number, (mine, theirs) in enumerate(zip(leaving.containers, eager.containers, strict=True)):
        if mine is not theirs or id(mine) in attributes:
            continue
        if not guards.reaches(mine):
            if isinstance(mine, (tuple, types.MethodType)):
                continue
            raise Stop(Refused.because(Reason.FOREIGN_CONTAINER, kind=type(mine).__name__))
        found[number] = mine
    return found


def classifier(
    given: Sequence[torch.Tensor], born: Collection[int], guards: GuardSet, device: torch.device
) -> Callable[[torch.Tensor], Origin]:
    """Tells where a tensor of the result comes from; see `OutputSpec.origin`.

    `given` are the tensors that the captured run was called with, `born` the storages that it made.
    """
    direct = {id(tensor): i for i, tensor in enumerate(given)}
    shared = {t.untyped_storage()._cdata: i for i, t in reversed(list(enumerate(given)))}

    def classify(tensor: torch.Tensor) -> Origin:
        if id(tensor) in direct:
            return direct[id(tensor)]
        if guards.reaches(tensor):
            return Outside(tensor)
        storage = tensor.untyped_storage()._cdata
        index = shared.get(storage)
        if index is not None:
            base = given[index]
            if base.dtype != tensor.dtype:
                raise Stop(Refused.because(Reason.ARGUMENT_DTYPE))
            delta = int(tensor.storage_offset()) - int(base.storage_offset())
            return ArgumentView(index, tuple(tensor.shape), tensor.stride(), delta, kinship(tensor, base))
        if storage in guards.sources:
            outside = guards.sources[storage][1]
            if outside.dtype != tensor.dtype:
                raise Stop(Refused.because(Reason.OUTSIDE_DTYPE))
            return Outside(outside, strided(tensor), kinship(tensor, outside))
        if storage not in born:
            raise Stop(Refused.because(Reason.FOREIGN_TENSOR))
        if tensor.requires_grad or type(tensor) is not torch.Tensor:
            raise Stop(Refused.because(Reason.MAKES_PARAMETER))
        if tensor.device.type != device.type:
            raise Stop(Refused.because(Reason.CPU_RESULT))
        return None

    return classify
