"""The one stream of watches: what is made again after it ended, and what a compaction does to it."""

from __future__ import annotations

import threading

import pytest

from engines.etcd.admin import Admin
from engines.etcd.conftest import Connect, Hold
from holdfast import Lease
from holdfast.engines.etcd import wire_pb2 as wire
from holdfast.engines.etcd.codec import Handle
from holdfast.engines.etcd.keys import Keys
from holdfast.engines.etcd.notifications import CLIENT_EVENTS, WatchRegistry
from holdfast.engines.etcd.rpc import WatchCall
from holdfast.protocols.tickets.codec import encode_note
from holdfast.protocols.tickets.store import EVERYTHING
from holdfast.rules.record import Tombstone
from holdfast.rules.tickets import Ticket, Watched
from support import wait_until

pytestmark = pytest.mark.timeless


class RecordingWatcher:
    """A table of watches, and what came of it."""

    def __init__(self) -> None:
        self.keys = Keys("holdfast", "test")
        self.posted: list[str] = []
        self.ended: list[str] = []
        self.over: list[int] = []
        self.confirmed: list[str] = []
        self.watches = WatchRegistry(self.keys, "me", self.posted.append, self.ended.append, self.over.append)

    def arm(self, nonce: str, *blockers: str, watched: Watched | None = None) -> list[wire.WatchRequest]:
        tickets = tuple(self.ticket(blocker) for blocker in blockers)
        op = WatchCall(nonce, "x", watched or Watched(blockers), tickets)
        return self.watches.add(op, lambda: self.confirmed.append(nonce))

    def ticket(self, nonce: str) -> Ticket:
        handle = Handle(self.key(nonce), 1, 1)
        return Ticket(1, 4, nonce, "", "", "lock", "exclusive", 1.0, 0.0, None, {}, handle)

    def key(self, nonce: str) -> bytes:
        return self.keys.ticket(self.keys.folder("x"), "exclusive", nonce)

    def confirm(self, requests: list[wire.WatchRequest]) -> None:
        for request in requests:
            if request.HasField("create_request"):
                created = wire.WatchResponse(watch_id=request.create_request.watch_id, created=True)
                assert self.watches.handle_response(created) == []

    def event(self, request: wire.WatchRequest, key: bytes, put: bool = False, value: bytes = b"") -> None:
        event = wire.Event(
            type=wire.Event.PUT if put else wire.Event.DELETE, kv=wire.KeyValue(key=key, value=value)
        )
        self.watches.handle_response(
            wire.WatchResponse(watch_id=request.create_request.watch_id, events=[event])
        )


def test_one_predecessor_is_one_watcher_of_its_end() -> None:
    watcher = RecordingWatcher()
    (request,) = watcher.arm("w-1", "h-1")
    create = request.create_request
    assert (create.key, create.range_end, create.start_revision) == (watcher.key("h-1"), b"", 0)
    assert list(create.filters) == [wire.WatchCreateRequest.NOPUT]
    assert not watcher.confirmed
    watcher.confirm([request])
    assert (watcher.confirmed, watcher.posted) == (["w-1"], [])
    watcher.event(request, watcher.key("h-1"))
    assert watcher.posted == ["w-1"]


def test_the_first_waiter_for_a_permit_is_notified_of_holders_and_of_the_limit() -> None:
    watcher = RecordingWatcher()
    requests = watcher.arm("w-1", "h-1", "h-2", watched=Watched(("h-1", "h-2"), limit=True))
    assert len(requests) == 2
    watcher.confirm(requests[:1])
    assert not watcher.confirmed, "not before both are in place"
    watcher.confirm(requests[1:])
    assert watcher.confirmed == ["w-1"]
    watcher.event(requests[0], watcher.key("another"))
    assert watcher.posted == []
    watcher.event(requests[0], watcher.key("h-2"))
    watcher.event(requests[1], watcher.keys.folder("x") + b"u", put=True)
    assert watcher.posted == ["w-1", "w-1"]


def test_another_predecessor_replaces_the_first() -> None:
    watcher = RecordingWatcher()
    (old,) = watcher.arm("w-1", "h-1")
    cancel, new = watcher.arm("w-1", "h-2")
    assert cancel.cancel_request.watch_id == old.create_request.watch_id
    watcher.event(old, watcher.key("h-1"))
    assert watcher.posted == [], "an event that was already on its way"
    watcher.event(new, watcher.key("h-2"))
    assert watcher.posted == ["w-1"]
    (cancel,) = watcher.watches.disarm("w-1")
    assert cancel.cancel_request.watch_id == new.create_request.watch_id
    assert watcher.watches.disarm("w-1") == []


@pytest.mark.parametrize("why", ["cancelled", "stream"])
def test_what_was_lost_is_made_again_confirmed_and_then_its_owner_is_woken(why: str) -> None:
    """By compaction, or because the stream ended: it may have missed something."""
    watcher = RecordingWatcher()
    (request,) = watcher.arm("w-1", "h-1")
    watcher.confirm([request])
    if why == "stream":
        again = watcher.watches.restart()
    else:
        cancelled = wire.WatchResponse(
            watch_id=request.create_request.watch_id, canceled=True, compact_revision=7
        )
        again = [
            each for each in watcher.watches.handle_response(cancelled) if each.HasField("create_request")
        ]
    (anew,) = again
    assert anew.create_request.watch_id != request.create_request.watch_id
    assert anew.create_request.key == request.create_request.key
    assert anew.create_request.start_revision == 0, "from now on; the past may be compacted"
    assert watcher.posted == []
    watcher.confirm([anew])
    assert watcher.posted == ["w-1"]


@pytest.mark.parametrize("why", ["cancelled", "stream"])
def test_a_waiter_without_a_confirmed_watcher_is_not_woken_as_well(why: str) -> None:
    """It looks when it is notified. A waiter that came while the first stream was being opened had looked
    twice."""
    watcher = RecordingWatcher()
    (first,) = watcher.arm("w-1", "h-1")
    if why == "stream":
        again = watcher.watches.restart()
    else:
        again = watcher.watches.handle_response(
            wire.WatchResponse(watch_id=first.create_request.watch_id, created=True, canceled=True)
        )
    watcher.confirm(again)
    assert (watcher.confirmed, watcher.posted) == (["w-1"], [])
    watcher.confirm(watcher.watches.restart())
    assert watcher.posted == ["w-1"], "once it had been in place"


def test_a_watcher_that_nobody_wants_any_more_is_cancelled() -> None:
    watcher = RecordingWatcher()
    (request,) = watcher.arm("w-1", "h-1")
    watcher.watches.disarm("w-1")
    created = wire.WatchResponse(watch_id=request.create_request.watch_id, created=True)
    (cancel,) = watcher.watches.handle_response(created)
    assert cancel.cancel_request.watch_id == request.create_request.watch_id


def test_a_refusal_is_remembered() -> None:
    watcher = RecordingWatcher()
    watcher.arm("w-1", "h-1")
    refused = wire.WatchResponse(watch_id=-1, created=True, canceled=True, cancel_reason="permission denied")
    assert watcher.watches.handle_response(refused) == []
    assert watcher.watches.refusal == "permission denied"


def test_the_inbox_tells_of_broken_grants_and_of_sessions_that_ended() -> None:
    watcher = RecordingWatcher()
    requests = watcher.watches.watch_client(lambda: watcher.confirmed.append(CLIENT_EVENTS))
    watcher.confirm(requests)
    note = watcher.keys.note("me-1")
    watcher.event(requests[0], note, put=True, value=encode_note(Tombstone("me-1", "broken", "why", 0.0)))
    watcher.event(
        requests[0],
        watcher.keys.note("me-2"),
        True,
        encode_note(Tombstone("me-2", "withdrawn", "", 0.0)),
    )
    watcher.event(requests[0], note)
    watcher.event(requests[0], watcher.keys.session("me", 0xABC), put=True)
    watcher.event(requests[0], watcher.keys.session("me", 0xABC))
    assert (watcher.ended, watcher.over, watcher.posted) == (
        ["me-1"],
        [0xABC],
        [],
    )


def test_everything_is_everything_in_the_names_folder() -> None:
    watcher = RecordingWatcher()
    (request,) = watcher.arm("w-1", watched=EVERYTHING)
    create = request.create_request
    assert (create.key, create.range_end) == (b"holdfast/test/n/x/", b"holdfast/test/n/x0")
    assert list(create.filters) == []


@pytest.mark.realtime
def test_compaction_harms_nobody(connect: Connect, hold: Hold, admin: Admin) -> None:
    """Neither those who wait nor those who watch, nor the next who come."""
    holder, other = connect(), connect()
    lease = hold(holder.lock("x"))
    granted: list[Lease] = []
    waiting = threading.Thread(target=lambda: granted.append(hold(other.lock("x"))))
    waiting.start()
    wait_until(lambda: len(holder.inspect("x").waiters) == 1)
    with other.watch("x") as watch:
        assert watch.next() is not None
        for _ in range(3):
            admin.compact()
        lease.release()
        changed = watch.next(timeout=20)
        assert changed is not None
    waiting.join(20)
    assert granted
    assert len(other.list()) == 1
