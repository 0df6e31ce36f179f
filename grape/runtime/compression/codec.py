"""A shape's node parameters as compressed differences from those of another shape, the *base*.

Parameters are opaque bytes, one string per node. Nothing looks for pointers: nodes are taken as little-endian words of
eight bytes, and a word is stored as its difference from the base's word. Where memory has moved, many words move by
the same distance, and nodes of one kernel change in the same places; so a record holds each distinct difference once
(`values`), each distinct set of places once (`patterns`), and per node a pattern and indices into the values. A node of
another length than the base's, or one whose differences occur nowhere else, is stored whole, deflated. A node that
equals the base's costs nothing.

A record is one string of bytes, for a region may have a thousand shapes. It never leaves the process, so nothing in it
is checked. Integers are little-endian:

    width of an index u32 (1, 2, 4) | changed nodes u32 | whole nodes u32 | patterns u32 | values u32 | places u32
    | indices u32 | deflated values u32
    changed node numbers u32[] | their patterns u16[] or u32[] (as wide as needed, at least 2)
    pattern ends u32[] | places u32[] | indices u8/u16/u32[] | values, deflated: eight planes of bytes
    whole node numbers u32[] | ends of their deflated bytes u32[] | those bytes
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_COUNTS = struct.Struct("<8I")
_WORD = np.dtype("<u8")
_NUMBER = np.dtype("<u4")

_Words = NDArray[np.uint64]


class Base:
    """The node parameters that records of one topology class differ from. `nodes` is in the graph's node order."""

    def __init__(self, nodes: Sequence[bytes]) -> None:
        self.nodes = tuple(nodes)
        lengths = (np.array([len(node) for node in self.nodes], dtype=np.int64) + 7) // 8
        self.starts: NDArray[np.int64] = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
        """Of each node, in words."""
        self.words = _words(self.nodes)

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters, without what Python adds."""
        return sum(map(len, self.nodes))

    def encode(self, nodes: Sequence[bytes]) -> bytes:
        """The record of a shape with these parameters. Raises ValueError if it has another number of nodes."""
        if len(nodes) != len(self.nodes):
            raise ValueError(f"{len(nodes)} nodes cannot be stored as differences from {len(self.nodes)}")
        pairs = list(zip(self.nodes, nodes, strict=True))
        whole = {i for i, (old, new) in enumerate(pairs) if len(old) != len(new)}
        differences = _words([new if len(old) == len(new) else old for old, new in pairs]) - self.words
        places = np.flatnonzero(differences)
        owners = np.searchsorted(self.starts, places, side="right") - 1
        lonely = _lonely(owners, differences[places])
        if lonely.size:
            whole.update(lonely.tolist())
            kept = ~np.isin(owners, lonely)
            places, owners = places[kept], owners[kept]
        return self._pack(nodes, sorted(whole), places, owners, differences[places])

    def _pack(
        self,
        nodes: Sequence[bytes],
        whole: Sequence[int],
        places: NDArray[np.int64],
        owners: NDArray[np.int64],
        differences: _Words,
    ) -> bytes:
        values, indices = np.unique(differences, return_inverse=True)
        changed, first = np.unique(owners, return_index=True)
        within = (places - self.starts[owners]).astype(_NUMBER)
        patterns: dict[bytes, int] = {}
        chosen = [
            patterns.setdefault(within[start:stop].tobytes(), len(patterns))
            for start, stop in pairwise([*first.tolist(), len(within)])
        ]
        width = 1 if len(values) <= 1 << 8 else 2 if len(values) <= 1 << 16 else 4
        planes = zlib.compress(np.ascontiguousarray(values.astype(_WORD).view(np.uint8).reshape(-1, 8).T).tobytes())
        bodies = [zlib.compress(nodes[i]) for i in whole]
        body = b"".join(
            [
                changed.astype(_NUMBER).tobytes(),
                np.array(chosen, dtype=_pattern_type(len(patterns))).tobytes(),
                _ends(len(pattern) // 4 for pattern in patterns),
                *patterns,
                indices.astype(f"<u{width}").tobytes(),
                planes,
                np.array(whole, dtype=_NUMBER).tobytes(),
                _ends(map(len, bodies)),
                *bodies,
            ]
        )
        stored = sum(map(len, patterns)) // 4
        counts = len(changed), len(whole), len(patterns), len(values), stored, len(indices), len(planes)
        return _COUNTS.pack(width, *counts) + body


class Record:
    """An encoded shape, opened for reading: `data` is what `base` has encoded.

    `changed` are the numbers of the nodes that differ from the base.
    """

    def __init__(self, base: Base, data: bytes) -> None:
        self._base = base
        reader = _Reader(data)
        width, changed, whole, patterns, values, places, indices, deflated = _COUNTS.unpack(reader.take(_COUNTS.size))
        self._numbers = reader.numbers(changed, _NUMBER)
        self._chosen = reader.numbers(changed, _pattern_type(patterns))
        ends: NDArray[np.int64] = np.concatenate([[0], reader.numbers(patterns, _NUMBER)]).astype(np.int64)
        self._pattern_ends = ends
        self._places = reader.numbers(places, _NUMBER)
        self._indices = reader.numbers(indices, np.dtype(f"<u{width}"))
        self._values = _unplane(reader.take(deflated), values)
        sizes = np.diff(ends)[self._chosen]
        self._starts = np.cumsum(sizes) - sizes
        whole_numbers = reader.numbers(whole, _NUMBER).tolist()
        cuts = [0, *reader.numbers(whole, _NUMBER).tolist()]
        bodies = reader.rest()
        self._whole = dict(zip(whole_numbers, (bodies[a:b] for a, b in pairwise(cuts)), strict=True))
        self.changed = frozenset([*self._numbers.tolist(), *whole_numbers])

    def nodes(self) -> tuple[bytes, ...]:
        """All parameters, in node order."""
        changes = self.changes()
        return tuple(changes.get(number, old) for number, old in enumerate(self._base.nodes))

    def changes(self) -> dict[int, bytes]:
        """The parameters of the nodes that differ from the base, by number."""
        base = self._base
        sizes = np.diff(self._pattern_ends)[self._chosen]
        first = np.repeat(self._pattern_ends[self._chosen] - self._starts, sizes)
        places = self._places[first + np.arange(len(first))].astype(np.int64)
        words = base.words.copy()
        words[places + np.repeat(base.starts[self._numbers], sizes)] += self._values[self._indices]
        everything, starts = words.tobytes(), (base.starts * 8).tolist()
        found = {
            number: everything[starts[number] : starts[number] + len(base.nodes[number])]
            for number in self._numbers.tolist()
        }
        return found | {number: zlib.decompress(deflated) for number, deflated in self._whole.items()}


class _Reader:
    """Takes one section after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    def take(self, nbytes: int) -> memoryview:
        self._at += nbytes
        return self._data[self._at - nbytes : self._at]

    def numbers(self, count: int, kind: np.dtype[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
        return np.frombuffer(self.take(count * kind.itemsize), dtype=kind)

    def rest(self) -> memoryview:
        return self._data[self._at :]


def _words(nodes: Sequence[bytes]) -> _Words:
    return np.frombuffer(b"".join(node + bytes(-len(node) % 8) for node in nodes), dtype=_WORD)


def _lonely(owners: NDArray[np.int64], differences: _Words) -> NDArray[np.int64]:
    """Nodes with mostly differences that occur once in the record: a table of them would only make them longer."""
    if not differences.size:
        return owners
    _, indices, counts = np.unique(differences, return_inverse=True, return_counts=True)
    nodes, first = np.unique(owners, return_index=True)
    single = np.add.reduceat((counts[indices] == 1).astype(np.int64), first)
    total = np.diff(np.append(first, len(owners)))
    return nodes[(single * 2 > total) & (total >= 8)]


def _pattern_type(patterns: int) -> np.dtype[np.unsignedinteger]:
    return np.dtype("<u2") if patterns <= 1 << 16 else _NUMBER


def _ends(lengths: Iterable[int]) -> bytes:
    return np.cumsum(np.fromiter(lengths, dtype=np.int64)).astype(_NUMBER).tobytes()


def _unplane(deflated: memoryview, count: int) -> _Words:
    """The table of values from its planes of bytes: the high ones are nearly all alike, and deflate to nothing."""
    planes = zlib.decompress(deflated)
    return np.ascontiguousarray(np.frombuffer(planes, dtype=np.uint8).reshape(8, count).T).reshape(-1).view(_WORD)
