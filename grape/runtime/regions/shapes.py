"""The shapes of a region's calls, by guard key."""

from __future__ import annotations

from ..guarding.sharing import shared, shared_key
from ..guarding.structure import Layout, Node, Static, stateful
from .specialization import Specialization

VARIANTS = 8


class Shapes(dict[object, Specialization]):
    """By the key of a call's layout and the modes it came under."""

    def __init__(self) -> None:
        super().__init__()
        self._newest: tuple[tuple[object, ...], Specialization] | None = None
        self._last_layout: tuple[object, list[str]] | None = None

    def note(self, layout: Layout, modes: tuple[object, ...], order: int) -> Specialization:
        """A new shape, for calls of this layout. What it has in common with the one before is kept once."""
        before = self._newest
        key = shared_key(layout.key, before[0] if before is not None else ())
        known: dict[tuple[int, ...], tuple[int, ...]] = {}
        sizes = (tuple(leaf.shape) for leaf in layout.leaves)
        shape = Specialization(
            shared(tuple(layout.paths), [before[1].paths] if before is not None else ()),
            tuple([known.setdefault(size, size) for size in sizes]),
            order,
            shared(modes, [before[1].modes] if before is not None else ()),
            holds_objects=bool(stateful(layout)),
        )
        self._newest = key, shape
        self[key, shape.modes] = shape
        return shape

    def changing_value(self, shape: Specialization, layout: Layout) -> str | None:
        """The path of a plain argument that has had a new value at every call, after `VARIANTS` of them."""
        last, self._last_layout = self._last_layout, (layout.root, layout.paths)
        enough = len(self) >= VARIANTS
        variants = [s for s in self.values() if enough and s.sizes == shape.sizes and s.paths == shape.paths]
        if len(variants) < VARIANTS or any(s.calls > 1 for s in variants) or last is None:
            return None
        return _first_difference(last[0], layout.root)

    def end_run(self) -> None:
        """A cell has ended: nothing of its calls is held."""
        self._last_layout = None

    def forget(self, shape: Specialization) -> None:
        """It is none of them any more: the next one is not compared with it."""
        if self._newest is not None and self._newest[1] is shape:
            self._newest = None


def _first_difference(one: object, other: object, path: str = "args") -> str | None:
    """The path of the first plain value that differs between two layouts' roots of one structure, or None."""
    if isinstance(one, Static) and isinstance(other, Static):
        same = type(one.value) is type(other.value) and (
            one.value is other.value or repr(one.value) == repr(other.value)
        )
        return None if same else path
    if not (isinstance(one, Node) and isinstance(other, Node)) or one.cls is not other.cls:
        return None
    for index, (mine, theirs) in enumerate(zip(one.children, other.children, strict=False)):
        name = one.names[index] if index < len(one.names) else index
        found = _first_difference(mine, theirs, f"{path}.{name}" if one.kind == "object" else f"{path}[{name!r}]")
        if found is not None:
            return found
    return None
