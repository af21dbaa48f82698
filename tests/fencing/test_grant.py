"""The text of a grant: what is written is read back, and nothing else is read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidArgument
from holdfast.fencing.grant import MAX_TEXT, Grant, fence_text, parse_fence
from holdfast.model import Fence

tokens = st.integers(min_value=0, max_value=2**63 - 1)
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=60)
modes = st.sampled_from(["", "exclusive", "read", "write", "permit"])


@given(words, tokens, words, modes, st.sets(tokens, max_size=5))
def test_what_is_written_is_read_back(
    source: str, token: int, nonce: str, mode: str, peers: set[int]
) -> None:
    text = fence_text(source, token, nonce, mode, peers)
    assert text.isascii()
    assert not set(text) & set(" \t\n\"'$`\\")
    assert parse_fence(text) == Grant(Fence(source, token, nonce), mode, tuple(sorted(peers)))


def test_the_format_is_pinned() -> None:
    assert fence_text("redis:a/0/shop/in voices", 34, "c:7") == "1:34:c%3A7:redis%3Aa/0/shop/in%20voices::"
    assert fence_text("s", 9, "n", "permit", [7, 5, 7]) == "1:9:n:s:permit:5,7"


MALFORMED = [
    "",
    "34",
    "1:34:n:s",
    "1:34:n:s:",
    "2:34:n:s::",
    "1:034:n:s::",
    "1:-1:n:s::",
    "1:34::s::",
    "1:34:n:::",
]
MALFORMED += [
    "1:34:n:s:other:",
    "1:34:n:s::7,5",
    "1:34:n:s::5,5",
    "1:34:n:s::,5",
    "1:34:n:s::5,",
    "1:34:n:s::05",
]
MALFORMED += ["1:34:n:s::\n", " 1:34:n:s::", "1:34:n:s s::", "1:34:n%3a:s::", "1:34:%6E:s::", "1:34:%FF:s::"]
MALFORMED += ["1:34:n%00:s::", "1:34:n:ü::", "1:٣٤:n:s::", f"1:{2**63}:n:s::", f"1:{'9' * 5000}:n:s::"]
MALFORMED += [f"1:34:n:s::{2**63}", "1:34:n:" + "s" * MAX_TEXT + "::"]


@pytest.mark.parametrize(
    "text",
    MALFORMED,
    ids=lambda text: ascii(text[:24]),
)
def test_whatever_is_not_written_so_is_refused_in_a_short_message(text: str) -> None:
    with pytest.raises(InvalidArgument, match="HOLDFAST_FENCE") as caught:
        parse_fence(text)
    assert len(str(caught.value)) < 400


@given(
    st.text(max_size=40) | st.from_regex(r"1:[0-9]{1,3}:[a-z%0-9]{1,6}:[a-z%0-9]{1,6}:(read)?:[0-9,]{0,6}")
)
def test_any_text_is_a_grant_with_this_one_text_or_invalid(text: str) -> None:
    try:
        grant = parse_fence(text)
    except InvalidArgument:
        return
    fence = grant.fence
    assert fence_text(fence.source, fence.token, fence.nonce, grant.mode, grant.peers) == text


BAD: list[tuple[Any, ...]] = [("", 1, "n"), ("s", 1, ""), ("s", -1, "n"), ("s", True, "n"), ("s", 2**63, "n")]
BAD += [("s", "1", "n"), ("s\0", 1, "n"), ("\ud800", 1, "n"), (None, 1, "n"), ("s", 1, "n", "both")]
BAD += [("s" * MAX_TEXT, 1, "n"), ("s", 1, "n", "permit", [-1])]


@pytest.mark.parametrize("parts", BAD, ids=lambda parts: ascii(parts)[:30])
def test_what_has_no_text(parts: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidArgument):
        fence_text(*parts)


def test_from_the_environment() -> None:
    assert Grant.from_environ({"HOLDFAST_FENCE": "1:34:n:s::"}) == Grant(Fence("s", 34, "n"))
    with pytest.raises(InvalidArgument, match="holdfast run"):
        Grant.from_environ({})
