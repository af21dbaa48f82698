"""One who watches a name looks by itself when time or a death changes it: nobody else would tell."""

from __future__ import annotations

from math import inf

from holdfast.core.effects import Apply, Now, ProtocolCoroutine, Wait
from holdfast.protocols import records
from holdfast.protocols.client_state import ClientState
from holdfast.protocols.records.acquisition import POLL_SECONDS_MAX
from holdfast.rules.record import Holder, Record
from holdfast.rules.requests import Snapshot, Watch


def held(client: str, token: int, expires_at: float) -> Record:
    holder = Holder(
        f"{client}-1", client, f"host/1/{client}", "exclusive", token, 0.0, expires_at, 30.0, True, None, {}
    )
    return Record(kind="lock", token=token, holders=(holder,))


def watching(seen: Snapshot) -> tuple[ProtocolCoroutine[Snapshot | None], Wait]:
    """A watch at the point where it waits."""
    client_state = ClientState("me", 5.0, 0.0, lambda timer: None, lambda: 100.0, lambda: "me-1")
    script = records.next_change(client_state, "x", "me-1", None, seen)
    assert isinstance(script.send(None), Now)
    wait = script.send(100.0)
    assert isinstance(wait, Wait)
    return script, wait


def test_the_death_of_a_holder_wakes_it() -> None:
    _, wait = watching(Snapshot(held("ann", 7, inf), 50.0))
    assert wait.blockers == ("ann",)


def test_it_looks_when_a_lease_runs_out() -> None:
    _, wait = watching(Snapshot(held("ann", 7, 52.0), 50.0))
    assert wait.until == 102.0


def test_a_look_that_finds_nothing_new_is_not_reported() -> None:
    seen = Snapshot(held("ann", 7, 52.0), 50.0)
    script, _ = watching(seen)
    look = script.send(False)
    assert isinstance(look, Apply)
    assert isinstance(look.request, Watch)
    assert isinstance(script.send(Snapshot(held("ann", 7, 82.0), 52.0)), Now)  # it was renewed meanwhile
    assert isinstance(script.send(102.0), Now)
    again = script.send(102.0)
    assert isinstance(again, Wait)
    assert again.until == 102.0 + POLL_SECONDS_MAX
