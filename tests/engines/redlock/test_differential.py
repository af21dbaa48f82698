"""The scripts of a node do what its rule does: every reply, every record, the mark, how long it is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.redis.wire import Wire, plain
from engines.redlock.mutants import MUTANTS, Mutant
from engines.redlock.twins import (
    BEGINNING,
    DATABASE,
    Deed,
    Translation,
    answered,
    bulk,
    deeds_of,
    differs,
    scripts_with,
)
from holdfast.engines.redlock.codec import _end_of_claim, encode
from holdfast.engines.redlock.keys import MARK_KEY, Keyspace
from holdfast.engines.redlock.scripts import NAMES, assemble, load
from holdfast.rules import node
from rules.node_moves import READY, NodeMove, moves, random_moves
from support.servers import shared_redis
from support.thorough import examples

SEEDS = range(200)
"""Of the sequences in which a broken script has to be noticed; most are in the first few."""


@pytest.fixture(scope="module")
def translation() -> Iterator[Translation]:
    translation = Translation(shared_redis(), scripts_with())
    yield translation
    translation.close()


def test_sequences(translation: Translation) -> None:
    @settings(max_examples=examples(400))
    @given(moves(40))
    def check(sequence: list[NodeMove]) -> None:
        assert not differs(translation, deeds_of(sequence))

    check()


# --- the mark -----------------------------------------------------------------------------------

RUNS = ("run1", "run0")
MARKS = ("", *(node.mark_text(each, 3, run) for each in ("5e7", "0d") for run in RUNS))
marks = st.sampled_from(MARKS[1:])
changes: st.SearchStrategy[node.MembershipRequest] = st.one_of(
    st.builds(node.Prime, mark=marks, was=st.sampled_from(MARKS)),
    st.builds(node.Start, mark=marks),
    st.builds(node.Trust, mark=marks, was=st.sampled_from(MARKS)),
    st.builds(node.Rejoin, mark=marks),
    st.builds(node.Admit, mark=marks, longest=st.sampled_from((0, 5, 2**50))),
)


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    wire = Wire(shared_redis(), load())
    wire.ask(b"SELECT", DATABASE)
    yield wire
    wire.close()


def test_changes_of_the_mark(wire: Wire) -> None:
    space = Keyspace("marks")

    @settings(max_examples=examples(200))
    @given(st.lists(changes, max_size=12), st.sampled_from(RUNS))
    def check(requests: list[node.MembershipRequest], run: str) -> None:
        mark = node.FRESH
        sent = [plain(b"DEL", MARK_KEY)]
        sent += [encode(space, (("", each),))[0].with_mark(bulk(f"5e7/3/{run}")) for each in requests]
        for request, raw in zip(requests, wire.ask_all(sent)[1:], strict=True):
            mark = node.change_mark(mark, request, run)
            assert answered(space, (("", request),), [raw]) == (node.Marked(mark),)

    check()


# --- pages --------------------------------------------------------------------------------------


def test_pages_of_names_and_of_fences(wire: Wire) -> None:
    wire.ask(b"FLUSHDB")
    expected = node.mark_text("5e7", 3, "run1")
    wire.ask(b"HSET", MARK_KEY, b"ready", expected.encode())
    shop, other = Keyspace("shop*"), Keyspace("shop")
    fences = {f"{i}": 10 + i for i in range(1200)} | {"é[x]": 7}
    raised = node.RaiseFences(tuple((f"shop%2A:{name}", fence) for name, fence in fences.items()))
    for page in (raised, node.RaiseFences((("shop:0", 5),)), node.RaiseFences((("shop:0", 4),))):
        assert wire.ask_all([encode(shop, (("", page),))[0].before_mark]) == [1]

    def pages(
        space: Keyspace, first: node.List | node.ListFences
    ) -> Iterator[node.NamePage | node.FencePage]:
        request, cursor = first, None
        while cursor != "":
            (packed,) = encode(space, (("", request),))
            (page,) = answered(space, (("", request),), wire.ask_all([packed.with_mark(bulk(expected))]))
            yield page
            cursor = page.cursor
            request = request._replace(cursor=cursor)

    def names(space: Keyspace, prefix: str) -> dict[str, int]:
        told = pages(space, node.List(prefix))
        return {name: r.fence for page in told if isinstance(page, node.NamePage) for name, r in page.found}

    assert names(shop, "") == fences
    assert names(shop, "é[") == {"é[x]": 7}
    assert names(other, "") == {"0": 5}
    told = {
        name: fence
        for page in pages(shop, node.ListFences())
        if isinstance(page, node.FencePage)
        for name, fence in page.fences
    }
    assert told == {f"shop%2A:{name}": fence for name, fence in fences.items()} | {"shop:0": 5}


# --- broken on purpose --------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what.replace(" ", "-"))
def test_each_broken_script_is_noticed(mutant: Mutant) -> None:
    assert any(mutant.text in assemble(name) for name in NAMES), "no script has that line any more"
    broken = Translation(shared_redis(), scripts_with(mutant.change()))
    try:
        assert any(differs(broken, deeds_of(random_moves(seed))) for seed in SEEDS), mutant.what
    finally:
        broken.close()


WRONG_ENDS: dict[str, Any] = {"ttl": 1, "client": "c", "label": "x", "metadata": ""}


@pytest.mark.parametrize("field", WRONG_ENDS)
def test_a_wrong_end_of_a_claim_is_noticed(field: str, translation: Translation) -> None:
    """The asker packs it, not the script."""

    def wrong(ask: node.Acquire) -> bytes:
        return _end_of_claim(ask._replace(**{field: WRONG_ENDS[field]}))

    with mock.patch("holdfast.engines.redlock.codec._end_of_claim", wrong):
        assert any(differs(translation, deeds_of(random_moves(seed))) for seed in SEEDS)


def test_what_is_over_is_remembered_up_to_a_bound(translation: Translation) -> None:
    asked = [Deed(BEGINNING, node.Release(f"late-{n}", 60_000_000), READY.ready) for n in range(120)]
    assert not differs(translation, asked)
