"""Records of node parameters: what they cost, and what they read."""

from __future__ import annotations

import random
import struct

import pytest

from grape.runtime.compression.codec import Base, Record

KINDS = 26


def decode_step(length: int, *, nodes: int = 312, mean: int = 700, distances: int = 400) -> list[bytes]:
    """Parameters as those of GPT-2's step lie there: as many nodes and bytes, and about 9% that differ by length.

    Kernels of a few kinds repeat; memory has moved by one of `distances` distances; some scalars follow the length.
    """
    layout = random.Random(11)
    kinds = []
    for _ in range(KINDS):
        size = int(mean * layout.choice([0.3, 0.5, 0.8, 1.2, 2.2])) // 4 * 4
        words = list(range(0, size - 8, 8))
        moving = layout.sample(words, len(words) * 38 // 100)
        content = bytes(layout.choice([0, 0, 0, 1, layout.randrange(256)]) for _ in range(size))
        kinds.append((content, moving[: len(moving) * 3 // 4], moving[len(moving) * 3 // 4 :]))
    moved = random.Random(length)
    offsets = [moved.randrange(1 << 24) // 512 * 512 for _ in range(distances)]
    found = []
    for number in range(nodes):
        content, pointers, scalars = kinds[number % KINDS]
        node = bytearray(content)
        for place in pointers:
            buffer = layout.randrange(100_000)
            struct.pack_into("<Q", node, place, 0x7F3200000000 + buffer * 512 + offsets[buffer % distances])
        for place in scalars:
            struct.pack_into("<I", node, place, length * layout.choice([1, 2, 64, 768]))
        found.append(bytes(node))
    return found


@pytest.mark.parametrize("distances", [40, 400, 4000])
def test_a_decode_step_fits_in_32_kilobytes(distances: int) -> None:
    base, new = decode_step(64, distances=distances), decode_step(65, distances=distances)
    total = sum(map(len, base))
    differing = sum(a != b for old, now in zip(base, new, strict=True) for a, b in zip(old, now, strict=True))
    assert 180_000 < total < 240_000 and 0.08 < differing / total < 0.12, (total, differing / total)
    data = Base(base).encode(new)
    assert len(data) < 32 * 1024
    assert Record(Base(base), data).nodes() == tuple(new)


def test_nodes_that_equal_the_base_cost_nothing() -> None:
    nodes = decode_step(64)
    base = Base(nodes)
    empty = base.encode(nodes)
    assert len(empty) < 100
    assert Record(base, empty).changed == frozenset()
    changed = list(nodes)
    changed[200] = bytes([changed[200][0] ^ 1]) + changed[200][1:]
    record = Record(base, base.encode(changed))
    assert record.changed == {200}
    assert len(base.encode(changed)) < len(empty) + 40


def test_opaque_bytes_cost_no_more_than_they_are() -> None:
    random.seed(5)
    base = Base([random.randbytes(600) for _ in range(100)])
    assert len(base.encode([random.randbytes(600) for _ in range(100)])) < 100 * (600 + 40)


def test_misuse() -> None:
    base = Base([b"a", b"b"])
    with pytest.raises(ValueError, match="3 nodes"):
        base.encode([b"a", b"b", b"c"])
