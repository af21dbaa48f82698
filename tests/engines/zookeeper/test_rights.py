"""The exact rights that a user of ZooKeeper needs: to create nodes below the path of the URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import ACL, Id, make_digest_acl, make_digest_acl_credential

from engines.operations import everything
from engines.zookeeper.conftest import Connect
from holdfast import EngineUnavailable
from support.servers import shared_zookeeper

RIGHTS = {"r": 1, "w": 2, "c": 4, "d": 8, "a": 16}


@pytest.fixture
def root() -> Iterator[KazooClient]:
    client = KazooClient(shared_zookeeper().address, auth_data=[("digest", "root:toor")])
    client.start(timeout=20)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def me() -> Iterator[KazooClient]:
    """A thief of the password of the user."""
    client = KazooClient(shared_zookeeper().address, auth_data=[("digest", "me:s3cret")])
    client.start(timeout=20)
    yield client
    client.stop()
    client.close()


def given(root: KazooClient, path: str, rights: str) -> str:
    """A node of the administrator's on which the user has these rights alone; returns the URL."""
    who = Id("digest", make_digest_acl_credential("me", "s3cret"))
    ours = [ACL(sum([RIGHTS[each] for each in rights]), who)] if rights else []
    root.create(path, acl=[make_digest_acl("root", "toor", all=True), *ours])
    return f"zookeeper://me:s3cret@{shared_zookeeper().address}{path}"


@pytest.mark.parametrize("rights", ["c", "cdrw"])
def test_the_right_to_create_is_all_it_takes(
    connect: Connect, root: KazooClient, namespace: str, rights: str
) -> None:
    """More does no harm."""
    url = given(root, f"/rights-{namespace}", rights)
    everything(connect(url), connect(url))


@pytest.mark.parametrize("rights", ["", "drw", "drwa"])
def test_without_it_nothing_is_permitted_and_the_error_names_it(
    connect: Connect, root: KazooClient, namespace: str, rights: str
) -> None:
    url = given(root, f"/rights-{namespace}", rights)
    with pytest.raises(EngineUnavailable, match=r"right to create \(c\)") as refused:
        connect(url).lock("x").acquire(timeout=0)
    assert "s3cret" not in str(refused.value)


def test_outside_there_is_nothing(
    connect: Connect, root: KazooClient, me: KazooClient, namespace: str
) -> None:
    """Neither the node of the path itself, nor what is beside it."""
    prefix, beside = f"/rights-{namespace}", f"/beside-{namespace}"
    url = given(root, prefix, "c")
    given(root, beside, "")
    with connect(url).lock("x") as lease:
        lease.check()
        acts: list[Callable[[], object]] = [
            lambda: me.get(prefix),
            lambda: me.get_children(prefix),
            lambda: me.set(prefix, b"mine"),
            lambda: me.set_acls(prefix, [make_digest_acl("me", "s3cret", all=True)]),
            lambda: me.delete(f"{prefix}/{namespace}"),
            lambda: me.get(beside),
            lambda: me.create(f"{beside}/x"),
        ]
        for act in acts:
            with pytest.raises(NoAuthError):
                act()
        with pytest.raises(EngineUnavailable, match="permit"):
            connect(f"zookeeper://me:s3cret@{shared_zookeeper().address}{beside}").lock("x").acquire(
                timeout=0
            )
