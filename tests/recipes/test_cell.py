"""What a cell stores beside the user's bytes, and what its latest writes tell of a lost reply."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidArgument
from holdfast.recipes.cell import (
    WRITES_KEPT,
    Contents,
    Write,
    addition,
    decode,
    encode,
    is_applied,
    number_of,
    version_of,
)

WRITES = st.lists(
    st.builds(Write, st.binary(min_size=8, max_size=8), st.integers(0, 2**53)), max_size=WRITES_KEPT
).map(tuple)


@given(st.binary(), WRITES, st.integers(1, 2**53))
def test_what_is_stored_is_read_again(data: bytes, writes: tuple[Write, ...], version: int) -> None:
    assert decode(version, encode(data, writes)) == Contents(version, data, writes)


def test_a_counter_has_an_end() -> None:
    assert number_of("hits", addition("hits", 2**10_000 - 1)(None)) == 2**10_000 - 1
    with pytest.raises(InvalidArgument, match="'hits' holds numbers of at most 10000 bits"):
        addition("hits", 1)(b"%d" % (2**10_000 - 1))
    with pytest.raises(InvalidArgument, match="bits"):
        addition("hits", -(10**5000))(None)


def test_only_the_latest_writes_are_kept() -> None:
    writes = tuple([Write(b"%08d" % number, number) for number in range(WRITES_KEPT + 5)])
    assert decode(7, encode(b"", writes)).writes == writes[5:]


@pytest.mark.parametrize("stored", [b"", b"\1", b"\2\0data", b"\1\2" + bytes(31)])
def test_other_bytes_are_refused(stored: bytes) -> None:
    with pytest.raises(ValueError, match="cell"):
        decode(1, stored)


def test_whether_a_write_was_applied() -> None:
    mine = Write(b"mine----", 10)
    assert is_applied(Contents(10, b"", (Write(b"other---", 9),)), mine) is False, "not yet, and now refused"
    assert is_applied(Contents(11, b"", (Write(b"other---", 10),)), mine) is False
    assert is_applied(Contents(11, b"", (mine,)), mine) is True
    assert is_applied(Contents(13, b"", (mine, Write(b"other---", 12))), mine) is True
    assert is_applied(Contents(99, b"", (Write(b"other---", 98),)), mine) is None, "too long ago to tell"


def test_the_version_of_a_write_that_others_followed() -> None:
    mine, next_one = Write(b"mine----", 10), Write(b"other---", 12)
    assert version_of(Contents(12, b"", (mine,)), mine) == 12
    assert version_of(Contents(15, b"", (mine, next_one)), mine) == 12
