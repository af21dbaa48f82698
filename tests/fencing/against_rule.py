"""What holds a guard to the rule: sequences of grants, presented to both, with every decision compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pytest
from hypothesis import strategies as st

from holdfast.errors import StaleToken
from holdfast.fencing.arguments import Presentable, mark_of
from holdfast.fencing.rule import Mark, Refuse, after, decide, moved
from holdfast.model import Fence

__all__ = ["FakeLease", "Guard", "compare_with_rule", "holder", "sequences"]


@dataclass(frozen=True)
class FakeLease:
    """What a guard reads of a lease."""

    fence: Fence
    mode: str = "exclusive"
    peers: tuple[int, ...] = ()
    name: str = "invoices"


def holder(token: int, nonce: str = "", mode: str = "exclusive") -> FakeLease:
    return FakeLease(Fence("s", token, nonce or f"nonce-{token}"), mode)


class Guard(Protocol):
    """A guard of one resource, whose content each accepted ``write`` replaces."""

    def write(self, content: bytes, presented: Presentable) -> None: ...
    def advance(self, presented: Presentable) -> None: ...
    def move(self, source: str) -> None: ...
    def stored(self) -> Mark | None: ...
    def content(self) -> bytes | None: ...


_tokens = st.integers(min_value=0, max_value=5)
_fences = st.builds(Fence, st.sampled_from(["s", "t"]), _tokens, st.sampled_from(["a", "b"]))
_leases = st.builds(FakeLease, _fences, st.just("permit"), st.lists(_tokens, max_size=3).map(tuple))
_presentables = st.one_of(_fences, _leases, _tokens)
_steps = st.one_of(
    st.tuples(st.just("write"), _presentables),
    st.tuples(st.just("write"), _presentables),
    st.tuples(st.just("advance"), _presentables),
    st.tuples(st.just("move"), st.sampled_from(["s", "t"])),
)
sequences = st.lists(_steps, max_size=12)


def compare_with_rule(guard: Guard, sequence: Sequence[tuple[str, Presentable]]) -> None:
    """The same decisions, the same mark after each, and the content of the last write that was accepted."""
    stored: Mark | None = None
    content: bytes | None = None
    for number, (verb, presented) in enumerate(sequence):
        if verb == "move":
            assert isinstance(presented, str)
            guard.move(presented)
            stored = moved(stored, presented)
        else:
            written = f"content {number}".encode()
            decision = decide(stored, mark_of(presented))
            if isinstance(decision, Refuse):
                with pytest.raises(StaleToken):
                    _present(guard, verb, written, presented)
            else:
                _present(guard, verb, written, presented)
                content = written if verb == "write" else content
            stored = after(stored, decision)
        assert guard.stored() == stored
        assert guard.content() == content


def _present(guard: Guard, verb: str, content: bytes, presented: Presentable) -> None:
    if verb == "write":
        guard.write(content, presented)
    else:
        guard.advance(presented)
