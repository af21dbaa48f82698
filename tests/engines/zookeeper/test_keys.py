"""Names of nodes: any text becomes one, and tickets are in order by theirs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engines.zookeeper.keys import (
    SEQUENCE_MODULUS,
    config_from_children,
    decode,
    encode,
    in_order,
    kind_node,
    nearest_children,
    order_of,
    ticket_node,
    tickets_from_children,
)
from holdfast.rules.tickets import LockConfig

pytestmark = pytest.mark.timeless

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)


@given(NAMES)
def test_any_name_comes_back(name: str) -> None:
    node = encode(name)
    assert decode(node) == name
    assert node.isascii()
    assert node.isprintable()
    assert "/" not in node
    assert node not in (".", "..", "zookeeper")


@given(NAMES, NAMES)
def test_different_names_are_different_nodes(one: str, other: str) -> None:
    assert (encode(one) == encode(other)) == (one == other)


@pytest.mark.parametrize("name", [".", "..", "...", "zookeeper", "a/b", "/", "%2E", "é" * 256, "\0", " "])
def test_names_that_would_not_do(name: str) -> None:
    assert decode(encode(name)) == name


@given(st.integers(min_value=1, max_value=SEQUENCE_MODULUS))
def test_a_place_is_part_of_the_nodes_name(order: int) -> None:
    node = ticket_node("exclusive", "c-1", "ab", order)
    assert order_of(node) == order
    (ticket,) = tickets_from_children("/f", "lock", [node])
    assert (ticket.order, ticket.nonce, ticket.mode, ticket.kind) == (order, "c-1", "exclusive", "lock")
    assert (ticket.handle.path, ticket.handle.session, ticket.client) == (f"/f/{node}", "ab", "c")


def test_other_nodes_are_passed_over() -> None:
    nodes = ["m_0000000004", "x_c-1_ab_0000000003", "readme", "z_c-1_ab_0000000001"]
    assert [ticket.nonce for ticket in tickets_from_children("/f", "lock", nodes)] == ["c-1"]


@given(st.integers(min_value=0, max_value=SEQUENCE_MODULUS - 1), st.integers(min_value=1, max_value=6))
def test_the_order_survives_the_end_of_the_numbers(first: int, count: int) -> None:
    """The server counts with 32 bits, and a sign."""
    numbers = [(first + step) % SEQUENCE_MODULUS for step in range(count)]
    signed = [number - SEQUENCE_MODULUS if number >= SEQUENCE_MODULUS // 2 else number for number in numbers]
    nodes = [f"x_c-{step}_ab_{number:010d}" for step, number in enumerate(signed)]
    assert [ticket.nonce for ticket in tickets_from_children("/f", "lock", reversed(nodes))] == [
        f"c-{n}" for n in range(count)
    ]
    assert in_order(tickets_from_children("/f", "lock", nodes)) == tickets_from_children("/f", "lock", nodes)


@given(
    st.lists(st.integers(1, SEQUENCE_MODULUS), min_size=1, max_size=12, unique=True),
    st.integers(0, 11),
    st.randoms(use_true_random=False),
)
def test_only_near_tickets_of_a_long_queue_matter(
    places: list[int], which: int, randomness: random.Random
) -> None:
    """The first, this one and the one before it, wherever the numbers began anew."""
    nodes = [ticket_node("exclusive", f"c-{order}", "5", order) for order in places]
    everybody = tickets_from_children("/f", "lock", nodes)
    mine = everybody[which % len(everybody)]
    randomness.shuffle(nodes)
    near = tickets_from_children(
        "/f", "lock", nearest_children(mine.nonce, [*nodes, "limit", "m_0000000001"])
    )
    before = [ticket.nonce for ticket in everybody if ticket.order < mine.order]
    assert near[0].nonce == everybody[0].nonce
    assert [ticket.nonce for ticket in near if ticket.order < mine.order][-1:] == before[-1:]
    assert mine.nonce in [ticket.nonce for ticket in near]
    assert near == everybody or len(near) <= 3 or max(places) - min(places) > SEQUENCE_MODULUS // 2


@pytest.mark.parametrize(
    "config",
    [
        LockConfig("lock"),
        LockConfig("rwlock"),
        LockConfig("semaphore", 5, 5),
        LockConfig("semaphore", 12, 12),
    ],
)
def test_what_a_name_is_is_a_node(config: LockConfig) -> None:
    assert config_from_children(["limit", kind_node(config.kind, config.declared), "value"]) == config
    assert config_from_children(["limit", "value"]) is None
