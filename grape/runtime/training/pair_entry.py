"""An entry whose results carry an autograd graph: see `pair`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..replaying.entry import BLOCKED, MISMATCH, Entry
from .foreseen import will_differentiate_again
from .pair import Pair


@dataclass(slots=True, kw_only=True)
class PairEntry(Entry):
    pair: Pair
    state: object = None

    @property
    def nbytes(self) -> int:
        return self.pair.nbytes

    @property
    def apart_bytes(self) -> int:
        placeholder_bytes: int = self.placeholders.nbytes
        return self.pair.nbytes + max(1, placeholder_bytes)

    @property
    def predictable(self) -> bool:
        return False  # what lies there is read once more by a backward

    @property
    def waiting(self) -> bool:
        return not self.pair.free

    @property
    def outdated(self) -> bool:
        return not self.pair.fits

    def repeatable(self) -> bool:
        return False

    def serve(self, leaves: Sequence[torch.Tensor], containers: Sequence[object], to_copy: Sequence[int]) -> object:
        self.acted = False
        if not self.pair.free:
            self.blocker = None
            return BLOCKED
        if self.pair.fits and will_differentiate_again():
            self.pair.foresee_another()
        if not self.pair.fits:
            return MISMATCH
        self.state = self.backend.rng_state() if self.pair.draws else None
        try:
            return Entry.serve(self, leaves, containers, to_copy)
        finally:
            self.state = None

    def results(self, leaves: Sequence[torch.Tensor], containers: Sequence[object]) -> object:
        made = self.pair.attach(leaves, self.outputs.hand_out(), self.state)
        return self.output_spec.serve(leaves, containers, made)

    def release(self) -> None:
        """A backward that is still to come finds its graphs."""
        self.pair.retire()
        self.leave_slots()
