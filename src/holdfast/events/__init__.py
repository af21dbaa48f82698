"""Event streams: what happened, in the order in which it happened, in a database that is there anyway.

A stream is the history of one thing (an account, an order). A writer appends to it at the version that it has
read; if another one was first, it gets ``Conflict`` and decides again. No writer waits for a lock.

    from holdfast import events

    store = events.connect("postgresql://localhost/app")
    store.append("account-7", [{"type": "opened"}], expected_version=0)
    store.append("account-7", [{"type": "deposited", "amount": 100}], expected_version=1)
    balance = sum(event.data.get("amount", 0) for event in store.read("account-7"))

``read_all`` and ``subscribe`` give the events of all streams in one order that never changes. ``projection``
computes from them, each event once. ``holdfast.events.aio`` has the same, awaited.
"""

from __future__ import annotations

from .blocking import EventStore, Projection, Subscription, connect
from .model import Event, Snapshot

__all__ = ["Event", "EventStore", "Projection", "Snapshot", "Subscription", "connect"]
