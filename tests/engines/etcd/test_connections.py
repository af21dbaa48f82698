"""Who we are, how the connection is protected, and what a fork does to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.aio
from engines.etcd.conftest import Connect, Hold
from faults.children import acting
from holdfast import EngineUnavailable
from holdfast.engines.etcd.routing import ClusterChannel
from holdfast.lab.servers import Etcd
from support import renewal_of, wait_until
from support.servers import shared_redis


@pytest.fixture(scope="module")
def guarded() -> Iterator[Etcd]:
    """Asks who one is, over TLS, and for a certificate."""
    with Etcd(tls=True, users={"root": "toor", "ann": "pä:ss/w@rd"}) as server:
        yield server


@pytest.fixture
def guarded_url(guarded: Etcd) -> str:
    made = guarded.certificates
    files = f"ca={made.authority}&cert={made.certificate}&key={made.key}"
    return f"etcd://ann:p%C3%A4%3Ass%2Fw%40rd@{guarded.address}?{files}"


def test_a_user_over_tls(guarded_url: str, connect: Connect, hold: Hold) -> None:
    client, other = connect(guarded_url), connect(guarded_url)
    lease = hold(client.lock("x", ttl=6))
    assert other.lock("x").acquire(blocking=False) is None
    wait_until(renewal_of(lease), timeout=20)
    lease.check()


def test_a_server_without_tls_and_one_that_wants_it(guarded: Etcd, url: str, connect: Connect) -> None:
    with pytest.raises(EngineUnavailable, match="is it a server without TLS"):
        connect(f"{url}?tls=true", io_timeout=1).lock("x").acquire()
    with pytest.raises(EngineUnavailable, match="does it want TLS"):
        connect(f"etcd://{guarded.address}", io_timeout=1).lock("x").acquire()


@pytest.mark.parametrize("driver", ["threads", "asyncio"])
def test_something_else_listens_there(connect: Connect, namespace: str, driver: str) -> None:
    url = f"etcd://{shared_redis().address}"

    async def in_a_loop() -> None:
        async with holdfast.aio.connect(url, namespace=namespace) as client:
            await client.lock("x").acquire()

    def in_threads() -> None:
        connect(url).lock("x").acquire()

    with pytest.raises(EngineUnavailable, match="does not speak gRPC"):
        in_threads() if driver == "threads" else asyncio.run(in_a_loop())


def test_files_that_are_no_certificates_are_refused_with_the_reason(
    guarded_url: str, connect: Connect, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(EngineUnavailable, match="PEM"):
        connect(f"etcd://localhost?ca={tmp_path}/ca.pem").lock("x").acquire()


def test_without_a_certificate_of_our_own(guarded_url: str, connect: Connect) -> None:
    client = connect(guarded_url.partition("&")[0], io_timeout=1)
    with pytest.raises(EngineUnavailable):
        client.lock("x").acquire()


async def use(url: str, namespace: str) -> None:
    async with holdfast.aio.connect(url, namespace=namespace) as client, client.lock("x") as lease:
        lease.check()
        assert await client.lock("x").acquire(blocking=False) is None


def test_the_same_for_asyncio(guarded_url: str, namespace: str) -> None:
    asyncio.run(use(guarded_url, namespace))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("p%C3%A4%3Ass%2Fw%40rd", "wrong"), "user"),
        (("ann:p%C3%A4%3Ass%2Fw%40rd@", ""), "user"),
    ],
    ids=["wrong password", "nobody"],
)
def test_whom_it_does_not_know(
    guarded_url: str, connect: Connect, change: tuple[str, str], told: str
) -> None:
    client = connect(guarded_url.replace(*change), io_timeout=2)
    with pytest.raises(EngineUnavailable, match=told) as refusal:
        client.lock("x").acquire()
    assert "wrong" not in str(refusal.value)
    assert "w@rd" not in str(refusal.value)


def test_a_certificate_of_an_unknown_authority(guarded: Etcd, connect: Connect) -> None:
    client = connect(f"etcd://ann:x@{guarded.address}?tls=true", io_timeout=1)
    with pytest.raises(EngineUnavailable, match="is not trusted"):
        client.lock("x").acquire()


@pytest.mark.parametrize("driver", ["threads", "asyncio"])
def test_a_token_that_expired_is_fetched_anew(
    guarded_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    """For calls, for signs of life and for the watch."""
    talks: list[ClusterChannel] = []
    shipped = ClusterChannel.__init__

    def init(self: ClusterChannel, *arguments: Any) -> None:
        shipped(self, *arguments)
        talks.append(self)

    monkeypatch.setattr(ClusterChannel, "__init__", init)

    def spoil() -> None:
        for channel in talks:
            channel._token = "no longer.valid"
            channel.mark_unhealthy(channel._connection)

    def in_threads() -> None:
        with (
            holdfast.connect(guarded_url, namespace=namespace) as client,
            client.lock("x", ttl=30) as lease,
        ):
            spoil()
            other = client.lock("y").acquire(blocking=False)
            assert other is not None
            spoil()
            lease.extend()
            spoil()
            with client.watch("z") as watch:
                assert watch.next() is not None
            lease.check()
            other.release()

    async def in_a_loop() -> None:
        async with (
            holdfast.aio.connect(guarded_url, namespace=namespace) as client,
            client.lock("x", ttl=30) as lease,
        ):
            spoil()
            other = await client.lock("y").acquire(blocking=False)
            assert other is not None
            spoil()
            await lease.extend()
            spoil()
            async with client.watch("z") as watch:
                assert await watch.next() is not None
            lease.check()
            await other.release()

    if driver == "threads":
        in_threads()
    else:
        asyncio.run(in_a_loop())


# --- forks ----------------------------------------------------------------------------------------

FORKS = """
lease = locks.lock("x", ttl=30).acquire() if options["used"] else None
child = os.fork()
if not child:
    try:
        try:
            if lease is not None:
                lease.release()  # does nothing
            taken = locks.lock("y").acquire()
            print("child got", taken.token, flush=True)
            taken.release()
            locks.close()
        except holdfast.HoldfastError as error:
            print("child", type(error).__name__, error, flush=True)
    finally:
        os._exit(0)
os.waitpid(child, 0)
if lease is not None:
    lease.check()
    print("parent", locks.inspect("x").holders[0].token == lease.token, flush=True)
locks.close()
print("done", flush=True)
"""


def test_after_a_fork_the_child_begins_anew_and_the_parent_goes_on(url: str) -> None:
    with acting(url, FORKS, used=True) as process:
        assert process.expect("child got")
        assert process.expect("parent") == "True"
        process.expect("done")
        assert process.wait() == 0
        assert not process.stderr_lines


def test_a_client_first_used_in_the_child_connects_there(url: str) -> None:
    with acting(url, FORKS, used=False) as process:
        assert process.expect("child got")
        process.expect("done")
        assert process.wait() == 0


def test_a_process_that_ends_leaves_nothing_held(url: str, connect: Connect) -> None:
    """Whether or not it closes its client, and without hanging on its way out."""
    name = f"exits-{os.getpid()}"
    code = f"""
lease = locks.lock({name!r}, ttl=600).acquire()
print("held", flush=True)
"""
    with acting(url, code) as process:
        process.expect("held")
        assert process.wait() == 0
    watcher = connect(namespace="holdfast")
    assert not watcher.inspect(name).holders
