"""A backward that no graph of a pair serves: the forward runs once more, as written, and is differentiated.

That is a gradient which is to be differentiated again (`create_graph=True`), gradients that came for other results or
laid out in another way than before, and a mode of the person's that wants to see the operators. The random state is
that of the forward, and buffers are left as they are; a result that has other bits than the forward's is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ...quiet import without_warnings
from ..backends.protocol import Backend
from ..guarding.environment import environment, foreign_modes, quick_modes
from ..guarding.structure import Tree, flatten
from ..replaying.building import rebuild
from ..replaying.versions import set_versions, versions_of
from .observed import differentiable
from .recorded import Recorded
from .stand_ins import StandIns, stand_in

if TYPE_CHECKING:
    from ...tracing import Tracer
    from ..guarding.guards import GuardSet


@dataclass(slots=True, kw_only=True, eq=False)
class Forward:
    """A forward that was replayed. `leaves` are its arguments, None for those that autograd keeps; `state` is the
    random state before it, where it draws; `versions` are those of what it read."""

    leaves: Sequence[torch.Tensor | None]
    state: object
    versions: Sequence[int] = ()


@dataclass(eq=False)
class Again:
    """Of one pair: `function` is called with arguments of the structure `root`. `changed` are buffers that it writes,
    `same` tells whether pairs of tensors have the same bits, and within `paused` nothing becomes a region."""

    function: Callable[..., object]
    root: Tree
    guards: GuardSet
    backend: Backend
    tracer: Tracer
    changed: Sequence[torch.Tensor]
    same: Callable[[Sequence[tuple[torch.Tensor, torch.Tensor]]], bool]
    paused: Callable[[], AbstractContextManager[None]]

    def __post_init__(self) -> None:
        kind = self.backend.device.type
        self.changed = tuple(self.changed)
        self._modes = self._modes_now()
        self._autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def is_needed(self) -> bool:
        """True where this backward comes under autocast, under other modes than those of the capture, or is watched."""
        if torch.is_autocast_enabled(self.backend.device.type):
            return True
        return self._modes_now() != self._modes or foreign_modes(int(self.tracer.on_stack)) is not None

    def _modes_now(self) -> tuple[object, ...]:
        device = self.backend.device
        return environment(device, int(self.tracer.on_stack))[len(quick_modes(device)) :]

    def __call__(
        self,
        call: Forward,
        inputs: Sequence[int | torch.Tensor],
        made: Sequence[torch.Tensor],
        arguments: Mapping[int, torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
        *,
        create_graph: bool,
    ) -> Sequence[torch.Tensor | None]:
        leaves = [arguments[i] if leaf is None else leaf for i, leaf in enumerate(call.leaves)]
        outside = [one for one in inputs if not isinstance(one, int)]
        if versions_of((*leaves, *outside)) != call.versions:
            raise _refusal("what the forward read was changed since")
        given = [stand_in(leaf, connected=create_graph) if leaf.requires_grad else leaf for leaf in leaves]
        random, buffers = self.backend.rng_state(), [tensor.clone() for tensor in self.changed]
        counted = versions_of(self.changed)
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stand_ins = StandIns(self.guards, connected=create_graph)
            if call.state is not None:
                self.backend.set_rng_state(call.state)
            kind = self.backend.device.type
            enabled, dtype = self._autocast
            autocast = torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False)
            try:
                with stand_ins.in_place(), self.paused(), autocast, without_warnings():
                    args, kwargs = rebuild(self.root, given)
                    result = self.function(*args, **kwargs)
            finally:
                self.backend.set_rng_state(random)
                with torch.no_grad():
                    for tensor, before in zip(self.changed, buffers, strict=True):
                        tensor.copy_(before)
                set_versions(self.changed, counted)
            results = flatten((result, args, kwargs), "result").leaves
            outputs = [results[i] for i in differentiable(results, given)]
            pairs = [(one.detach(), other) for one, other in zip(outputs, made, strict=False)]
            if len(outputs) != len(made) or not self.same(pairs):
                raise _refusal("the forward gives other results when it runs again")
            names: dict[Hashable, torch.Tensor] = {
                ("argument", i): given[i] for i, leaf in enumerate(given) if leaf.requires_grad
            }
            by_leaf = {id(leaf): one for leaf, one in zip(stand_ins.originals, stand_ins.tensors, strict=True)}
            names |= {("outside", id(leaf)): by_leaf[id(leaf)] for leaf in outside}
            recorded = Recorded(outputs, names)
            if sum(recorded.parts.values()) != len(inputs):
                raise _refusal("the forward depends on other tensors when it runs again")
            found = recorded.differentiate(gradients, create_graph=create_graph)
        parts: list[torch.Tensor | None] = []
        taken: dict[Hashable, int] = {}
        for one in inputs:
            name: Hashable = ("argument", one) if isinstance(one, int) else ("outside", id(one))
            number = taken[name] = taken.get(name, -1) + 1
            row = found.get(name, [])
            parts.append(row[number] if number < len(row) else None)
        return parts


def _refusal(why: str) -> RuntimeError:
    return RuntimeError(
        f"Grape cannot go through this backward, whose forward was replayed: {why}; "
        "`%grape undo` leaves such a module as it is"
    )
