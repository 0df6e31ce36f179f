"""The modules of which a region was made, and those that nothing replays in."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch

from ...model import Position
from ...model.call import Args, Kwargs
from ..regions.context import RegionContext
from ..regions.region import Region
from .active_region import ActiveRegion
from .candidates import is_compiled
from .module_map import OfModules, parts_of

SHORT_LIVED = 4
"""Where so many modules of one class, called from one line, have died before a graph served them, the code makes them
anew each time: the next ones are let be."""
MOST_LATE = 256
"""Of modules that died in the cell so many are told of."""


class ModuleRegions:
    """Of one interceptor. `namespace` is that of the cell that runs: by its names, modules are called."""

    def __init__(self, context: RegionContext, active: ActiveRegion) -> None:
        self.context = context
        self.active = active
        self.namespace: Mapping[str, object] = {}
        self.bystanders: OfModules[bool] = OfModules()
        """Modules in which nothing replays: cells that nobody observes call them as if Grape were not there."""
        self.late: list[Region] = []
        """Of modules that died in the cell that runs."""
        self._modules: OfModules[Region] = OfModules()
        self._finalizers: OfModules[weakref.finalize[..., torch.nn.Module]] = OfModules()
        self._died: Counter[tuple[str, Position]] = Counter()

    @property
    def regions(self) -> list[Region]:
        """Those of deleted modules are there until the next cell."""
        return [*self._modules.values(), *self.late]

    @property
    def serve(self) -> bool:
        """True where there is a module in which something replays."""
        return any(self.bystanders.get(module) is None for module, _ in self._modules.items())

    def call(
        self,
        original: Callable[..., object],
        module: torch.nn.Module,
        args: Args,
        kwargs: Kwargs,
        since: int | None,
    ) -> object:
        """Make `module` the active region, which is made at its first call; `original` is its `__call__`."""
        region = self._modules.get(module)
        if region is None:
            if isinstance(module, torch.jit.ScriptModule) or is_compiled(module):
                return self.active.closed(lambda: original(module, *args, **kwargs))
            if not self.context.observing:
                if self._replays_in(module):
                    return self.active.closed(lambda: original(module, *args, **kwargs))
                self.bystanders[module] = True
                return original(module, *args, **kwargs)
            at = self._caller(Position(file="?", line=0, function="?"))
            kind = (type(module).__qualname__, at)
            if self._died[kind] >= SHORT_LIVED:
                return self.active.closed(lambda: original(module, *args, **kwargs))
            region = self._region_of(original, module, at)
            self._modules[module] = region
            finalizer = weakref.finalize(module, self._bury, region, kind)
            finalizer.atexit = False
            self._finalizers[module] = finalizer
        elif self.context.observing and region.called_in != self.context.run:
            region.called_from(self._caller(region.at))
        return self.active.enter(region, args, kwargs, since)

    def _bury(self, region: Region, kind: tuple[str, Position]) -> None:
        if not region.replays:
            self._died[kind] += 1
        if self.context.observing and len(self.late) < MOST_LATE:
            self.late.append(region)  # the report tells of it
        self.active.release_later(region)

    def find_bystanders(self, regions: Sequence[Region]) -> None:
        """The cell is over: which modules have nothing in them that replays, of `regions` of any kind."""
        callers = {region.name: region.parent for region in regions}
        around = {region.parent for region in regions if region.entries}
        for _ in callers:
            around |= {callers.get(name) for name in around if name is not None}
        self.bystanders.clear()
        for module, region in self._modules.items():
            if region.name not in around and not self._replays_in(module):
                self.bystanders[module] = True

    def _replays_in(self, module: torch.nn.Module) -> bool:
        known = [self._modules.get(one) for one in parts_of(module)]
        return any(region is not None and region.entries for region in known)

    def _region_of(self, original: Callable[..., object], module: torch.nn.Module, at: Position) -> Region:
        reference = weakref.ref(module)

        def run(*args: object, **kwargs: object) -> object:
            return original(reference(), *args, **kwargs)

        variables = [name for name, value in self.namespace.items() if value is module and not name.startswith("_")]
        name = type(module).__name__ + (f" ({variables[0]})" if variables else "")
        return Region(self.context, run, module, name, at)

    def _caller(self, otherwise: Position) -> Position:
        """The line that calls the module."""
        user, inner = self.context.tracer.positions.find()
        frame = user or inner
        return self.context.tracer.positions.at(frame) if frame is not None else otherwise

    def forget(self) -> None:
        """Forget every module."""
        for finalizer in self._finalizers.values():
            finalizer.detach()
        for known in (self._finalizers, self._modules, self._died, self.bystanders, self.late):
            known.clear()
