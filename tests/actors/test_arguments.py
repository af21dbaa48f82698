"""Bad input is refused before any I/O: nothing here could connect."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast.queue
import holdfast.queue.aio
from holdfast import actors
from holdfast.actors import aio
from holdfast.errors import InvalidArgument

pytestmark = pytest.mark.timeless

NOWHERE = "postgresql://127.0.0.1:1/nowhere"
AWAITED: Any = holdfast.queue.aio.connect(NOWHERE)
BLOCKING: Any = holdfast.queue.connect(NOWHERE)


def new_system(**options: Any) -> actors.System:
    return actors.System(None, holdfast.queue.connect(NOWHERE), **options)


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, n: int, kind: str = "") -> int:
        self.count += n
        return self.count


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda system: system.tell("counter", "a", "subtract"), "there is add"),
        (lambda system: system.tell("counter", "a", "add"), "missing a required argument"),
        (lambda system: system.tell("counter", "a", "add", n=1, m=2), "unexpected keyword argument 'm'"),
        (lambda system: system.tell("counter", "a", "add", n=object()), "cannot be written as JSON"),
        (lambda system: system.tell("counter", "", "add", n=1), "key"),
        (lambda system: system.tell("counter", "a\0", "add", n=1), "NUL"),
        (lambda system: system.tell("counter", "a", "add", n=1, id=""), "id"),
        (lambda system: system.ask("counter", "a", "add", n=1, timeout=-1), "timeout"),
        (lambda system: system.tell("stream", "x" * 510, "add", n=1), "too long"),
        (lambda system: system.state("nobody", "a"), "register its class"),
        (lambda _: new_system().run(), "has no actors to run"),
        (lambda _: new_system(concurrency=0), "concurrency"),
        (lambda _: new_system(lease=0), "lease"),
        (lambda _: new_system(events_schema='"; DROP'), "events_schema"),
        (lambda _: actors.System(None, AWAITED), "holdfast.actors.aio"),
        (lambda _: aio.System(None, BLOCKING), "use holdfast.actors"),
        (lambda _: actors.context(), "no message is handled here"),
    ],
)
def test_a_bad_call_is_refused(call: Any, says: str) -> None:
    system = new_system()
    system.actor("counter")(Counter)
    system.actor("stream", state="events")(type("Stream", (Counter,), {"apply": lambda self, event: None}))
    with pytest.raises(InvalidArgument, match=says):
        call(system)


class NeedsArguments:
    def __init__(self, name: str) -> None: ...
    def message(self) -> None: ...


class TakesId:
    def message(self, id: str) -> None: ...


class TakesPosition:
    def message(self, name: str, /) -> None: ...


class Awaits:
    async def message(self) -> None: ...


class Slotted:
    __slots__ = ("number",)

    def message(self) -> None: ...


class SlottedInPart(Slotted):
    """Its number would be forgotten after each message."""


class Empty:
    def _hidden(self) -> None: ...

    @staticmethod
    def helper(number: int) -> int:
        return number


@pytest.mark.parametrize(
    ("actor", "options", "says"),
    [
        (NeedsArguments, {}, "without arguments"),
        (TakesId, {}, "call it for example id_"),
        (TakesPosition, {}, "by position"),
        (Awaits, {}, "holdfast.actors.aio"),
        (Slotted, {}, "has __slots__"),
        (SlottedInPart, {}, "has __slots__"),
        (Empty, {}, "has no messages"),
        (Counter, {"state": "events"}, "apply"),
        (Counter, {"state": "row"}, "'value' or 'events'"),
        (Counter, {"attempts": 0}, "attempts"),
        (Counter, {"backoff": -1}, "backoff"),
        (Counter, {"snapshot_every": 0}, "snapshot_every"),
        (lambda: None, {}, "an actor is a class"),
    ],
)
def test_a_class_that_cannot_be_an_actor_is_refused(actor: Any, options: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        new_system().actor("kind", **options)(actor)


def test_a_kind_is_registered_once_and_by_name() -> None:
    system = new_system()
    assert system.actor("counter")(Counter) is Counter
    with pytest.raises(InvalidArgument, match="already"):
        system.actor("counter")(Counter)
    with pytest.raises(InvalidArgument, match=r"@system.actor\('account'\)"):
        system.actor(Counter)  # type: ignore[arg-type]  # a decorator without its name
    with pytest.raises(InvalidArgument, match="kind"):
        system.actor("")(Counter)


def test_the_script_for_administrators_has_both_parts() -> None:
    for url in ("postgresql://localhost/shop?schema=mine", "sqlite:///x.db"):
        text = actors.script(url)
        assert "queue_jobs" in text
        assert "queue_actor_states" in text
        assert text.count("BEGIN;") == text.count("COMMIT;") == 2


def test_asyncio_takes_async_methods() -> None:
    system = aio.System(None, holdfast.queue.aio.connect(NOWHERE))
    system.actor("awaits")(Awaits)
    assert "'awaits'" in repr(system)
