"""What senders and actors are promised, by both drivers on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast.actors.aio
import holdfast.queue.aio
from actors.conftest import Story
from actors.worlds import World, fresh_url, handled, running
from holdfast import LockTimeout, actors
from holdfast.errors import EngineUnavailable, InvalidArgument

Play = Callable[[Story], None]


class Account:
    def __init__(self) -> None:
        self.balance = 0
        self.history: list[int] = []
        self._unstored = 0

    def deposit(self, amount: int) -> int:
        self.balance += amount
        self.history.append(amount)
        self._unstored += 1
        return self._unstored * 1000 + self.balance

    def withdraw(self, amount: int, to: str | None = None) -> int:
        self.balance -= amount
        if to is not None:
            actors.context().tell("account", to, "deposit", amount=amount)
        if self.balance < 0:
            raise actors.Rejected(f"{amount} is more than there is")
        return self.balance

    def fail(self, to: str = "b") -> None:
        self.balance = 1_000_000
        actors.context().tell("account", to, "deposit", amount=1)
        raise LookupError("no such thing")

    def leave(self) -> None:
        raise SystemExit(3)

    def whoami(self) -> list[Any]:
        context = actors.context()
        return [context.kind, context.key, context.id, context.attempt, context.client]


def accounts(world: World, client: Any = None, **options: Any) -> Any:
    system = world.system(client, **options)
    system.actor("account", attempts=2, backoff=0.01)(Account)
    return system


def test_messages_are_handled_in_order_and_change_the_state(play: Play) -> None:
    async def story(world: World) -> None:
        system = accounts(world)
        assert await system.state("account", "a") is None
        for amount in (1, 2, 3, 4):
            await system.tell("account", "a", "deposit", amount=amount)
        await system.tell("account", "b", "deposit", amount=9)
        await system.run(until_idle=True)
        assert await system.state("account", "a") == {"balance": 10, "history": [1, 2, 3, 4]}
        assert await system.state("account", "b") == {"balance": 9, "history": [9]}

    play(story)


def test_the_reply_is_what_the_handler_returns(play: Play) -> None:
    async def story(world: World) -> None:
        system = accounts(world, "a client")
        async with running(system):
            replies = [await system.ask("account", "a", "deposit", amount=5) for _ in range(3)]
            assert replies == [1005, 1010, 1015]
            told = await system.ask("account", "a", "whoami", id="who")
        assert told == ["account", "a", "who", 1, "a client"]

    play(story)


def test_many_ask_at_once_and_each_gets_its_own_reply(play: Play) -> None:
    async def story(world: World) -> None:
        system = accounts(world)
        asks = [system.ask("account", f"{n % 4}", "deposit", amount=10**n) for n in range(8)]
        async with running(system):
            replies = await asyncio.gather(*asks)
        assert all(reply // 10**n % 10 == 1 for n, reply in enumerate(replies[:3]))
        states = [await system.state("account", f"{n}") for n in range(4)]
        assert sum(state["balance"] for state in states) == 11111111

    play(story)


def test_what_a_handler_sends_is_committed_with_its_state(play: Play) -> None:
    async def story(world: World) -> None:
        system = accounts(world)
        await system.tell("account", "a", "deposit", amount=10)
        await system.tell("account", "a", "withdraw", amount=4, to="b")
        await system.tell("account", "a", "withdraw", amount=100, to="b")
        await system.run(until_idle=True)
        assert (await system.state("account", "a"))["balance"] == 6
        assert await system.state("account", "b") == {"balance": 4, "history": [4]}

    play(story)


def test_a_message_with_an_id_is_handled_once(play: Play) -> None:
    async def story(world: World) -> None:
        system = accounts(world)
        for _ in range(2):
            await system.tell("account", "a", "deposit", amount=5, id="one")
        await system.tell("account", "b", "deposit", amount=5, id="one")
        await system.run(until_idle=True)
        await system.tell("account", "a", "deposit", amount=5, id="one")
        async with running(system):
            first = await system.ask("account", "a", "deposit", amount=7, id="two")
            assert await system.ask("account", "a", "deposit", amount=7, id="two") == first
        assert await system.state("account", "a") == {"balance": 12, "history": [5, 7]}
        assert await system.state("account", "b") == {"balance": 5, "history": [5]}

    play(story)


def test_old_ids_are_forgotten_but_not_those_of_messages_that_wait(play: Play) -> None:
    async def story(world: World) -> None:
        system = accounts(world, keep_ids=0)
        await system.tell("account", "a", "deposit", amount=5, id="handled")
        await system.run(until_idle=True)
        await system.tell("account", "a", "deposit", amount=6, id="waits")
        inner = getattr(system, "inner", system)
        forgotten = (
            await asyncio.to_thread(inner._run, inner._forget_call())
            if hasattr(system, "inner")
            else await inner._run(inner._forget_call())
        )
        assert forgotten == 1
        await system.tell("account", "a", "deposit", amount=6, id="waits")
        await system.tell("account", "a", "deposit", amount=5, id="handled")
        await system.run(until_idle=True)
        assert (await system.state("account", "a"))["history"] == [5, 6, 5]

    play(story)


def test_errors_come_back_to_callers_of_ask(play: Play) -> None:
    async def story(world: World) -> None:
        system = accounts(world)
        async with running(system):
            with pytest.raises(actors.Rejected, match="100 is more than there is"):
                await system.ask("account", "a", "withdraw", amount=100)
            with pytest.raises(actors.MessageFailed, match="LookupError: no such thing") as failed:
                await system.ask("account", "a", "fail")
            assert (failed.value.error_type, failed.value.error_text) == ("LookupError", "no such thing")
            with pytest.raises(actors.MessageFailed, match="SystemExit: 3"):
                await system.ask("account", "a", "leave")
            assert await system.ask("account", "a", "deposit", amount=1) == 1001
        assert await system.state("account", "b") is None
        assert await world.jobs("dead") == []

    play(story)


@pytest.mark.parametrize("scheme", ["sqlite"])
@pytest.mark.parametrize("driver", ["asyncio"])
def test_a_handler_that_is_cancelled_by_its_own_work_has_failed(play: Play) -> None:
    async def story(world: World) -> None:
        system = world.system()

        @system.actor("careless")
        class Careless:
            async def work(self) -> None:
                part = asyncio.ensure_future(asyncio.Event().wait())
                await asyncio.sleep(0)
                part.cancel()
                await part

        async with running(system):
            with pytest.raises(actors.MessageFailed, match="CancelledError"):
                await system.ask("careless", "a", "work")

    play(story)


def test_a_poison_message_becomes_a_dead_letter_and_the_mailbox_goes_on(play: Play) -> None:
    async def story(world: World) -> None:
        system = accounts(world)
        await system.tell("account", "a", "deposit", amount=1)
        await system.tell("account", "a", "fail", to="c")
        await system.tell("account", "a", "deposit", amount=2)
        await handled(system, world)
        assert await system.state("account", "a") == {"balance": 3, "history": [1, 2]}
        assert await system.state("account", "c") is None
        (letter,) = await system.dead_letters("account")
        assert (letter.key, letter.message, letter.fields, letter.attempts) == ("a", "fail", {"to": "c"}, 2)
        assert "no such thing" in letter.error
        assert await world.retry(letter.id)
        await handled(system, world)
        assert [again.id for again in await system.dead_letters("account")] == [letter.id]

    play(story)


def test_a_late_reply_is_there_when_it_is_asked_for_again(play: Play) -> None:
    async def story(world: World) -> None:
        system = accounts(world)
        with pytest.raises(LockTimeout, match="ask again with the same id="):
            await system.ask("account", "a", "deposit", amount=5, id="pay", timeout=0)
        await system.run(until_idle=True)
        assert await system.ask("account", "a", "deposit", amount=5, id="pay", timeout=0) == 1005

    play(story)


def test_an_unknown_message_is_a_dead_letter_not_a_hole(play: Play) -> None:
    async def story(world: World) -> None:
        sender, system = world.system(), accounts(world)
        await sender.tell("account", "a", "no_such_message")
        await sender.tell("account", "a", "deposit", sum=1)
        async with running(system):
            with pytest.raises(actors.MessageFailed, match="has no message 'nor_this'"):
                await sender.ask("account", "a", "nor_this", timeout=60)
        assert len(await sender.dead_letters("account")) == 2

    play(story)


def test_a_commit_whose_answer_was_lost_is_not_applied_twice(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.actors import plans

    shipped, calls = plans.commit, []

    def commit(*arguments: Any) -> Any:
        done = yield from shipped(*arguments)
        calls.append(done)
        if len(calls) == 1:
            raise EngineUnavailable("the answer was lost")
        return done

    monkeypatch.setattr(plans, "commit", commit)

    async def story(world: World) -> None:
        system = accounts(world)
        await system.tell("account", "a", "deposit", amount=10)
        await system.tell("account", "a", "withdraw", amount=4, to="b")
        await handled(system, world)
        assert calls[0]
        assert calls.count(False) == 1, "it was begun again, and found itself committed"
        assert await system.state("account", "a") == {"balance": 6, "history": [10]}
        assert await system.state("account", "b") == {"balance": 4, "history": [4]}

    play(story)


def test_stop_lets_what_was_begun_end(play: Play) -> None:
    async def story(world: World) -> None:
        system = accounts(world)

        class Stopper:
            def __init__(self) -> None:
                self.calls = 0

            def stop(self) -> None:
                system.stop()
                self.calls += 1

        system.actor("stopper")(Stopper)
        for _ in range(3):
            await system.tell("stopper", "x", "stop")
        await system.run()
        assert await world.jobs("running") == []
        finished = await world.jobs("finished")
        assert len(finished) >= 1
        assert await system.state("stopper", "x") == {"calls": len(finished)}

    play(story)


def test_a_handler_may_not_ask_and_what_it_tells_is_its_own(play: Play) -> None:
    async def story(world: World) -> None:
        system = accounts(world)
        seen: list[Exception] = []

        class Curious:
            def ask(self) -> None:
                try:
                    coroutine = getattr(system, "inner", system).ask("account", "a", "whoami")
                    if asyncio.iscoroutine(coroutine):
                        coroutine.send(None)
                except InvalidArgument as error:
                    seen.append(error)
                raise actors.Rejected("done")

        system.actor("curious")(Curious)
        await system.tell("curious", "x", "ask")
        await system.run(until_idle=True)
        assert "cannot wait for a reply" in str(seen[0])

    play(story)


def test_a_system_for_asyncio_belongs_to_one_loop(tmp_path: Path) -> None:
    queue = holdfast.queue.aio.connect(fresh_url("sqlite", tmp_path))
    system = actors.aio.System(None, queue)
    system.actor("account")(Account)
    asyncio.run(system.run(until_idle=True))
    for call in (
        lambda: system.run(until_idle=True),
        lambda: system.ask("account", "a", "deposit", amount=1),
    ):
        with pytest.raises(InvalidArgument, match="another event loop"):
            asyncio.run(call())
    asyncio.run(queue.close())
