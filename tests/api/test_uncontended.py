"""Taking a free lock and giving it back is one request each: the driver begins no coroutine for either."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Client, EngineUnavailable, LockLost, LockTimeout, NotHeld
from holdfast.core.effects import NotApplied, OutcomeUnknown
from holdfast.drivers.threads import ThreadsDriver


@pytest.fixture
def client() -> Iterator[Client]:
    with holdfast.connect("memory://") as locks:
        yield locks


@pytest.fixture
def coroutines(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the coroutines that are begun in this client's own thread."""
    begun: list[str] = []
    run = ThreadsDriver.run

    def noting(self: ThreadsDriver, script: Any, even_if_closed: bool = False) -> Any:
        if not even_if_closed or script.__name__ not in ("renewal_loop", "deadline_loop", "close"):
            begun.append(script.__name__)
        return run(self, script, even_if_closed)

    monkeypatch.setattr(ThreadsDriver, "run", noting)
    return begun


def fail_once(client: Client, monkeypatch: pytest.MonkeyPatch, failure: Exception, after: bool) -> None:
    """The next request fails; ``after``: it is carried out all the same."""
    kind: Any = type(client._driver.adapter)
    apply = kind.apply

    def failing(self: Any, name: str, request: Any) -> Any:
        monkeypatch.undo()
        if after:
            apply(self, name, request)
        raise failure

    monkeypatch.setattr(kind, "apply", failing)


def test_no_coroutine_is_begun_for_a_free_lock(client: Client, coroutines: list[str]) -> None:
    lock = client.lock("x")
    for _ in range(3):
        lock.acquire()
        lock.release()
        with lock as lease:
            assert client.inspect("x").holders[0].token == lease.token
    assert coroutines == ["inspect"] * 3
    assert not client.inspect("x").locked


def test_a_coroutine_waits_for_a_lock_that_is_held(client: Client, coroutines: list[str]) -> None:
    with client.lock("x"):
        assert client.lock("x").acquire(timeout=0) is None
        with pytest.raises(LockTimeout), client.lock("x", timeout=0.01):
            pass
    assert coroutines == ["acquire", "acquire"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("failure", [NotApplied("busy"), OutcomeUnknown("no answer")])
def test_trouble_with_the_first_request_is_outlasted(
    client: Client, monkeypatch: pytest.MonkeyPatch, failure: Exception, after: bool
) -> None:
    lock = client.lock("x")
    fail_once(client, monkeypatch, failure, after and isinstance(failure, OutcomeUnknown))
    lease = lock.acquire(timeout=5)
    assert lease is not None
    fail_once(client, monkeypatch, failure, after and isinstance(failure, OutcomeUnknown))
    lock.release()
    with pytest.raises(NotHeld):
        lease.release()
    assert not client.inspect("x").locked


def test_an_engine_that_is_gone_leaves_the_lease_to_be_released_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = client.lock("x")
    fail_once(client, monkeypatch, EngineUnavailable("gone"), after=False)
    with pytest.raises(EngineUnavailable):
        lock.acquire()
    lock.acquire()
    fail_once(client, monkeypatch, EngineUnavailable("gone"), after=False)
    with pytest.raises(EngineUnavailable):
        lock.release()
    lock.release()
    assert not client.inspect("x").locked


def test_one_that_was_broken_is_reported_by_the_end_of_with(client: Client) -> None:
    with pytest.raises(LockLost, match="broken"), client.lock("x") as lease:
        client.break_lock("x", token=lease.token, reason="a test")
    assert not client.inspect("x").locked
