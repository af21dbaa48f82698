"""Keys that Holdfast did not put where it looks, and nonces that it did not make."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.etcd.admin import Admin
from engines.etcd.conftest import Connect, Hold
from holdfast import EngineUnavailable
from holdfast.engines.etcd import wire_pb2 as wire
from holdfast.engines.etcd.keys import Keys
from holdfast.engines.etcd.notifications import WatchRegistry
from holdfast.protocols.tickets.codec import decode_note, decode_ticket

ANY_TEXT = st.text(st.characters(codec=None), max_size=30)  # lone surrogates among it


@given(nonce=ANY_TEXT, client=ANY_TEXT)
def test_any_text_as_a_nonce_has_a_key_of_its_own_in_the_right_place(nonce: str, client: str) -> None:
    keys = Keys("holdfast", "shop")
    folder = keys.folder("x")
    for mode in ("exclusive", "read"):
        key = keys.ticket(folder, mode, nonce)
        assert key.startswith(folder)
        assert b"/" not in key[len(folder) + 4 :]
    assert keys.note(nonce, client).startswith(b"holdfast/shop/c/")
    assert (keys.note(nonce, "c") == keys.note("c-1", "c")) == (nonce == "c-1")


def test_what_holdfast_makes_is_stored_as_it_always_was() -> None:
    keys = Keys("holdfast", "shop")
    assert keys.note("0a1b-2c") == b"holdfast/shop/c/0a1b/n/0a1b-2c"
    assert keys.ticket(keys.folder("x"), "exclusive", "0a1b-2c") == b"holdfast/shop/n/x/t/x/0a1b-2c"


STRAY = [b"s/no-number", b"s/", b"n/\xff\xfe", b"n/", b"other", b"", b"s/\xd9\xa3", b"n/0a-1"]


@pytest.mark.parametrize("kind", [wire.Event.PUT, wire.Event.DELETE])
def test_stray_keys_among_events_of_a_client_end_nothing(kind: wire.Event.EventType) -> None:
    keys = Keys("holdfast", "shop")
    ended: list[str] = []
    over: list[int] = []
    watches = WatchRegistry(keys, "me", lambda nonce: None, ended.append, over.append)
    watches.watch_client(lambda: None)
    for rest in STRAY:
        for value in (b"", b"[" * 100_000, b"\xff", b'[1,"0a-1","withdrawn","",0.0]'):
            event = wire.Event(type=kind, kv=wire.KeyValue(key=keys.client("me") + rest, value=value))
            watches.handle_response(wire.WatchResponse(watch_id=1, events=[event]))
    assert over == []


@given(st.binary(max_size=60) | st.recursive(st.none(), st.lists, max_leaves=5).map(str).map(str.encode))
def test_what_cannot_be_decoded_is_reported_as_such(data: bytes) -> None:
    for decode in (decode_note, lambda data: decode_ticket(data, 1, 4)):
        with pytest.raises(EngineUnavailable):
            decode(data)


def test_a_client_with_stray_keys_in_its_own_folder_is_notified_all_the_same(
    connect: Connect, hold: Hold, admin: Admin, namespace: str
) -> None:
    client = connect()
    lease = hold(client.lock("x"))
    (session,) = [key for key in admin.keys(f"/{namespace}/c/") if "/s/" in key]
    own = session.partition("/s/")[0]
    for stray in ("s/no-number", "n/nobody", "other"):
        admin.put(f"{own}/{stray}", b"\xff")
    assert connect().break_lock("x", reason="to see") is not None
    assert lease.wait_lost(timeout=20)
    with client.lock("x") as again:
        again.check()
