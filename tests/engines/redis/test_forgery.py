"""A user who may publish, and nothing else, can wake a client and cannot hand it a lock."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import pytest

import holdfast
import holdfast.aio
from engines.redis.adapters import Asker, Driver
from holdfast.core.tokens import MAX_AHEAD_US
from holdfast.engines.redis import pubsub
from holdfast.engines.redis.keys import Keyspace, channel_of, slot_of
from holdfast.engines.redis.notifications import NotificationParser
from holdfast.lab.servers import Redis
from holdfast.lab.servers.resp import ask
from holdfast.rules.requests import Granted, Handoff, Queued
from holdfast.runtime.clock import wall_us
from support import wait_until
from support.servers import shared_redis, shared_redis_cluster, shared_sentinel

Shape = Literal["single", "sentinel", "cluster"]

NAME = "invoices"


class Deployment:
    """Servers of one shape, and a stranger there with one right."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.namespace = f"test-{secrets.token_hex(6)}"
        self.space = Keyspace(self.namespace, sharded=shape == "cluster")
        if shape == "single":
            self.url = shared_redis().url
        elif shape == "sentinel":
            system = shared_sentinel()
            self.url = f"redis+sentinel://{system.addresses}?service={system.service}"
        else:
            self.url = f"redis+cluster://{shared_redis_cluster().addresses}"

    @property
    def server(self) -> Redis:
        """The master of the lock."""
        if self.shape == "single":
            return shared_redis()
        if self.shape == "sentinel":
            return shared_sentinel().master()
        slot = slot_of(self.space, NAME)
        for first, last, (_, port, *_), *_ in shared_redis_cluster().masters[0].command("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(each for each in shared_redis_cluster().masters if each.port == port)
        raise AssertionError("no server has the slot")

    @contextlib.contextmanager
    def stranger(self, more: str = "") -> Iterator[Callable[[bytes, bytes], None]]:
        """May publish everywhere, and has no right to any key."""
        server, user = self.server, f"stranger-{secrets.token_hex(4)}"
        rules = f"reset on >guest resetkeys &* -@all +publish +spublish {more}"
        server.command("ACL", "SETUSER", user, *rules.split())
        try:
            with server.connection() as connection:
                ask(connection, ("AUTH", user, "guest"))
                with pytest.raises(Exception, match="NOPERM"):
                    ask(connection, ("GET", self.space.prefix + b"lock:{" + NAME.encode() + b"}"))
                yield lambda channel, message: self._publish(connection, channel, message)
        finally:
            server.command("ACL", "DELUSER", user)

    def _publish(self, connection: socket.socket, channel: bytes, message: bytes) -> None:
        command = "SPUBLISH" if self.shape == "cluster" and b"{" in channel else "PUBLISH"
        ask(connection, (command, channel, message))

    def clients_that_listen(self) -> set[str]:
        """Known to any user who may list the channels: they are part of their names."""
        which = "SHARDCHANNELS" if self.shape == "cluster" else "CHANNELS"
        told = self.server.command("PUBSUB", which, self.space.channel + b"*")
        return {channel.decode().rpartition(":")[2] for channel in told}

    def channels(self, client: str) -> list[bytes]:
        """The channel of this lock for the client, and the one for everything."""
        return list({channel_of(self.space, client, NAME): None, self.space.channel + client.encode(): None})


@pytest.fixture(params=["single", "sentinel", "cluster"])
def deployment(request: pytest.FixtureRequest) -> Deployment:
    return Deployment(request.param)


class Waiting:
    """One client that waits for the lock, by threads or in a loop of its own."""

    def __init__(self, driver: Driver, deployment: Deployment) -> None:
        self._driver, self._deployment = driver, deployment
        self._pool = ThreadPoolExecutor(1)
        self._go = threading.Event()
        self.adapter: Any = None
        self.token: Future[int] = self._pool.submit(self._wait if driver == "threads" else self._wait_in_loop)

    def _wait(self) -> int:
        with holdfast.connect(self._deployment.url, namespace=self._deployment.namespace) as locks:
            self.adapter = locks._driver.adapter
            with locks.lock(NAME, ttl=600, timeout=60) as lease:
                return lease.token

    def _wait_in_loop(self) -> int:
        async def main() -> int:
            client = holdfast.aio.connect(self._deployment.url, namespace=self._deployment.namespace)
            async with client as locks, locks.lock("another"):
                self.adapter = locks._driver.adapter
                async with locks.lock(NAME, ttl=600, timeout=60) as lease:
                    return lease.token

        return asyncio.run(main())

    def until_dropped(self, count: int) -> None:
        wait_until(lambda: self.adapter.dropped_messages >= count)

    def close(self) -> None:
        self._pool.shutdown()


FAR = 2**62
UNREADABLE = b"\xff\xfe\x80"


def forgeries(client: str) -> list[bytes]:
    """What one sends who knows everything but the random part of a nonce."""
    nonces = [f"{client}-{number}" for number in range(50)]
    nonces += [f"{client}-{number:x}" for number in (10, 255)]
    nonces += [
        f"{client}-{'0' * 32}",
        f"{client}-{secrets.token_hex(16)}",
        client,
        f"{client}-",
        "closing",
        "",
    ]
    nonces += [f"{client}-{'0' * 32}/job", f"{client}-.*", "keeper", "timer"]
    now = wall_us()
    tokens = [str(now), str(FAR), str(10**30), "9" * 5000, str(-now), "0", "nan", "1e99", "٣", "1_0", ""]
    messages = [f"{nonce}\n{token}\n0.000001".encode() for nonce in nonces for token in tokens[:2]]
    messages += [f"{nonces[0]}\n{token}\n0.000001".encode() for token in tokens]
    messages += [f"{nonces[-2]}\n{now}\n{age}".encode() for age in ("nan", "inf", "-1", "", "x", "0\n0\n0")]
    messages += [b"", b"\n", b"\n\n", b"\x00" * 100, b"x" * 100_000, b"%s\n%d\n0.1" % (UNREADABLE, now)]
    messages += [b"\x92\xa1x\xcf" + bytes(8), b"\x91" * 3000, b"\xdf\xff\xff\xff\xff", b"\xc1"]  # MessagePack
    return messages


def test_a_client_that_may_only_publish_hands_over_no_lock(driver: Driver, deployment: Deployment) -> None:
    """While another client holds it, whatever is sent. The client goes on to listen on the same
    connection."""
    with holdfast.connect(deployment.url, namespace=deployment.namespace) as holder:
        held = holder.lock(NAME, ttl=600).acquire()
        assert held is not None
        waiting = Waiting(driver, deployment)
        wait_until(lambda: holder.inspect(NAME).waiters)
        client = waiting.adapter._pubsub._context.client
        listening = sorted(map(id, waiting.adapter._pubsub._connections.values()))
        with deployment.stranger() as publish:
            for channel in deployment.channels(client):
                for message in forgeries(client):
                    publish(channel, message)
                seen = waiting.adapter.dropped_messages
                publish(channel, UNREADABLE)
                waiting.until_dropped(seen + 1)
        assert not waiting.token.done(), "somebody else holds it"
        stands = holder.inspect(NAME)
        assert [each.token for each in stands.holders] == [held.token]
        assert len(stands.waiters) == 1
        assert sorted(map(id, waiting.adapter._pubsub._connections.values())) == listening
        held.check()
        held.release()
        assert held.token < waiting.token.result(30) < wall_us() + 1_000_000
        waiting.close()


def test_the_channels_tell_the_client_and_no_nonce(driver: Driver, deployment: Deployment) -> None:
    with holdfast.connect(deployment.url, namespace=deployment.namespace) as holder:
        held = holder.lock(NAME, ttl=600).acquire()
        assert held is not None
        waiting = Waiting(driver, deployment)
        wait_until(lambda: holder.inspect(NAME).waiters)
        nonces = list(waiting.adapter._pubsub._context.post.__self__.client_state.waiting)
        assert nonces
        for which in ("CHANNELS", "SHARDCHANNELS"):
            told = b" ".join(deployment.server.command("PUBSUB", which, "*"))
            for nonce in nonces:
                assert nonce.rpartition("-")[2].encode() not in told
        assert waiting.adapter._pubsub._context.client in deployment.clients_that_listen()
        held.release()
        waiting.token.result(30)
        waiting.close()


def test_an_intercepted_nonce_hands_over_no_lock(driver: Driver, deployment: Deployment) -> None:
    """A message to look reveals the nonce to any user who may subscribe: after it no grant is believed."""
    with holdfast.connect(deployment.url, namespace=deployment.namespace) as holder:
        held = holder.lock(NAME, ttl=600).acquire()
        assert held is not None
        waiting = Waiting(driver, deployment)
        wait_until(lambda: holder.inspect(NAME).waiters)
        client = waiting.adapter._pubsub._context.client
        (nonce,) = [
            each
            for each, waits in waiting.adapter._pubsub._context.post.__self__.client_state.waiting.items()
            if waits.name == NAME
        ]
        with deployment.stranger() as publish:
            for channel in deployment.channels(client):
                publish(channel_of(deployment.space, client, NAME), nonce.encode())  # as the server does
                publish(channel, f"{nonce}\n{wall_us()}\n0.000001".encode())
                seen = waiting.adapter.dropped_messages
                publish(channel, UNREADABLE)
                waiting.until_dropped(seen + 1)
            wait_until(lambda: _asks_again(deployment))
        assert not waiting.token.done(), "somebody else holds it"
        held.release()
        assert held.token < waiting.token.result(30)
        waiting.close()


def _asks_again(deployment: Deployment) -> bool:
    """A moment in which the waiter could have taken the message for a grant: it was seen to go on waiting."""
    with holdfast.connect(deployment.url, namespace=deployment.namespace) as onlooker:
        return len(onlooker.inspect(NAME).waiters) == 1


# --- what is believed -----------------------------------------------------------------------------

CLIENT = "0123456789abcdef"
NONCE = f"{CLIENT}-{'5a' * 16}"


def said(text: str | bytes, kind: bytes = b"message") -> list[bytes]:
    return [
        kind,
        b"holdfast:shop:wake:" + CLIENT.encode(),
        text if isinstance(text, bytes) else text.encode(),
    ]


def test_a_grant_has_the_shape_that_the_script_gives_it() -> None:
    reads, now = NotificationParser(CLIENT, sharded=False, accepts_grants=True), wall_us()
    assert reads.parse(said(f"{NONCE}\n{now}\n0.000123")) == (NONCE, Handoff(now, 0.000123))
    assert reads.parse(said(NONCE)) == (NONCE, None)
    for ending in ("0", "-5", f"{now}.0", "٣", str(FAR), "9" * 3000, f" {now}", f"+{now}", "nan", ""):
        assert reads.parse(said(f"{NONCE}\n{ending}\n0.000123")) == (NONCE, None), "it only wakes"
    for age in ("nan", "inf", "-1.000000", "1", "", "0.1", "0.000001\n", "0.000001\n1"):
        assert reads.parse(said(f"{NONCE}\n{now}\n{age}")) == (NONCE, None), "it only wakes"
    for nonce in (f"{CLIENT}-1", "closing", NONCE.upper(), NONCE[:-1], NONCE + "0", "f" * 16 + NONCE[16:]):
        assert reads.parse(said(f"{nonce}\n{now}\n0.000123")) == (nonce, None), "it is no attempt of ours"


def test_a_token_that_no_clock_has_reached_is_asked_for() -> None:
    reads = NotificationParser(CLIENT, sharded=False, accepts_grants=True)
    near, far = wall_us() + MAX_AHEAD_US // 2, wall_us() + MAX_AHEAD_US * 2
    assert reads.parse(said(f"{NONCE}\n{near}\n0.000123")) == (NONCE, Handoff(near, 0.000123))
    assert reads.parse(said(f"{NONCE}\n{far}\n0.000123")) == (NONCE, None)


def test_a_cluster_grants_where_the_lock_is() -> None:
    reads, grant = (
        NotificationParser(CLIENT, sharded=True, accepts_grants=True),
        f"{NONCE}\n{wall_us()}\n0.000123",
    )
    assert reads.parse(said(grant, b"message")) == (NONCE, None)
    told = reads.parse(said(grant, b"smessage"))
    assert told is not None
    assert told[1] is not None


def test_where_replicas_are_waited_for_no_grant_is_believed() -> None:
    reads = NotificationParser(CLIENT, sharded=False, accepts_grants=False)
    assert reads.parse(said(f"{NONCE}\n{wall_us()}\n0.000123")) == (NONCE, None)


@pytest.mark.parametrize(
    "message", [[b"message"], [b"message", b"c", None], [b"message", b"c", 5], [b"message", b"c", [b"x"]],
                [b"message", b"c", b"\xff"], [b"message", b"c", b"x" * 5000], []],
)  # fmt: skip
def test_what_cannot_be_read_is_no_message(message: list[Any]) -> None:
    assert NotificationParser(CLIENT, sharded=False, accepts_grants=True).parse(message) is None


# --- a listener does not end ----------------------------------------------------------------------


def test_what_cannot_be_read_is_counted_and_logged_once_for_each_connection(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    with Redis() as server, Asker(driver, server.url) as asker, caplog.at_level(logging.WARNING, "holdfast"):
        asker.listen("x")
        channel = channel_of(Keyspace(asker.namespace), asker.id, "x")
        for times in (1, 2):
            for _ in range(3):
                server.command("PUBLISH", channel, UNREADABLE)
            wait_until(lambda times=times: asker.adapter.dropped_messages == 3 * times)  # type: ignore[misc]  # its default
            assert len([each for each in caplog.records if "cannot be parsed" in each.message]) == times
            looked = asker.told_to_look
            server.command("CLIENT", "KILL", "TYPE", "PUBSUB")
            asker.until_told_to_look(looked)
        assert asker.acquire("x", "n1").__class__ is Granted
        assert asker.acquire("x", "n2", wait=True).__class__ is Queued
        asker.release("x", "n1")
        asker.until_posted("n2")


class Strange(Exception):
    """Something that nobody expects."""


@pytest.mark.parametrize(
    "step",
    ["_subscribe_all", "_read_messages", "handle_message", "_confirm", "_next_pause", "connection_lost"],
)
@pytest.mark.parametrize(
    "error", [Strange("odd"), ValueError("odd"), RecursionError(), MemoryError()], ids=repr
)
def test_a_listener_goes_on_whatever_is_thrown_at_it(
    driver: Driver,
    step: str,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each step fails twice; then a waiter is woken."""
    owner: Any = pubsub.PubSub if step == "connection_lost" else pubsub.PubSubConnection
    real, left = getattr(owner, step), [2]

    def fails(self: Any, *args: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise error
        return real(self, *args)

    with Redis() as server, Asker(driver, server.url) as asker:
        if step in ("connection_lost", "_next_pause", "handle_message"):
            asker.listen("x")
        monkeypatch.setattr(owner, step, fails)
        _until_it_failed(server, asker, left)
        wait_until(lambda: _listens(asker))
        asker.acquire("x", "n1")
        asker.acquire("x", "n2", wait=True)
        asker.release("x", "n1")
        asker.until_posted("n2")
    assert re.search("is replaced|is restarted", caplog.text)


def _until_it_failed(server: Redis, asker: Asker, left: list[int]) -> None:
    with contextlib.suppress(Exception):
        asker.ask(asker.adapter.listen, "x")
    ends_at = time.monotonic() + 30
    while left[0] and time.monotonic() < ends_at:
        with contextlib.suppress(Exception):
            server.command("PUBLISH", channel_of(Keyspace(asker.namespace), asker.id, "x"), "n9")
            server.command("CLIENT", "KILL", "TYPE", "PUBSUB")
        wait_until(lambda: not left[0] or len(server.command("CLIENT", "LIST", "TYPE", "PUBSUB")) > 0)
    assert not left[0]


def _listens(asker: Asker) -> bool:
    try:
        asker.ask(asker.adapter.listen, "x")
    except Exception:
        return False
    return asker.adapter._pubsub.subscribed_connection() is not None


def test_a_thread_that_is_made_to_end_listens_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, left = pubsub.PubSubConnection._run_connection, [1]

    async def exits(self: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise SystemExit
        await real(self)

    monkeypatch.setattr(pubsub.PubSubConnection, "_run_connection", exits)
    with Asker("threads", shared_redis().url) as asker:
        wait_until(lambda: _listens(asker))
    assert not left[0]
    assert "is restarted" in caplog.text


def test_a_listener_task_that_was_cancelled_listens_again_when_it_is_needed() -> None:
    async def cancel() -> None:
        for task in asyncio.all_tasks():
            if task.get_name() == "holdfast-listener":
                task.cancel()

    with Redis() as server, Asker("asyncio", server.url) as asker:
        asker.listen("x")
        asker.ask(cancel)
        wait_until(lambda: asker.adapter._pubsub.subscribed_connection() is None)
        wait_until(lambda: _listens(asker))
        asker.acquire("x", "n1")
        asker.acquire("x", "n2", wait=True)
        asker.release("x", "n1")
        asker.until_posted("n2")


def test_a_thread_that_reads_for_others_is_not_harmed_by_their_messages(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A waiting thread reads the connection itself: what is odd there does not come out of ``acquire``."""
    namespace = f"test-{secrets.token_hex(6)}"
    with (
        holdfast.connect(shared_redis().url, namespace=namespace) as holder,
        holdfast.connect(shared_redis().url, namespace=namespace) as waiter,
        ThreadPoolExecutor(1) as pool,
    ):
        for _ in range(3):
            held = holder.lock(NAME, ttl=600).acquire(timeout=10)
            assert held is not None
            waiting = pool.submit(waiter.lock(NAME).acquire, timeout=60)
            wait_until(lambda: holder.inspect(NAME).waiters)
            real, left = pubsub.PubSubConnection.handle_message, [1]

            def fails(self: Any, message: Any, real: Any = real, left: Any = left) -> Any:
                if left[0] and re.search(rb"9{9}", message[-1] if isinstance(message[-1], bytes) else b""):
                    left[0] -= 1
                    raise Strange
                return real(self, message)

            with monkeypatch.context() as patch:
                patch.setattr(pubsub.PubSubConnection, "handle_message", fails)
                adapter: Any = waiter._driver.adapter
                client = adapter._pubsub._context.client
                shared_redis().command("PUBLISH", channel_of(Keyspace(namespace), client, NAME), "9" * 10)
                wait_until(lambda left=left: not left[0])  # type: ignore[misc]  # its default
            held.release()
            taken = waiting.result(30)
            assert taken is not None
            taken.release()
    assert "unexpectedly" in caplog.text
