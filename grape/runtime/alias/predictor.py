"""Learns which code positions make arguments that a replay would have to copy, and has them write into placeholders.

A *site* is a position: code object, instruction, and how often it ran since the region's last call (the ordinal). For
one iteration all callables of `rules` are watched; a position whose result the region then had to copy becomes a site,
and only the callables of sites stay patched. A prediction is made if the placeholder that the region's next graph reads
is known, the result has the size that the placeholder expects, its occupant is dead, and no autograd, mode, capture or
other stream is involved. If it is wrong, the tensor is an ordinary tensor that happens to lie in a slot.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ...failures import is_signalled
from ...model.call import Args, Kwargs
from ...originals import perf_counter_ns
from ...tracing import PositionFinder, is_own_code, process_group
from ..buffers.slots import Slot
from ..dispatch.trampoline import prune_traceback
from ..guarding.environment import is_transformed
from .rules import CALLABLES, Plan, Rule
from .sites import Issued, Made, PredictedRegion, Site, Target

if TYPE_CHECKING:
    from ..replaying.entry import Entry

MIN_BYTES = 4096
"""Smaller copies ride along in the launch that fills placeholders."""
DEMOTED = -4
ROUNDS = 3
"""So often a region's positions are learned; each round watches the callables for one iteration."""
WEIGHED = 64
_HIT, _MISS = 1, -2
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NOTHING = (AttributeError, TypeError, ValueError, IndexError, RuntimeError)
_covered: dict[object, Callable[[], None]] = {}
"""Patches that are over, under those of other predictors: they go with these."""


class Predictor:
    """One per engine. While a region runs it is `paused`: nothing inside is predicted."""

    def __init__(self, device: torch.device, positions: PositionFinder) -> None:
        self._device = device
        self._positions = positions
        self._patched: dict[tuple[int, str], Callable[[], None]] = {}
        self._sites: dict[tuple[int, int], Site] = {}
        self._learning: PredictedRegion | None = None
        self._counts: dict[tuple[int, int], int] = {}
        self._made: dict[int, Made] = {}
        self._issued: list[Issued] = []
        self._thread = get_ident()
        self._bytes_per_ns: float | None = None
        self.paused = False
        self.allowed = True
        """False where code is compiled: a compiler would meet the patches."""
        self.demoted: WeakKeyDictionary[PredictedRegion, dict[str, str]] = WeakKeyDictionary()
        """Why positions were given up, by argument path."""

    def waits_for(self, region: PredictedRegion) -> bool:
        """True where the next call of `region` tells what was learned or predicted."""
        return self._learning is region or bool(self._issued)

    # -- learning ----------------------------------------------------------------------------------------------------

    def learn(self, region: PredictedRegion) -> None:
        """Watch all callables until the region's next call."""
        if not self.allowed or self._learning is not None or torch.compiler.is_compiling():
            return
        self._learning = region
        self._thread = get_ident()
        self._counts.clear()
        self._made.clear()
        for owner, attribute, rule in CALLABLES:
            self._patch(owner, attribute, rule)

    def learned(
        self, region: PredictedRegion, leaves: Sequence[torch.Tensor], entry: Entry, to_copy: Sequence[int]
    ) -> bool:
        """The call came, and these arguments must be copied: whose results are they? False if nobody asked."""
        if self._learning is not region:
            return False
        self._learning = None
        for index in to_copy:
            leaf, path = leaves[index], entry.paths[index]
            region.learned_paths.add(path)
            made = self._made.get(leaf.untyped_storage()._cdata)
            if leaf.nbytes < MIN_BYTES:
                region.small_paths.add(path)
            if made is None or made.reference.expired():
                continue
            region.origins[path] = made.position
            if leaf.nbytes < MIN_BYTES:
                continue
            if leaf.storage_offset() or entry.placeholders.addresses[index] != entry.placeholders.slots[index].address:
                continue
            site = self._sites.get(made.key)
            if site is None or site.region is not region:
                site = self._sites[made.key] = Site(made.code, region, made.rule, made.name, made.position)
            site.targets.setdefault(made.ordinal, Target(entry.paths[index]))
        self._made.clear()
        self.settle()
        return True

    def why_not(self, region: PredictedRegion, path: str) -> str | None:
        """Why the argument at `path` is copied; None while it is predicted, or nobody knows yet."""
        demoted = self.demoted.get(region, {}).get(path)
        if demoted is not None or path not in region.learned_paths:
            return demoted
        predicted = any(
            target.path == path
            for site in self._sites.values()
            if site.region is region
            for target in site.targets.values()
        )
        if predicted or path in region.small_paths:
            return None
        return "nothing that can write elsewhere makes it"

    def _note(self, frame: FrameType, rule: Rule, name: tuple[int, str], result: object) -> None:
        key = (id(frame.f_code), frame.f_lasti)
        ordinal = self._counts[key] = self._counts.get(key, -1) + 1
        if type(result) is torch.Tensor and result.device.type == self._device.type:
            storage = result.untyped_storage()
            outer: FrameType | None = frame
            while outer is not None and not is_own_code(outer.f_code.co_filename):
                outer = outer.f_back
            at = self._positions.at(outer or frame)
            self._made[storage._cdata] = Made(key, frame.f_code, ordinal, rule, name, at, StorageWeakRef(storage))

    # -- predicting --------------------------------------------------------------------------------------------------

    def _predict(self, site: Site, args: Args, kwargs: Kwargs) -> torch.Tensor | None:
        """What the call gives, where it can be written into the placeholder that will be read; else None."""
        region = site.region
        if site.iteration != region.calls:
            site.iteration, site.ordinal = region.calls, 0
        ordinal = site.ordinal
        site.ordinal = ordinal + 1
        target = site.targets.get(ordinal)
        entries = region.expected if target is not None else ()
        if target is None or not entries:
            return None
        start = perf_counter_ns()
        slot = next((one for one in self._slots(entries, target.path) if not one.occupied), None)
        if slot is None or not self._plain_here(region):
            return None
        try:
            plan = site.rule(args, kwargs)
        except _NOTHING:
            plan = None
        template = slot.template(plan.shape, plan.dtype) if plan is not None and self._harmless(plan) else None
        if plan is None or template is None:
            self._score(site, ordinal, _MISS // 2, "its result cannot be foreseen")
            return None
        keeper, cdata, idle = template
        began = perf_counter_ns()
        slot.occupy(keeper, cdata, idle)
        try:
            plan.write(keeper)
        except Exception as error:
            if isinstance(error, torch.cuda.OutOfMemoryError) or is_signalled(error):
                raise
            return None  # what is wrong with the arguments, the person's own call tells in its own words
        done = perf_counter_ns()
        out = keeper.data  # only now: the write counts as a change of the tensor that is written
        slot.predicted = True
        self._issued.append(Issued(site, ordinal, slot, cdata))
        site.predicted += 1
        site.nbytes += out.nbytes
        site.overhead_ns += (began - start) + (perf_counter_ns() - done)
        return out

    def _slots(self, entries: Sequence[Entry], path: str) -> Iterator[Slot]:
        """Where these graphs read the argument at `path` from, if that is the beginning of a slot."""
        for entry in entries:
            index = entry.index_of(path)
            slot = entry.placeholders.slots.get(index) if index is not None else None
            if slot is not None and entry.placeholders.addresses[index or 0] == slot.address:
                yield slot

    def _plain_here(self, region: PredictedRegion) -> bool:
        """No mode, transform, autocast or foreign capture would see another operator than the person wrote."""
        c = torch._C
        return (
            not c._len_torch_function_stack()
            and c._len_torch_dispatch_stack() == int(region.is_traced)
            and not is_transformed()
            and not torch.is_autocast_enabled(self._device.type)
            and not c._get_deterministic_algorithms()
            and region.on_its_stream()
            and not region.beside_streams
        )

    def _harmless(self, plan: Plan) -> bool:
        """Plain tensors on the device, that autograd does not follow."""
        grad = torch.is_grad_enabled()
        return all(
            type(tensor) in _PLAIN
            and not (grad and tensor.requires_grad)
            and tensor.layout is torch.strided
            and not (tensor.is_conj() or tensor.is_neg())
            and tensor.device == self._device
            for tensor in plan.inputs
        )

    def passed(self, region: PredictedRegion) -> None:
        """A call of the region ran eagerly: it says nothing about predictions."""
        self._take(region)
        if self._learning is region:
            self.stop_learning()

    def _take(self, region: PredictedRegion) -> list[Issued]:
        """The predictions for the region's next call, which count no more."""
        mine = [issued for issued in self._issued if issued.site.region is region]
        self._issued = [issued for issued in self._issued if issued.site.region is not region]
        return mine

    def arrived(self, region: PredictedRegion, leaves: Sequence[torch.Tensor]) -> None:
        """A call of the region came: which predictions did it need?"""
        if not self._issued:
            return
        addresses = {leaf.data_ptr() for leaf in leaves}
        mine = self._take(region)
        for issued in mine:
            if issued.slot.cdata == issued.cdata and issued.slot.address in addresses:
                region.replay_counts.alias_hits += 1
                self._score(issued.site, issued.ordinal, _HIT, "")
            else:
                region.replay_counts.alias_misses += 1
                self._score(issued.site, issued.ordinal, _MISS, "its result is not the argument")
        for site in {issued.site for issued in mine}:
            if site.predicted >= WEIGHED:
                self._weigh(site)

    def _score(self, site: Site, ordinal: int, points: int, why: str) -> None:
        target = site.targets.get(ordinal)
        if target is None:
            return
        target.score = min(8, target.score + points)
        if target.score <= DEMOTED:
            del site.targets[ordinal]
            self.demoted.setdefault(site.region, {})[target.path] = why
            if not site.targets:
                self.settle()

    def _weigh(self, site: Site) -> None:
        """Give a site up whose predictions cost more time than the copies that they spare would have.

        Where the device is the slower of the two, what the host does meanwhile costs nothing.
        """
        saved_ns = site.nbytes / self._copy_rate() + site.predicted * site.region.copy_ns
        if site.overhead_ns > saved_ns and not site.region.device_bound:
            for target in site.targets.values():
                self.demoted.setdefault(site.region, {})[target.path] = "copying is cheaper"
            site.targets.clear()
            self.settle()
        site.predicted = site.nbytes = site.overhead_ns = 0

    def _copy_rate(self) -> float:
        """Bytes per nanosecond that the device copies, measured once."""
        if self._bytes_per_ns is None:
            source = torch.zeros(1 << 23, device=self._device)
            target = torch.empty_like(source)
            for _ in range(2):
                self._wait()
                start = perf_counter_ns()
                target.copy_(source)
                self._wait()
                elapsed = perf_counter_ns() - start
            self._bytes_per_ns = source.nbytes / max(1, elapsed)
        return self._bytes_per_ns

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    # -- patches -----------------------------------------------------------------------------------------------------

    def _patch(self, owner: object, attribute: str, rule: Rule) -> None:
        name = (id(owner), attribute)
        if name in self._patched or not hasattr(owner, attribute):
            return
        original = getattr(owner, attribute)
        inherited = attribute not in vars(owner)

        @functools.wraps(original)
        def stand_in(*args: object, **kwargs: object) -> object:
            if self.paused or get_ident() != self._thread or process_group():
                return original(*args, **kwargs)
            frame = sys._getframe(1)
            site = self._sites.get((id(frame.f_code), frame.f_lasti))
            try:
                if site is not None and site.name == name:
                    predicted = self._predict(site, args, kwargs)
                    return original(*args, **kwargs) if predicted is None else predicted
                result = original(*args, **kwargs)
            except BaseException as error:
                prune_traceback(error)
                raise
            if self._learning is not None:
                self._note(frame, rule, name, result)
            return result

        def undo() -> None:
            if getattr(owner, attribute) is not stand_in:
                _covered[stand_in] = undo  # somebody else replaced it meanwhile
                return
            if inherited:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, original)
            _covered.pop(original, lambda: None)()

        setattr(owner, attribute, stand_in)
        self._patched[name] = undo

    def settle(self) -> None:
        """Keep only the patches that sites need."""
        if self._learning is not None:
            return
        self._sites = {key: site for key, site in self._sites.items() if site.targets and site.region.entries}
        needed = {site.name for site in self._sites.values()}
        for name in [name for name in self._patched if name not in needed]:
            self._patched.pop(name)()

    def forget(self) -> None:
        """Take back every patch, forget every site."""
        self._learning = None
        self._sites.clear()
        self._made.clear()
        self._issued.clear()
        self.demoted.clear()
        self.settle()

    def stop_learning(self) -> None:
        """The cell is over."""
        self._learning = None
        self._made.clear()
        self.settle()
