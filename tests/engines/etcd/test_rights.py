"""The exact rights that a user of etcd needs: readwrite on the prefix, and nothing else."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator

import pytest

import holdfast.aio
from engines.etcd.conftest import Connect
from engines.operations import everything
from holdfast import EngineUnavailable
from holdfast.engines.etcd import connection as connection_threads
from holdfast.engines.etcd import wire_pb2 as wire
from holdfast.engines.etcd.handshake import Member
from holdfast.engines.etcd.keys import end_of
from holdfast.engines.etcd.rpc import RpcError
from holdfast.lab.servers import Etcd

USERS = {"app": "holdfast/", "narrow": "holdfast/mine/", "reader": "holdfast/", "writer": "holdfast/"}
KINDS = {"reader": "READ", "writer": "WRITE"}


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.fixture(scope="module")
def guarded() -> Iterator[Etcd]:
    """Each user has one role with one right, as documented."""
    with Etcd(users={"root": "toor"}) as server:
        for user, prefix in USERS.items():
            key = prefix.encode()
            right = {"permType": KINDS.get(user, "READWRITE"), "key": b64(key), "range_end": b64(end_of(key))}
            server.call("/v3/auth/role/add", {"name": user})
            server.call("/v3/auth/role/grant", {"name": user, "perm": right})
            server.call("/v3/auth/user/add", {"name": user, "password": "s3cret"})
            server.call("/v3/auth/user/grant", {"user": user, "role": user})
        yield server


def url_of(server: Etcd, user: str, prefix: str = "") -> str:
    return f"etcd://{user}:s3cret@{server.address}{prefix}"


@pytest.mark.parametrize("user", ["app", "narrow"])
def test_readwrite_on_the_prefix_is_all_it_takes(guarded: Etcd, connect: Connect, user: str) -> None:
    """On that of the namespace alone, too."""
    first = connect(url_of(guarded, user), namespace="mine")
    everything(first, connect(url_of(guarded, user), namespace="mine"))


def test_the_same_for_asyncio(guarded: Etcd) -> None:
    async def run() -> None:
        url = url_of(guarded, "app")
        async with (
            holdfast.aio.connect(url, namespace="a") as one,
            holdfast.aio.connect(url, namespace="a") as two,
        ):
            lease = await one.lock("x").acquire(timeout=5)
            assert lease is not None
            await lease.set_value(b"value")
            assert await two.lock("x").acquire(timeout=0.2) is None
            assert [info.name for info in await two.list()] == ["x"]
            assert await two.break_lock("x", reason="to see") is not None

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize(
    ("user", "prefix", "namespace"),
    [
        ("app", "/other", "mine"),
        ("app", "/holdfast2", "mine"),
        ("narrow", "", "other"),
        ("reader", "", "mine"),
        ("writer", "", "mine"),
    ],
)
def test_less_is_too_little_and_outside_there_is_nothing(
    guarded: Etcd, connect: Connect, user: str, prefix: str, namespace: str
) -> None:
    client = connect(url_of(guarded, user, prefix), namespace=namespace)
    with pytest.raises(EngineUnavailable, match="readwrite") as refused:
        client.lock("x").acquire(timeout=0)
    told = str(refused.value)
    assert f"grant-permission ROLE readwrite {prefix.strip('/') or 'holdfast'}/ --prefix=true" in told
    assert "s3cret" not in told


def test_the_user_can_do_nothing_else(guarded: Etcd) -> None:
    member = Member(guarded.address, guarded.host, guarded.port, None)
    connection = connection_threads.Subchannel(member)
    try:
        login = wire.AuthenticateRequest(name="app", password="s3cret")
        token = (("token", connection.call("Authenticate", login, 5.0, ()).token),)
        connection.call("Put", wire.PutRequest(key=b"holdfast/x"), 5.0, token)
        for method, request in (
            ("Put", wire.PutRequest(key=b"holdfast")),
            ("Put", wire.PutRequest(key=b"holdfast0")),
            ("Range", wire.RangeRequest(key=b"\0", range_end=b"\0")),
            ("DeleteRange", wire.DeleteRangeRequest(key=b"a", range_end=b"z")),
        ):
            with pytest.raises(RpcError) as failure:
                connection.call(method, request, 5.0, token)
            assert failure.value.code == "PERMISSION_DENIED"
    finally:
        connection.close()
