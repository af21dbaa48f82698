"""A lock that is given back is handed to the first in line, which is told so and need not ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from engines.redis.asking import Asker, Driver
from engines.redis.test_many import calls
from holdfast.drivers.clock import boottime
from holdfast.engines.redis.loading import NAMES, assembled, script, with_constants
from holdfast.lab.servers import Redis
from holdfast.rules.requests import Break, Gone, Granted, Inspect, Queued, Watch, Withdraw
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
        text = assembled(name)
        assert text.count(CAME) == 1
        patient[name] = script(name, with_constants(text.replace(CAME, "local CAME_SECONDS = 60.0\n")))
    with (
        Asker(driver, server.url) as holder,
        Asker(driver, server.url, namespace=holder.namespace) as waiter,
    ):
        for one in (holder, waiter):
            one.adapter._space.scripts = patient
        yield Pair(server, holder, waiter)


def test_who_is_handed_it_asks_nobody(pair: Pair) -> None:
    pair.waiter.ask(pair.waiter.adapter.listen, "x")
    pair.hold_and_wait()
    asked_at = boottime()
    pair.holder.release("x", "n1")
    pair.waiter.until_posted("n2")
    token, before = pair.token, calls(pair.server)
    reply = pair.waiter.acquire("x", "n2", wait=True)
    assert calls(pair.server) == before
    assert reply == Granted(token, (), "lock", "exclusive", 30.0, None, {}, reply.age)
    assert reply.age >= boottime() - asked_at - 5.0, "counted from before it asked for its place"
    assert reply.age > 0


def test_who_does_not_hear_of_it_finds_out(pair: Pair) -> None:
    pair.waiter.ask(pair.waiter.adapter.listen, "x")
    pair.waiter.adapter._ears.told = lambda nonce, token: None
    pair.hold_and_wait()
    pair.holder.release("x", "n1")
    reply = pair.waiter.acquire("x", "n2", wait=True)
    assert isinstance(reply, Granted)
    assert reply.token == pair.token
    assert reply.age > 0


def test_nothing_is_handed_to_one_who_does_not_listen(pair: Pair) -> None:
    """It may be dead: then its turn passes before long, and its ttl would not."""
    pair.hold_and_wait()
    pair.holder.release("x", "n1")
    record = pair.holder.apply("x", Inspect()).record
    assert not record.holders
    assert record.queue[0].turn_at is not None
    assert isinstance(pair.waiter.acquire("x", "n2", wait=True), Granted)


def test_nothing_is_handed_to_one_who_does_not_listen_among_many(pair: Pair) -> None:
    """The same where there is more to look at."""
    pair.hold_and_wait()
    pair.holder.apply("x", Watch("w1", pair.holder.id))
    pair.holder.release("x", "n1")
    record = pair.holder.apply("x", Inspect()).record
    assert not record.holders
    assert record.queue[0].turn_at is not None


def test_what_was_taken_from_it_meanwhile_is_not_believed(pair: Pair) -> None:
    pair.waiter.ask(pair.waiter.adapter.listen, "x")
    pair.hold_and_wait()
    pair.holder.release("x", "n1")
    pair.holder.apply("x", Break(None, "because"))
    wait_until(lambda: pair.waiter.posted == ["n2", "n2"])
    assert pair.waiter.acquire("x", "n2", wait=True) == Gone("broken", "because")


def test_who_left_is_not_told_anything_any_more(pair: Pair) -> None:
    pair.waiter.ask(pair.waiter.adapter.listen, "x")
    pair.hold_and_wait()
    pair.waiter.apply("x", Withdraw("n2", 0.0))
    pair.waiter.ask(pair.waiter.adapter.unwatch_clients, "n2")
    pair.holder.release("x", "n1")
    handed = pair.waiter.adapter._handed
    handed.told("n2", 17)
    assert not handed._asked
    assert not handed._tokens
    assert isinstance(pair.holder.acquire("x", "n3"), Granted)


def test_a_message_that_makes_no_sense_only_wakes(pair: Pair) -> None:
    pair.waiter.ask(pair.waiter.adapter.listen, "x")
    pair.hold_and_wait()
    channel = f"{pair.waiter.adapter._space.channel.decode()}{pair.waiter.id}"
    for nonsense in ("n2\n", "n2\n-5", "n2\n1e9", "n2\n17\n18"):
        pair.server.command("PUBLISH", channel, nonsense)
    wait_until(lambda: pair.waiter.posted == ["n2"] * 4)
    assert isinstance(pair.waiter.acquire("x", "n2", wait=True), Queued)
