"""The value of a leader: what travels with the grant, what is stored, and what is shown of both."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.arguments import METADATA_BYTES_MAX
from holdfast.errors import LockLost
from holdfast.model import Leader
from holdfast.recipes import election as recipe
from holdfast.rules.record import NEVER_US, Holder, Record, StoredValue
from holdfast.rules.requests import Snapshot

SHORT = recipe.VALUE_IN_GRANT_MAX


def seen(value: bytes, stored: StoredValue | None = None) -> Leader | None:
    holder = Holder(
        "nonce",
        "client",
        "host/1/main",
        "exclusive",
        7,
        0.0,
        30.0,
        30.0,
        True,
        None,
        recipe.metadata_of(value),
    )
    return recipe.leader_of(Snapshot(Record("lock", 7, (holder,), value=stored), 1.0))


@given(st.binary(max_size=SHORT) | st.text(max_size=SHORT // 4).map(str.encode))
def test_a_short_value_travels_with_the_grant(value: bytes) -> None:
    carried = recipe.metadata_of(value)
    assert sum(len(key) + len(text.encode()) for key, text in carried.items()) < METADATA_BYTES_MAX
    assert "\0" not in "".join(carried.values()), "not every engine stores it"
    assert seen(value) == Leader(value, 7, "host/1/main")


def test_a_value_is_readable_where_it_is_text() -> None:
    assert recipe.metadata_of(b"host-1:8080") == {"value": "host-1:8080"}
    assert recipe.metadata_of(b"") == {}


def test_a_stored_value_is_shown_with_the_term_that_stored_it_alone() -> None:
    mine, earlier = StoredValue(b"new", 7, NEVER_US), StoredValue(b"old", 6, NEVER_US)
    assert seen(b"first", mine) == Leader(b"new", 7, "host/1/main")
    assert seen(b"first", earlier) == Leader(b"first", 7, "host/1/main")
    assert seen(b"", StoredValue(b"", 7, NEVER_US)) == Leader(b"", 7, "host/1/main")


def test_no_leader_is_shown_before_its_value() -> None:
    assert seen(bytes(SHORT + 1)) is None
    assert seen(bytes(SHORT + 1), StoredValue(b"old", 6, NEVER_US)) is None
    assert seen(bytes(SHORT + 1), StoredValue(b"new", 7, NEVER_US)) == Leader(b"new", 7, "host/1/main")
    assert recipe.leader_of(Snapshot(Record("lock", 7, value=StoredValue(b"old", 7, NEVER_US)), 1.0)) is None


@pytest.mark.parametrize(("name", "token", "is_it"), [("x", 7, True), ("x", 8, False), ("y", 7, False)])
def test_the_loss_of_a_term_is_distinguished_from_other_losses(name: str, token: int, is_it: bool) -> None:
    from holdfast.engines.memory import GUARANTEES

    election = recipe.Election(GUARANTEES, "x", b"", 30.0, 0.0)
    error = LockLost("lost")
    error.name, error.token = name, token
    assert recipe.fails_by_loss(error, election, 7) is is_it
    assert not recipe.fails_by_loss(None, election, 7)
