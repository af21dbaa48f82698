"""Actors: objects with a mailbox, which handle one message at a time in the whole cluster.

    import holdfast.queue
    from holdfast import actors

    queue = holdfast.queue.connect("postgresql://localhost/shop")
    system = actors.System(None, queue)

    @system.actor("account")
    class Account:
        def __init__(self) -> None:
            self.balance = 0

        def deposit(self, amount: int) -> int:
            self.balance += amount
            return self.balance

    system.tell("account", "7", "deposit", amount=100)           # by any process
    system.run()                                                 # in any number of processes

An actor is named by its kind and a key. Its messages are jobs of the queue, in one lane for each actor; its
state is in the queue's database. What a message changes, the messages it sends, its reply and its end are one
transaction: a worker that is killed has changed nothing, and a worker that continues after a stop is refused.
``holdfast.actors.aio`` has the same, awaited.
"""

from __future__ import annotations

from .context import Context, context
from .model import DeadLetter, MessageFailed, Rejected
from .tables import script
from .threads import System

__all__ = ["Context", "DeadLetter", "MessageFailed", "Rejected", "System", "context", "script"]
