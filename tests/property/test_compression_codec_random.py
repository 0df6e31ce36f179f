"""Any bytes come back as they were; no damage gives anything but an error or the true nodes."""

from __future__ import annotations

import zlib

from hypothesis import given, settings
from hypothesis import strategies as st

from grape.runtime.compression.codec import Base, Record, RecordError


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
    assert [record.node(i) for i in range(len(new))] == new
    assert record.changed == {i for i in range(len(new)) if old[i] != new[i]}


@settings(max_examples=300)
@given(pairs(), st.data())
def test_damage_is_an_error(pair: tuple[list[bytes], list[bytes]], data: st.DataObject) -> None:
    base = Base(pair[0])
    record = bytearray(base.encode(pair[1]))
    place = data.draw(st.integers(0, len(record) - 1))
    if data.draw(st.booleans()):
        damaged = bytes(record[:place])
    else:
        record[place] ^= data.draw(st.integers(1, 255))
        damaged = bytes(record)
    try:
        Record(base, damaged)
    except RecordError:
        return
    raise AssertionError("damage was not noticed")


@settings(max_examples=300)
@given(pairs(), st.data())
def test_damage_behind_a_true_checksum_raises_nothing_else(
    pair: tuple[list[bytes], list[bytes]], data: st.DataObject
) -> None:
    """The format's own checks, without the checksum's help: an error, or some nodes, never anything worse."""
    base = Base(pair[0])
    record = bytearray(base.encode(pair[1]))
    for place in data.draw(st.lists(st.integers(20, len(record) - 1), min_size=1, max_size=4)):
        record[place] = data.draw(st.integers(0, 255))
    record[16:20] = zlib.crc32(bytes(record[8:16]) + record[6:7] + bytes(record[20:])).to_bytes(4, "little")
    try:
        opened = Record(base, bytes(record))
        assert len(opened.nodes()) == len(pair[0])
    except RecordError:
        pass
