"""Accounts that send each other money, on several systems, while commits fail by chance; what must hold.

Every message is sent twice with one id, as by senders who do not know whether the first arrived.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import holdfast.queue
from holdfast import actors
from holdfast.actors import plans
from holdfast.errors import EngineUnavailable
from support import wait_until

__all__ = ["Crowd"]

KEYS = ("a", "b", "c")
AT_FIRST = 1000


class Crowd:
    def __init__(self, url: str, seed: int, systems: int = 2, messages: int = 24) -> None:
        self._url = url
        self._choose = random.Random(seed)
        self._systems = systems
        self._messages = messages
        self._mutex = threading.Lock()
        self._handling: Counter[str] = Counter()
        self.broken: list[str] = []

    def run(self) -> list[str]:
        """What did not hold."""
        queues = [holdfast.queue.connect(self._url, io_timeout=30) for _ in range(self._systems)]
        systems = [self._system(queue) for queue in queues]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plans, "_commit", self._failing(plans._commit))
            threads = [threading.Thread(target=system.run) for system in systems]
            for thread in threads:
                thread.start()
            try:
                self._send(systems[0])
                self._check_replies(systems[-1])
                with suppress(AssertionError):
                    wait_until(lambda: not self._left(queues[0]), timeout=20)
            finally:
                for system in systems:
                    system.stop()
                for thread in threads:
                    thread.join()
        self._check(systems[0])
        for queue in queues:
            queue.close()
        return self.broken

    @staticmethod
    def _left(queue: holdfast.queue.Queue) -> int:
        counts = queue.counts()
        return counts["ready"] + counts["blocked"] + counts["running"] + counts["scheduled"]

    def _system(self, queue: holdfast.queue.Queue) -> actors.System:
        crowd = self
        system = actors.System(None, queue, concurrency=2, lease=60)

        class Account:
            def __init__(self) -> None:
                self.balance = AT_FIRST
                self.seen: list[int] = []
                self.received = 0

            def send(self, number: int, to: str, amount: int) -> int:
                with crowd.alone(actors.context().key):
                    if to == actors.context().key:
                        raise actors.Rejected("that is me")
                    self.balance -= amount
                    self.seen.append(number)
                    actors.context().tell("account", to, "receive", amount=amount)
                    return number

            def receive(self, amount: int) -> None:
                with crowd.alone(actors.context().key):
                    self.balance += amount
                    self.received += 1

        system.actor("account", attempts=1000, backoff=0.001)(Account)
        return system

    def alone(self, key: str) -> Any:
        """One message of a key at a time."""
        crowd = self

        class Alone:
            def __enter__(self) -> None:
                with crowd._mutex:
                    crowd._handling[key] += 1
                    if crowd._handling[key] > 1:
                        crowd.broken.append(f"two messages of {key} were handled at once")
                threading.Event().wait(0.002)

            def __exit__(self, *_: object) -> None:
                with crowd._mutex:
                    crowd._handling[key] -= 1

        return Alone()

    def _failing(self, shipped: Callable[..., Any]) -> Callable[..., Any]:
        """The database goes away at the end of the transaction, which is rolled back."""

        def commit(*arguments: Any) -> Any:
            done = yield from shipped(*arguments)
            if self._choose.random() < 0.2:
                raise EngineUnavailable("cut off by chance")
            return done

        return commit

    def _send(self, system: actors.System) -> None:
        for number in range(self._messages):
            key, to = self._choose.choice(KEYS), self._choose.choice(KEYS)
            for _ in range(2):
                system.tell("account", key, "send", id=f"{number}", number=number, to=to, amount=number + 1)

    def _check_replies(self, system: actors.System) -> None:
        """What was replied is stored."""
        for number in range(1000, 1006):
            key = self._choose.choice(KEYS)
            to = KEYS[(KEYS.index(key) + 1) % len(KEYS)]
            system.ask("account", key, "send", number=number, to=to, amount=1, timeout=20)
            state = system.state("account", key)
            if state is None or number not in state["seen"]:
                self.broken.append(f"the reply to {number} came before its state")

    def _check(self, system: actors.System) -> None:
        states = [state for key in KEYS if (state := system.state("account", key)) is not None]
        if sum(state["balance"] for state in states) != AT_FIRST * len(states):
            self.broken.append(f"money was made or lost: {states}")
        for state in states:
            if state["seen"] != sorted(set(state["seen"])):
                self.broken.append(f"out of order, or twice: {state['seen']}")
        if sum(state["received"] for state in states) != sum(len(state["seen"]) for state in states):
            self.broken.append("what was sent was not received once")
        for letter in system.dead_letters("account"):
            self.broken.append(f"dead: {letter}")
