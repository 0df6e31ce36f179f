"""What `%grape status` says: the regions that Grape knows, what became of them, and the memory of their graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..render import Report, graph_stores
from ..render.units import count, nbytes, plural
from ..render.verdict.said import LOOP
from ..streams import shared

if TYPE_CHECKING:
    from ..runtime import Interceptor, Region, RegionContext


def status_of(
    interceptor: Interceptor,
    device: str,
    report: Report | None,
    *,
    holds_stream: bool,
    applied: list[Region],
    taken: Sequence[str] = (),
) -> str:
    """`applied` are the regions that hold graphs, in the order of their numbers; the stream comes behind them, and then
    what was `taken` of source, a numbered line each.
    """
    context = interceptor.context
    regions = [region for region in interceptor.regions if region.calls]
    stream = _stream(len(applied) + 1) if holds_stream else []
    if not regions and not stream and not taken:
        return "grape: nothing observed yet; put %%grape on the first line of a slow cell"
    rehearsal = " (rehearsal): graphs are tried out, nothing gets faster" if context.backend.kind == "tape" else ""
    lines = [f"grape: {device}{rehearsal}"]
    numbers = {id(region): number for number, region in enumerate(applied, start=1)}
    for region in sorted(regions, key=lambda r: (id(r) not in numbers, numbers.get(id(r), -r.calls))):
        number = f"{numbers.get(id(region), '-'):>3}"
        state = f"stays eager ({region.refused.code}: {region.refused.why})" if region.refused else "observed"
        if region.entries:
            state = f"{count(region.replays)} replayed by {plural(len(region.entries), 'graph')}"
            state += f", {_held_beside_pool(region)}"
        calls = plural(region.calls, "iteration" if region.name.startswith(LOOP) else "call")
        lines.append(f"{number} {region.name} at {region.at}: {calls}, {state}")
    lines += [*stream, *taken]
    lines += _memory(interceptor, context, applied=bool(applied)) if regions else []
    if report is not None:
        found = [f"{f.code} {f.name} {f.at or ''}: {f.message}" for f in report.findings]
        lines += [f"found in the last run, {report.evidence.file}:", *found] if found else []
    return "\n".join(lines)


def _memory(interceptor: Interceptor, context: RegionContext, *, applied: bool) -> list[str]:
    """Lines about the memory of the graphs, store by store."""
    from ..runtime import account

    held = interceptor.undisturbed(lambda: account(context))
    if held is not None:
        return ["memory: " + line for line in graph_stores(held)]
    stores, placeholder_bytes = context.backend.memory(), context.store.nbytes
    stored = (stores.pool_bytes, placeholder_bytes, stores.executable_bytes)
    names = ("pool", "placeholders", "executables")
    device = ", ".join(f"{name} {nbytes(size)}" for name, size in zip(names, stored, strict=True))
    kept = []
    if not applied:
        kept += ["the pool is kept for the next graph until %grape reset"] if stores.pool_bytes else []
        kept += ["placeholders hold results that you keep"] if placeholder_bytes else []
    return ["; ".join([f"memory: on the device: {device}", *kept])]


def _stream(number: int) -> list[str]:
    if shared.stream is None:
        return []
    found = shared.stream.evidence()
    known = f"{plural(found.steps, 'operator')} in {plural(found.fragments, 'fragment')}, {nbytes(found.bytes)}"
    return [f"{number:>3} operator streams: {known}; {plural(found.matched, 'operator')} matched so far"]


def _held_beside_pool(region: Region) -> str:
    """The memory of a region's graphs on the device, but for the pool, which all regions share."""
    from ..runtime import account

    held = account(region.context, region)
    return nbytes(held.device_bytes - held.pool_bytes if held else sum(entry.nbytes for entry in region.entries))
