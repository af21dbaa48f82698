"""A released lock is handed to the first waiter, which is notified and need not ask."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import holdfast
import holdfast.aio
from engines.redis.adapters import Asker, Driver
from engines.redis.test_batches import calls
from engines.redis.wire import Wire
from holdfast.engines.redis.pool import Pool
from holdfast.engines.redis.scripts import NAMES, assemble
from holdfast.engines.resp.scripts import inline_constants, make_script
from holdfast.lab.servers import Redis
from holdfast.rules.requests import Acquire, Break, Done, Gone, Granted, Inspect, Queued, Watch, Withdraw
from holdfast.runtime.identity import attempt_names
from support import wait_until

CAME = "local CAME_SECONDS = 0.1\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    with Redis() as server:
        yield server


@dataclass
class Pair:
    """One who holds, and one who waits."""

    server: Redis
    holder: Asker
    waiter: Asker

    def hold_and_wait(self) -> None:
        assert isinstance(self.holder.acquire("x", "n1"), Granted)
        assert isinstance(self.waiter.acquire("x", "n2", wait=True), Queued)

    @property
    def token(self) -> int:
        """Of the one who holds it now."""
        (held,) = self.holder.apply("x", Inspect()).record.holders
        return int(held.token)


@pytest.fixture
def pair(driver: Driver, server: Redis) -> Iterator[Pair]:
    """However long anything takes here, the one who waits came just now."""
    patient = {}
    for name in NAMES:
        text = assemble(name)
        assert text.count(CAME) == 1
        patient[name] = make_script(name, inline_constants(text.replace(CAME, "local CAME_SECONDS = 60.0\n")))
    Wire(server, patient).close()  # whichever test is the first to need one, it is known
    with (
        Asker(driver, server.url) as holder,
        Asker(driver, server.url, namespace=holder.namespace) as waiter,
    ):
        for one in (holder, waiter):
            one.adapter._space.scripts = patient
        yield Pair(server, holder, waiter)


def test_a_handoff_carries_the_token_and_the_age_of_the_place(pair: Pair) -> None:
    pair.waiter.ask(pair.waiter.adapter.listen, "x")
    nonce = attempt_names(pair.waiter.id)()  # others are not believed
    assert isinstance(pair.holder.acquire("x", "n1"), Granted)
    assert isinstance(pair.waiter.acquire("x", nonce, wait=True), Queued)
    (place,) = pair.holder.apply("x", Inspect()).record.queue
    pair.holder.release("x", "n1")
    pair.waiter.until_posted(nonce)
    (held,) = pair.holder.apply("x", Inspect()).record.holders
    handed = pair.waiter.handed[nonce]
    assert handed is not None
    assert handed.token == held.token
    assert handed.age == pytest.approx(held.since - place.since, abs=2e-6)


def test_a_wake_up_for_a_turn_carries_no_token(pair: Pair) -> None:
    """Where others may barge nothing is handed over."""
    pair.waiter.ask(pair.waiter.adapter.listen, "x")
    assert isinstance(pair.holder.acquire("x", "n1"), Granted)
    wants = Acquire("n2", pair.waiter.id, "me", "lock", "exclusive", ttl=30.0, wait=True, fair=False)
    assert isinstance(pair.waiter.apply("x", wants), Queued)
    pair.holder.release("x", "n1")
    pair.waiter.until_posted("n2")
    assert pair.waiter.handed == {"n2": None}


def test_a_successor_that_asks_all_the_same_gets_the_age_of_the_grant(pair: Pair) -> None:
    pair.waiter.ask(pair.waiter.adapter.listen, "x")
    pair.hold_and_wait()
    pair.holder.release("x", "n1")
    reply = pair.waiter.acquire("x", "n2", wait=True)
    assert isinstance(reply, Granted)
    assert reply.token == pair.token
    assert reply.age > 0


def test_what_is_handed_over_costs_no_request(pair: Pair, driver: Driver) -> None:
    """As users have it: one request releases it, and the successor sends none."""
    assert isinstance(pair.holder.acquire("x", "n1"), Granted)
    if driver == "threads":
        taken_in_threads(pair)
    else:
        asyncio.run(taken_in_a_loop(pair))


def given_back(pair: Pair) -> int:
    """How many scripts had been run before."""
    wait_until(lambda: pair.holder.apply("x", Inspect()).record.queue)
    before = calls(pair.server)
    pair.holder.release("x", "n1")
    return before


def taken_in_threads(pair: Pair) -> None:
    with holdfast.connect(pair.server.url, namespace=pair.holder.namespace) as locks:
        with locks.lock("warm", ttl=600):
            pair.holder.until_looked_after("warm")
        leases: list[holdfast.Lease | None] = []
        waiting = threading.Thread(target=lambda: leases.append(locks.lock("x").acquire()))
        waiting.start()
        before = given_back(pair)
        waiting.join(10)
        (lease,) = leases
        assert lease is not None
        assert calls(pair.server) == before + 1
        assert lease.token == pair.token


async def taken_in_a_loop(pair: Pair) -> None:
    async with holdfast.aio.connect(pair.server.url, namespace=pair.holder.namespace) as locks:
        async with locks.lock("warm", ttl=600):
            await asyncio.to_thread(pair.holder.until_looked_after, "warm")
        waiting = asyncio.ensure_future(locks.lock("x").acquire())
        before = await asyncio.to_thread(given_back, pair)
        lease = await waiting
        assert lease is not None
        assert calls(pair.server) == before + 1
        assert lease.token == pair.token


def test_nothing_is_handed_to_a_client_that_does_not_listen(pair: Pair) -> None:
    """It may be dead: then its turn passes before long, and its ttl would not."""
    pair.hold_and_wait()
    pair.holder.release("x", "n1")
    record = pair.holder.apply("x", Inspect()).record
    assert not record.holders
    assert record.queue[0].turn_at is not None
    assert isinstance(pair.waiter.acquire("x", "n2", wait=True), Granted)


def test_nothing_is_handed_to_a_client_that_does_not_listen_among_many(pair: Pair) -> None:
    """The same where there is more to look at."""
    pair.hold_and_wait()
    pair.holder.apply("x", Watch("w1", pair.holder.id))
    pair.holder.release("x", "n1")
    record = pair.holder.apply("x", Inspect()).record
    assert not record.holders
    assert record.queue[0].turn_at is not None


def test_the_loss_of_a_handoff_is_reported_last(pair: Pair) -> None:
    pair.waiter.ask(pair.waiter.adapter.listen, "x")
    pair.hold_and_wait()
    pair.holder.release("x", "n1")
    pair.holder.apply("x", Break(None, "because"))
    wait_until(lambda: pair.waiter.posted == ["n2", "n2"])
    assert pair.waiter.handed == {"n2": None}
    assert pair.waiter.acquire("x", "n2", wait=True) == Gone("broken", "because")


def test_nothing_is_handed_to_a_client_that_left(pair: Pair) -> None:
    pair.waiter.ask(pair.waiter.adapter.listen, "x")
    pair.hold_and_wait()
    pair.waiter.apply("x", Withdraw("n2", 0.0))
    pair.waiter.ask(pair.waiter.adapter.unlisten, "n2", "x")
    pair.holder.release("x", "n1")
    assert isinstance(pair.holder.acquire("x", "n3"), Granted)
    assert pair.waiter.posted == []


def test_a_message_that_makes_no_sense_only_wakes(pair: Pair) -> None:
    pair.waiter.ask(pair.waiter.adapter.listen, "x")
    pair.hold_and_wait()
    channel = f"{pair.waiter.adapter._space.channel.decode()}{pair.waiter.id}"
    nonsense = ("n2\n", "n2\n17", "n2\n17\n", "n2\n\n0.5", "n2\n1e9\n0.5", "n2\n17\nx", "n2\nx\n0.5")
    for message in nonsense:
        pair.server.command("PUBLISH", channel, message)
    wait_until(lambda: pair.waiter.posted == ["n2"] * len(nonsense))
    assert pair.waiter.handed == {"n2": None}
    assert isinstance(pair.waiter.acquire("x", "n2", wait=True), Queued)


def test_answers_are_looked_for_only_where_nobody_else_would_run_meanwhile(
    server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by one who is about to sleep anyway, nor by one who gives back what others wait for."""
    looked: list[bool] = []
    call = Pool.call

    def noting(pool: Pool, payload: bytes, is_urgent: bool = True, before: int = 0) -> object:
        looked.append(is_urgent)
        return call(pool, payload, is_urgent, before)

    with Asker("threads", server.url) as one, Asker("threads", server.url, namespace=one.namespace) as other:
        one.acquire("x", "n0")
        one.release("x", "n0")
        other.acquire("y", "n1")
        monkeypatch.setattr(Pool, "call", noting)
        one.acquire("x", "n2")
        other.acquire("x", "n3", wait=True)
        one.release("x", "n2")
        assert looked == [True, False, True]
        looked.clear()
        other.acquire("x", "n3", wait=True)
        other.release("y", "n1")
        other.release("x", "n3")
        assert looked == [False, True, False]
        looked.clear()
        other.acquire("x", "n4")
        other.release("x", "n4")
        assert looked == [True, True]


@pytest.mark.parametrize("rules", ["+@all", "+@all -ping"])
def test_a_release_that_hands_over_whatever_becomes_of_what_goes_before_it(server: Redis, rules: str) -> None:
    server.command("ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "&*", *rules.split())
    url = server.url.replace("redis://", "redis://app:secret@")
    with Asker("threads", url) as one, Asker("threads", url, namespace=one.namespace) as other:
        for number in range(3):
            holder, waiter = f"h{number}", f"w{number}"
            assert isinstance(one.acquire("x", holder, wait=True), Granted)
            assert isinstance(other.acquire("x", waiter, wait=True), Queued)
            if number:
                server.command("SCRIPT", "FLUSH")
            assert one.release("x", holder) == Done()
            assert isinstance(other.acquire("x", waiter, wait=True), Granted)
            assert other.release("x", waiter) == Done()
            assert other.release("x", waiter) != Done()
    server.command("ACL", "DELUSER", "app")
