"""The columns of the evaluation: ways to run a cell. Each is switched on for its runs, and off for those beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.utils._pytree import tree_map

from .by_hand import Placeholders
from .job import Job, NotPossible, Size

__all__ = ["ABLATIONS", "COLUMNS", "OPTIONAL", "Column", "Variant"]


@dataclass(kw_only=True)
class Variant:
    """How one row runs in one column: `head` is the line before each cell."""

    job: Job
    names: dict[str, Any]
    cells: list[str]
    head: str = ""
    prepare: Callable[[], None] = lambda: None
    """Comes before the first run, and counts as part of it."""
    switch: Callable[[bool], None] = lambda on: None
    after: Callable[[], dict[str, Any]] = dict
    """What else is to be told, once all runs are over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """`make` gets the job of the plain runs and a size to build another with."""

    name: str
    what: str
    make: Callable[[Job, Callable[[Size], Job], Size, Any], Variant]
    is_grape: bool = False


# -- graphs by hand ---------------------------------------------------------------------------------------------------


def by_hand(plain: Job, build: Callable[[Size], Job], size: Size, shell: Any) -> Variant:
    """An own job: its optimizer keeps its count of steps on the device, which the plain one does not."""
    if isinstance(plain.by_hand, str):
        raise NotPossible(plain.by_hand)
    torch.manual_seed(0)
    job = build(replace(size, by_hand=True))
    if job.by_hand is not None:
        assert not isinstance(job.by_hand, str)
        names, cells = job.by_hand()
        return Variant(job=job, names={**job.names, **names}, cells=cells)
    if "inputs" in job.names:
        job.names["inputs"] = plain.names["inputs"]
    job.names["step"](*job.names["inputs"][0])  # what its optimizer keeps is not the graphs'
    step = Placeholders(job.names["step"], size)
    return Variant(
        job=job,
        names={**job.names, "step": step},
        cells=job.cells,
        prepare=lambda: [step.prepare(*given) for given in job.names["inputs"]] and None,
    )


# -- torch.compile ----------------------------------------------------------------------------------------------------


def compiled(
    plain: Job, build: Callable[[Size], Job], size: Size, shell: Any, *, graphs: bool = False, **options: Any
) -> Variant:
    """Modules are compiled in place, a function under its name. With graphs their results are copied before the next
    call, as the documentation of torch wants where somebody keeps them."""
    if not plain.modules and plain.function is None:
        raise NotPossible("nothing that could be compiled")
    torch._dynamo.reset()
    names = plain.names
    if plain.function is not None:
        plain.names[plain.function] = shell.user_ns[plain.function]
        function: Any = torch.compile(shell.user_ns[plain.function], **options)
        names = {**plain.names, plain.function: _kept(function) if graphs else function}
        return Variant(job=plain, names=names, cells=plain.cells, after=_counted)
    compiled_calls: list[Any] = [torch.compile(_forward_of(module), **options) for module in plain.modules]
    calls = [_kept(call) if graphs else call for call in compiled_calls]

    def switch(on: bool) -> None:
        for module, call in zip(plain.modules, calls, strict=True):
            module._compiled_call_impl = call if on else None

    switch(False)
    return Variant(job=plain, names=names, cells=plain.cells, switch=switch, after=_counted)


def _forward_of(module: nn.Module) -> Callable[..., Any]:
    """`module.compile()` compiles nothing where its `forward` is torch's own, as that of `nn.Sequential`."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return module.forward(*args, **kwargs)

    return forward


def _kept(call: Callable[..., Any]) -> Callable[..., Any]:
    def kept(*args: Any, **kwargs: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        found = call(*args, **kwargs)
        if torch.is_grad_enabled():
            return found
        cache = kwargs.get("past_key_values")
        if cache is None:
            return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, found)
        for part in (cache, *(getattr(cache, f"{kind}_attention_cache", None) for kind in ("self", "cross"))):
            for layer in getattr(part, "layers", ()):
                layer.keys, layer.values = layer.keys.clone(), layer.values.clone()
        return found.__class__(logits=found.logits.clone(), past_key_values=cache)

    return kept


def _counted() -> dict[str, Any]:
    from torch._dynamo.utils import counters

    return {"graph_breaks": sum(counters["graph_break"].values()), "graphs": counters["stats"].get("unique_graphs", 0)}


# -- Grape ------------------------------------------------------------------------------------------------------------


def grape(
    plain: Job,
    build: Callable[[Size], Job],
    size: Size,
    shell: Any,
    *,
    engine: str = "auto",
    options: str = "",
    without: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    compile_too: bool = False,
) -> Variant:
    from programs import Serving

    from grape.magics import load

    load(shell)
    serving, held = Serving(), contextlib.ExitStack()
    held.enter_context(without())
    under = compiled(plain, build, size, shell) if compile_too else None
    names = under.names if under is not None else plain.names

    def switch(on: bool) -> None:
        serving.set(on)
        if under is not None:
            under.switch(on)

    def after() -> dict[str, Any]:
        import grape as package
        from grape.render.verdict.next_step import next_step

        report = package.last
        return {**told(report.to_dict()), "next": next_step(report)} if report is not None else {}

    return Variant(
        job=plain,
        names=names,
        cells=plain.cells,
        head=f"%%grape --no-widget --engine {engine} {options}".rstrip() + "\n",
        switch=switch,
        after=after,
    )


def told(report: dict[str, Any]) -> dict[str, Any]:
    """The gist of the last report: what served, what was refused, what is advised."""
    regions = [
        {key: region.get(key) for key in ("name", "outcome", "reason", "calls", "replays", "copied_bytes_per_call")}
        for region in report["regions"]
    ]
    streams = [
        {key: stream.get(key) for key in ("operators", "matched", "segments", "diverged", "as_written")}
        for stream in report["streams"]
    ]
    findings = [f"{one['code']} {one['message']}" for one in report["findings"]]
    gist = {"verdict": report["verdict"], "plain_ms": report["cell"]["plain_ms"]}
    return {**gist, "regions": regions[:8], "streams": streams[:2], "findings": findings[:6]}


@contextlib.contextmanager
def without_alias_prediction() -> Iterator[None]:
    from grape.runtime.alias.predictor import Predictor

    with patch.object(Predictor, "learn", lambda self, region: None):
        yield


@contextlib.contextmanager
def without_shared_executables() -> Iterator[None]:
    """Every shape may have an executable of its own."""
    from grape.runtime.compression import store

    with patch.object(store, "EXECUTABLES", 1 << 30):
        yield


def _column(name: str, what: str, make: Callable[..., Variant], *, is_grape: bool = False, **options: Any) -> Column:
    def bound(plain: Job, build: Callable[[Size], Job], size: Size, shell: Any) -> Variant:
        return make(plain, build, size, shell, **options)

    return Column(name=name, what=what, make=bound, is_grape=is_grape)


_ALL = [
    _column("grape", "Grape as shipped", grape, is_grape=True),
    _column("by_hand", "CUDA graphs by hand, with placeholders", by_hand),
    _column("reduce_overhead", "torch.compile, reduce-overhead", compiled, graphs=True, mode="reduce-overhead"),
    _column("regions", "Grape, regions only", grape, is_grape=True, engine="regions"),
    _column("streams", "Grape, streams only", grape, is_grape=True, engine="streams"),
    _column("compiled", "torch.compile, default", compiled),
    _column(
        *("dynamic", "torch.compile, reduce-overhead, dynamic", compiled),
        **{"graphs": True, "mode": "reduce-overhead", "dynamic": True},
    ),
    _column("over_compiled", "Grape over torch.compile", grape, is_grape=True, compile_too=True),
    _column(
        *("no_alias", "regions without alias prediction", grape),
        **{"is_grape": True, "engine": "regions", "without": without_alias_prediction},
    ),
    _column(
        *("no_compression", "regions, an executable for each shape", grape),
        **{"is_grape": True, "engine": "regions", "without": without_shared_executables},
    ),
    _column("predication", "regions with the rewrites", grape, is_grape=True, engine="regions", options="--rewrite"),
]
COLUMNS = {column.name: column for column in _ALL}
"""In order of importance."""
ABLATIONS = ("no_alias", "no_compression", "predication")
"""Columns that only some rows have."""
OPTIONAL = ("compiled", "dynamic", "over_compiled")
"""Columns that take long to build and are measured only where they are named."""
