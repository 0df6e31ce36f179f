"""Forward and backward of a region as two graphs behind one node of autograd.

The forward graph leaves what it saves in memory of the pair's own, where the backward graph finds it. Until that was
gone through, or nobody can go through it any more, the forward graph is not replayed again (`Pair.free`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field

import torch
from torch.autograd.function import FunctionCtx
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.multiprocessing.reductions import StorageWeakRef

from ..backends.protocol import Backend, Graph, Pool
from ..buffers.placeholders import Placeholders, distinct
from ..guarding.environment import is_batched
from ..replaying.versions import set_versions, versions_of
from .again import Again, Forward
from .consumed import named
from .observed import Backwards, Pattern, pattern_of

MISSES = 3
"""After so many backwards that no graph served, the pair is captured anew, for the gradients that come now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardGraph:
    """Reads `seeds`, one of each result that has a gradient in the pattern, and leaves `parts`, those of each leaf in a
    row."""

    graph: Graph
    seeds: Sequence[torch.Tensor | None]
    parts: Sequence[torch.Tensor | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedOutside:
    """A saved tensor of the person's. `there` is another one over the memory that it had at the capture.

    `follows`: what autograd saved is the tensor itself, which may get other memory; a view keeps the old one.
    """

    tensor: torch.Tensor
    there: torch.Tensor
    follows: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Tensors that the captured autograd graph has saved of memory that others can write.

    `arguments` are numbers of argument leaves, `views` those of which views were saved, `outside` tensors of the
    person's, `results` numbers of the graph's outputs. `anything`: also where it is only memory of the pair.
    """

    arguments: Sequence[int]
    views: frozenset[int]
    outside: Sequence[SavedOutside]
    results: Sequence[int]
    anything: bool


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class PairedCall(Forward):
    """One replayed forward: what its backward has to know."""

    pair: Pair
    addresses: Sequence[int] = ()
    outputs: Sequence[torch.Tensor] = ()
    _alive: StorageWeakRef | None = None

    def guard(self) -> torch.Tensor:
        """The tensor to be saved for backward: it dies when autograd lets go of what it has saved."""
        made = torch.empty(1, device="cpu")
        self._alive = StorageWeakRef(made.untyped_storage())
        return made

    @property
    def outstanding(self) -> bool:
        """True where a backward may still come."""
        return self._alive is None or not self._alive.expired()


class _Context(FunctionCtx):
    call: PairedCall
    saved_tensors: tuple[torch.Tensor, ...]


class _Paired(torch.autograd.Function):
    """The node of autograd that stands for a replayed forward.

    Takes a call, what autograd is to keep and check the versions of, and the leaves, one for each part of their
    gradients: so autograd adds these up with others in the order in which it does so without Grape."""

    @staticmethod
    def forward(
        ctx: _Context, call: PairedCall, kept: Sequence[torch.Tensor], *inputs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)  # what nobody used has no gradient, and what led to it gets none
        ctx.call = call
        ctx.save_for_backward(*kept)
        outputs, call.outputs = tuple(call.outputs), ()
        return outputs

    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        kept = ctx.saved_tensors  # raises in torch's words where one was changed, or the graph was gone through
        return (None, None, *ctx.call.pair.backward(ctx.call, kept, gradients))


@dataclass(eq=False)
class Pair:
    """See the module.

    `inputs` are the leaves that get gradients, in the order of `BackwardGraph.parts`: each the number of an argument,
    or a tensor of the person's. `made` are the forward graph's outputs, `differentiable` which of them require some.
    `name` is that of the node; `draws` tells that the forward draws random numbers.
    """

    backend: Backend
    forward: Graph
    pool: Pool
    backwards: Mapping[Pattern, BackwardGraph]
    _: KW_ONLY
    inputs: Sequence[int | torch.Tensor]
    made: Sequence[torch.Tensor]
    differentiable: Sequence[int]
    saved: Saved
    placeholders: Placeholders
    name: str
    observed: Backwards
    again: Again
    draws: bool
    keep: object
    _calls: weakref.WeakSet[PairedCall] = field(default_factory=weakref.WeakSet)
    _retired: bool = False
    _missed: int = 0

    def __post_init__(self) -> None:
        self.made = tuple(self.made)
        self._function = named(_Paired, self.name)

    @property
    def nbytes(self) -> int:
        """Of the executables."""
        return self.forward.nbytes + sum(one.graph.nbytes for one in self.backwards.values())

    @property
    def fits(self) -> bool:
        """True where what was seen of its backward is what graphs can do."""
        return not self.observed.again and self._missed < MISSES

    @property
    def free(self) -> bool:
        """True where the forward graph may write what it saves once more."""
        return not self.saved.anything or not any(call.outstanding for call in self._calls)

    def foresee_another(self) -> None:
        """Gradients are about to be differentiated again: it serves no call any more."""
        self.observed.note_again()

    def attach(self, leaves: Sequence[torch.Tensor], outputs: list[torch.Tensor], state: object) -> list[torch.Tensor]:
        """The outputs of the forward replay that was just issued, with a node of autograd in front of them."""
        saved = self.saved
        rest = [None if i in saved.arguments else leaf for i, leaf in enumerate(leaves)]
        call = PairedCall(pair=self, leaves=rest, state=state)
        call.addresses = [leaf.data_ptr() for leaf in leaves] if saved.views else ()
        call.outputs = [outputs[i] for i in self.differentiable]
        kept = [leaves[i] for i in saved.arguments]
        kept += [one.tensor for one in saved.outside]
        kept += [outputs[i] for i in saved.results]
        if saved.anything:
            kept.append(call.guard())
        call.versions = versions_of((*leaves, *(one for one in self.inputs if not isinstance(one, int))))
        inputs = [leaves[one] if isinstance(one, int) else one for one in self.inputs]
        with_nodes = self._function.apply(call, kept, *inputs)
        self._calls.add(call)
        for index, tensor in zip(self.differentiable, with_nodes, strict=True):
            outputs[index] = tensor
        return outputs

    def backward(
        self, call: PairedCall, kept: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None]:
        """The parts of the gradients of `inputs`. `kept` are what autograd saved: it has checked their versions."""
        saved = self.saved
        count, outside = len(saved.arguments), len(saved.outside)
        arguments = dict(zip(saved.arguments, kept[:count], strict=True))
        graph, once_more = None, torch.is_grad_enabled()
        if once_more:
            self.observed.note_again()
        elif all(map(_plain, gradients)) and not self.again.is_needed():
            pattern = pattern_of(gradients)
            graph = self.backwards.get(pattern)
            if graph is None:
                self.observed.note(pattern)
        if graph is None:
            self._missed += not once_more
            made = [self.made[i] for i in self.differentiable]
            return self.again(call, self.inputs, made, arguments, gradients, create_graph=once_more)
        pairs = list(zip(graph.seeds, gradients, strict=True))
        targets = [distinct(seed) for seed, _ in pairs if seed is not None]
        sources = [distinct(gradient) for seed, gradient in pairs if seed is not None and gradient is not None]
        # What autograd does not see (`.data`, NumPy) may have changed them since: eager reads them now.
        for index, tensor in arguments.items():
            target = self.placeholders.target(index)
            moved_away = index in saved.views and tensor.data_ptr() != call.addresses[index]
            if not moved_away and index not in self.placeholders.host:
                targets.append(target)
                sources.append(distinct(tensor))
        for index, tensor in zip(saved.results, kept[count + outside :], strict=False):
            targets.append(distinct(self.made[index]))
            sources.append(distinct(tensor))
        moved = [
            (one.there, one.tensor)
            for one in saved.outside
            if one.follows and one.there.data_ptr() != one.tensor.data_ptr()
        ]
        with _put_there(moved):
            self.backend.copy(targets, sources)
            graph.graph.replay()
        return self._copies(graph.parts)

    def _copies(self, parts: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Each in memory of its own: two gradients of one storage would be written as one."""
        narrow = [None if part is None else distinct(part) for part in parts]
        copies = [
            None if one is None else torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device)
            for one in narrow
        ]
        made = [one for one in copies if one is not None]
        self.backend.copy(made, [one for one in narrow if one is not None])
        set_versions(made, [0] * len(made))
        return [
            copy.as_strided(part.shape, part.stride())
            if copy is not None and part is not None and copy.shape != part.shape
            else copy
            for copy, part in zip(copies, parts, strict=True)
        ]

    def retire(self) -> None:
        """Release the graphs as soon as no backward can come any more. Idempotent."""
        if self._retired:
            return
        self._retired = True
        waiting = [call for call in self._calls if call.outstanding]
        if not waiting:
            self._release()
        for call in waiting:
            weakref.finalize(call, self._release_last).atexit = False

    def _release_last(self) -> None:
        if not any(call.outstanding for call in self._calls):
            self._release()

    def _release(self) -> None:
        self.forward.release()
        for one in self.backwards.values():
            one.graph.release()
        self.backwards, self.made, self.keep = {}, (), None  # the node may live on


def _plain(gradient: torch.Tensor | None) -> bool:
    if gradient is None:
        return True
    return (
        type(gradient) is torch.Tensor
        and gradient.layout is torch.strided
        and not (gradient.is_conj() or gradient.is_neg())
        and not is_batched(gradient)
    )


@contextmanager
def _put_there(moved: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[None]:
    """Inside, memory that a graph reads holds what these tensors hold, which lie elsewhere now (`p.data = ...`)."""
    for there, tensor in moved:
        if (there.shape, there.stride(), there.dtype) != (tensor.shape, tensor.stride(), tensor.dtype):
            raise RuntimeError(
                "Grape cannot go through this backward: a parameter was given data of another layout after the "
                "forward, which was replayed; `%grape undo` leaves such a module as it is"
            )
    places = tuple(there for there, _ in moved)
    before = [there.detach().clone() for there in places]
    try:
        _fill(places, [tensor for _, tensor in moved])
        yield
    finally:
        _fill(places, before)


def _fill(places: tuple[torch.Tensor, ...], contents: Sequence[torch.Tensor]) -> None:
    with torch.no_grad(), _unsafe_preserve_version_counter(places):
        for place, content in zip(places, contents, strict=True):
            place.copy_(content)
