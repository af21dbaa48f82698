"""What the guard in Redis does without a request: its format, its keys, its script, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import HoldfastError, InvalidArgument
from holdfast.fencing import AsyncFencedRedis, FencedRedis
from holdfast.fencing.mark_text import mark_from_text, mark_text
from holdfast.fencing.redis import fence_key
from holdfast.fencing.redis_scripts import fenced_script
from holdfast.fencing.rule import Mark
from holdfast.model import Fence

__all__ = ["Untouched"]

NOW = 1_795_000_000_000_000
"""A token of 16 digits, as an engine with a clock issues them."""
NEW = Fence("s", NOW, "new")

marks = st.builds(
    Mark,
    st.sampled_from([0, 1, NOW, NOW + 1]),
    st.sampled_from(["", "s", "t:ü %"]),
    st.sampled_from(["", "a", "b:\n"]),
    st.lists(st.integers(min_value=0, max_value=NOW), max_size=3).map(lambda each: tuple(sorted(set(each)))),
)


@given(marks)
def test_a_mark_is_read_as_it_was_written(mark: Mark) -> None:
    text = mark_text(mark)
    assert text.isascii()
    assert not set(text) & set(" \n\r\t")
    assert mark_from_text(text, "here") == mark_from_text(text.encode(), "here") == mark


@pytest.mark.parametrize("text", ["", "2:1:a:s:", "1:x:a:s:", "1:1:a:s", "1:1:a:s:5:", "hello", b"\xff\xfe"])
def test_what_is_no_mark_is_never_guessed(text: str | bytes) -> None:
    with pytest.raises(HoldfastError, match=r"the key 'k' holds .* no mark of a guard"):
        mark_from_text(text, "the key 'k'")


def test_a_script_is_put_together_once() -> None:
    assert fenced_script("return 1") is fenced_script("return 1")
    assert fenced_script("return 1").sha1 != fenced_script("return 2").sha1


class Untouched:
    """A client that must not be used."""

    def execute_command(self, *words: object) -> Any:
        raise AssertionError(f"a request was sent: {words}")

    def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:
        return self.execute_command(sha, numkeys, *keys_and_args)

    def eval(self, script: Any, numkeys: int, *keys_and_args: Any) -> Any:
        return self.execute_command(script, numkeys, *keys_and_args)


class UntouchedCluster(Untouched):
    nodes_manager = None


class SomePipeline(Untouched):
    pass


@pytest.mark.parametrize("resource", ["", "x" * 513, "a\0b", 5])
def test_a_resource_that_cannot_be_one(resource: Any) -> None:
    with pytest.raises(InvalidArgument, match="resource"):
        FencedRedis(Untouched(), resource)


def test_what_is_no_client_of_the_kind() -> None:
    with pytest.raises(InvalidArgument, match="is no client of redis-py"):
        FencedRedis(cast("Any", object()), "x")
    with pytest.raises(InvalidArgument, match="a refusal would come too late"):
        FencedRedis(SomePipeline(), "x")
    with pytest.raises(InvalidArgument, match="pass it to FencedRedis"):
        AsyncFencedRedis(Untouched(), "x")


@pytest.mark.parametrize(
    ("write", "match"),
    [
        (lambda guard: guard.set("k", 1, NEW, ex=1, px=1), "give one of"),
        (lambda guard: guard.set("k", 1, NEW, ex=1, keepttl=True), "give one of"),
        (lambda guard: guard.set("k", 1, NEW, nx=True, xx=True), "give one of"),
        (lambda guard: guard.set("k", 1, NOW + 10**12), "no engine issued it"),
        (lambda guard: guard.set("k", 1, True), "no lease or token"),
        (lambda guard: guard.set("k", 1, "41"), "no lease or token"),
        (lambda guard: guard.set(guard.key, 1, NEW), "only the guard writes it"),
        (lambda guard: guard.delete(lease=NEW), "no keys are given"),
        (lambda guard: guard.hset("k", {}, NEW), "the mapping is empty"),
        (lambda guard: guard.move(""), "source is empty"),
        (lambda guard: guard.set(5, 1, NEW), "keys are text or bytes"),
        (lambda guard: guard.set(None, 1, NEW), "keys are text or bytes"),
        (lambda guard: guard.delete(["a", "b"], lease=NEW), "one argument for each"),
        (lambda guard: guard.hset("k", [("a", 1)], NEW), "no mapping"),
        (lambda guard: guard.eval(b"return 1", [], [], NEW), "not text"),
    ],
)
def test_bad_input_is_refused(write: Callable[[FencedRedis], object], match: str) -> None:
    with pytest.raises(InvalidArgument, match=match):
        write(FencedRedis(Untouched(), "invoices"))


def test_keys_of_another_slot_are_refused_before_any_request() -> None:
    guard = FencedRedis(UntouchedCluster(), "orders/{42}")
    with pytest.raises(InvalidArgument, match=r"give the key the hash tag \{42\}"):
        guard.set("total:43", 1, NEW)
    with pytest.raises(AssertionError, match="a request was sent"):
        guard.set("total:{42}", 1, NEW)


@pytest.mark.parametrize(
    ("resource", "key"),
    [
        ("invoices", b"holdfast:fence:{invoices}"),
        ("orders/{42}", b"holdfast:fence::orders/{42}"),
        ("{}", b"holdfast:fence:{{}}"),
        ("}x", b"holdfast:fence:{%}x}"),
        ("%}x", b"holdfast:fence:{%%}x}"),
    ],
)
def test_where_the_fence_of_a_resource_is(resource: str, key: bytes) -> None:
    assert fence_key(resource) == key
