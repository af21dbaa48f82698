"""Actors whose state is what happened: a stream of events, a snapshot now and then."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest

from actors.test_messages import Play
from actors.worlds import World, handled
from holdfast import actors, events

SCHEMA = f"actors_{secrets.token_hex(4)}"
"""The store of events of these tests; their streams differ by the namespaces of their queues."""


class Ledger:
    applied = 0

    def __init__(self) -> None:
        self.total = 0
        self.count = 0

    def apply(self, event: dict[str, Any]) -> None:
        Ledger.applied += 1
        self.total += event["amount"]
        self.count += 1

    def book(self, *, amounts: list[int]) -> int:
        for amount in amounts:
            actors.context().append({"type": "booked", "amount": amount})
        return self.total

    def refuse(self) -> None:
        actors.context().append({"type": "booked", "amount": 7})
        raise actors.Rejected("no")

    def cheat(self) -> None:
        self.total = 99


def ledgers(world: World, **options: Any) -> Any:
    system = world.system(events_schema=SCHEMA)
    system.actor("ledger", state="events", attempts=2, backoff=0, **options)(Ledger)
    return system


def store_of(world: World) -> events.EventStore:
    base, _, _ = world.url.partition("?")
    return events.connect(base if base.startswith("sqlite") else f"{base}?schema={SCHEMA}")


def test_the_state_is_rebuilt_from_events(play: Play) -> None:
    async def story(world: World) -> None:
        system = ledgers(world, snapshot_every=None)
        await system.tell("ledger", "a/b", "book", amounts=[1, 2])
        await system.tell("ledger", "a/b", "book", amounts=[])
        await system.tell("ledger", "a/b", "refuse")
        await system.tell("ledger", "a/b", "cheat")
        await system.tell("ledger", "a/b", "book", amounts=[3])
        await handled(system, world)
        assert await system.state("ledger", "a/b") == {"total": 6, "count": 3}
        with store_of(world) as store:
            found = list(store.read(system.stream("ledger", "a/b")))
            assert store.load_snapshot(system.stream("ledger", "a/b")) is None
        assert [event.data["amount"] for event in found] == [1, 2, 3]
        (letter,) = await system.dead_letters("ledger")
        assert "rebuilt from its events" in letter.error

    play(story)


def test_a_key_that_no_stream_can_have_does_not_come_back_for_ever(play: Play) -> None:
    """A sender that does not have the class cannot know."""

    async def story(world: World) -> None:
        system = ledgers(world)
        await world.system().tell("ledger", "k" * 512, "book", amounts=[1])
        await handled(system, world)
        (letter,) = await system.dead_letters("ledger")
        assert "too long for an actor whose state is events" in letter.error

    play(story)


def test_a_snapshot_spares_reading_the_whole_history(play: Play) -> None:
    async def story(world: World) -> None:
        system = ledgers(world, snapshot_every=10)
        for _ in range(3):
            await system.tell("ledger", "a", "book", amounts=[1] * 7)
        await system.run(until_idle=True)
        Ledger.applied = 0
        assert await system.state("ledger", "a") == {"total": 21, "count": 21}
        assert Ledger.applied == 0  # the snapshot was taken with the last message
        await system.tell("ledger", "a", "book", amounts=[1])
        await system.run(until_idle=True)
        Ledger.applied = 0
        assert await system.state("ledger", "a") == {"total": 22, "count": 22}
        assert Ledger.applied == 1

    play(story)


def test_a_message_is_begun_again_if_something_else_appended(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.actors import plans

    async def story(world: World) -> None:
        system = ledgers(world)
        await system.tell("ledger", "a", "book", amounts=[1])
        await system.run(until_idle=True)
        shipped, stream = plans.load, system.stream("ledger", "a")

        def load(*arguments: Any) -> Any:
            loaded = yield from shipped(*arguments)
            monkeypatch.undo()
            with store_of(world) as store:
                store.append(stream, [{"type": "booked", "amount": 50}])
            return loaded

        monkeypatch.setattr(plans, "load", load)
        await system.tell("ledger", "a", "book", amounts=[2])
        await system.run(until_idle=True)
        assert await system.state("ledger", "a") == {"total": 53, "count": 3}

    play(story)


@pytest.mark.parametrize("scheme", ["sqlite"])
@pytest.mark.parametrize("driver", ["threads"])
def test_a_value_has_no_events(play: Play, tmp_path: Path) -> None:
    async def story(world: World) -> None:
        system = world.system()

        @system.actor("plain", attempts=1)
        class Plain:
            def append(self) -> None:
                actors.context().append({"type": "x"})

        await system.tell("plain", "a", "append")
        await system.run(until_idle=True)
        (letter,) = await system.dead_letters("plain")
        assert "state='events'" in letter.error

    play(story)
