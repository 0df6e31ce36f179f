"""Any bytes come back as they were."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from grape.runtime.compression.codec import Base, Record


@st.composite
def pairs(draw: st.DrawFn) -> tuple[list[bytes], list[bytes]]:
    """Nodes of a base and of a shape: equal, edited in places, moved by one distance, of other lengths, unrelated."""
    base = draw(st.lists(st.binary(max_size=80), max_size=8))
    distance = draw(st.integers(0, 2**64 - 1))
    new = []
    for node in base:
        change = draw(st.sampled_from(["equal", "edited", "moved", "longer", "shorter", "other"]))
        edited = bytearray(node)
        if change == "edited" and node:
            for place in draw(st.lists(st.integers(0, len(node) - 1), max_size=5)):
                edited[place] = draw(st.integers(0, 255))
        elif change == "moved":
            for start in range(0, len(node) - 7, draw(st.sampled_from([8, 16]))):
                word = int.from_bytes(node[start : start + 8], "little") + distance
                edited[start : start + 8] = (word % 2**64).to_bytes(8, "little")
        elif change == "longer":
            edited += draw(st.binary(min_size=1, max_size=20))
        elif change == "shorter":
            del edited[len(node) // 2 :]
        elif change == "other":
            edited = bytearray(draw(st.binary(max_size=80)))
        new.append(bytes(edited))
    return base, new


@settings(max_examples=300)
@given(pairs())
def test_round_trip(pair: tuple[list[bytes], list[bytes]]) -> None:
    old, new = pair
    base = Base(old)
    record = Record(base, base.encode(new))
    assert record.nodes() == tuple(new)
    assert record.changes() == {i: one for i, one in enumerate(new) if one != old[i]}
    assert record.changed == {i for i in range(len(new)) if old[i] != new[i]}
