"""Who may use what, on whose behalf, and what is never told."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

import holdfast
from engines.zookeeper.conftest import Connect, Hold
from holdfast import EngineUnavailable
from support.servers import shared_zookeeper

SECRET = "s3cret-of-mine"


@pytest.fixture
def prefix(namespace: str) -> str:
    return f"/auth-{namespace}"


def url_of(user: str, prefix: str) -> str:
    return f"zookeeper://{user}{shared_zookeeper().address}{prefix}"


def test_what_one_user_makes_is_closed_to_others(connect: Connect, hold: Hold, prefix: str) -> None:
    mine = connect(url_of(f"me:{SECRET}@", prefix))
    lease = hold(mine.lock("x"))
    lease.set_value(b"mine")
    for other in ("", "me:wrong@"):
        client = connect(url_of(other, prefix))
        with pytest.raises(EngineUnavailable, match="permit") as refused:
            client.lock("x").acquire()
        assert SECRET not in str(refused.value)
    again = connect(url_of(f"me:{SECRET}@", prefix))
    assert again.inspect("x").holders[0].token == lease.token
    assert again.break_lock("x", reason="mine all the same") is not None
    assert lease.wait_lost(timeout=20)


def test_a_part_of_the_tree_that_was_given_to_us(connect: Connect, hold: Hold, prefix: str) -> None:
    """Another user made it, and above it we may do nothing."""
    root = KazooClient(shared_zookeeper().address, auth_data=[("digest", "root:toor")])
    root.start(timeout=20)
    try:
        theirs = make_digest_acl("root", "toor", all=True)
        ours = make_digest_acl("me", SECRET, all=True)
        root.create(prefix, acl=[theirs])
        root.create(f"{prefix}/ours", acl=[theirs, ours])
    finally:
        root.stop()
        root.close()
    hold(connect(url_of(f"me:{SECRET}@", f"{prefix}/ours")).lock("x")).check()
    with pytest.raises(EngineUnavailable, match="permit"):
        connect(url_of(f"me:{SECRET}@", f"{prefix}/new")).lock("x").acquire()


def test_nothing_of_it_is_logged(
    connect: Connect, hold: Hold, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """kazoo logs every request, with whatever is in it."""
    with caplog.at_level(logging.NOTSET):
        client = connect(url_of(f"me:{SECRET}@", prefix))
        hold(client.lock("x"))
        client.close()
    assert SECRET not in caplog.text
    assert not [record for record in caplog.records if record.name.startswith("kazoo")]


@pytest.fixture
def live(prefix: str) -> Iterator[KazooClient]:
    """A user's own client, connected."""
    client = KazooClient(
        f"{shared_zookeeper().address}{prefix}", timeout=7.0, auth_data=[("digest", f"me:{SECRET}")]
    )
    client.start_async().wait(20)
    client.create("/", b"", makepath=True)
    yield client
    if client.connected:
        client.stop()
    client.close()


def test_a_live_client_tells_where_and_as_whom(live: KazooClient, namespace: str, prefix: str) -> None:
    with holdfast.connect(live, namespace=namespace) as locks, locks.lock("x") as lease:
        assert lease.ttl == 7.0
        assert live.get_children(f"/{namespace}/n") == ["x"], "below its own root"
        acls, _ = live.get_acls(f"/{namespace}/n/x")
        assert [acl.id.scheme for acl in acls] == ["digest"]
        assert SECRET not in repr(locks)
        assert SECRET not in locks._engine.url
        assert live.client_id is not None
        session = f"{live.client_id[0] & ((1 << 64) - 1):x}"
        assert session not in live.get_children(f"/{namespace}/s"), "its session is left alone"
    assert live.connected, "so is its connection"


def test_a_live_client_with_options(live: KazooClient, namespace: str) -> None:
    with (
        holdfast.connect(live, namespace=namespace, session_timeout=3) as locks,
        locks.lock("x") as lease,
    ):
        assert lease.ttl == 3.0
    with pytest.raises(holdfast.InvalidArgument, match="ttl"):
        holdfast.connect(live, ttl=3)
