"""Errors: one tree, one message each, whole after a journey between processes."""

from __future__ import annotations

import copy
import pickle

import pytest

import holdfast
from holdfast import (
    Conflict,
    Deadlock,
    EngineUnavailable,
    HolderInfo,
    HoldfastError,
    InvalidArgument,
    LockLost,
    LockTimeout,
    NotHeld,
    ReplayedError,
    StaleToken,
    Unsupported,
)

pytestmark = pytest.mark.timeless

TREE: dict[type[HoldfastError], type[Exception]] = {
    LockTimeout: TimeoutError,
    LockLost: HoldfastError,
    NotHeld: RuntimeError,
    StaleToken: HoldfastError,
    Conflict: HoldfastError,
    Deadlock: HoldfastError,
    ReplayedError: HoldfastError,
    EngineUnavailable: ConnectionError,
    Unsupported: HoldfastError,
    InvalidArgument: ValueError,
}
every = pytest.mark.parametrize("kind", TREE)


@every
def test_one_tree(kind: type[HoldfastError]) -> None:
    assert issubclass(kind, HoldfastError)
    assert issubclass(kind, TREE[kind])


@every
def test_one_message(kind: type[HoldfastError]) -> None:
    error = kind("what happened")
    assert str(error) == error.message == "what happened"
    assert error.args == ("what happened",)
    assert kind().message == ""


ATTRIBUTES: list[tuple[HoldfastError, dict[str, object]]] = [
    (
        LockTimeout("t"),
        {
            "name": "x",
            "holders": (HolderInfo("h/1/t", "c", "h", 1, "t", "exclusive", 7, 1.5, 2.5, {"a": "b"}),),
        },
    ),
    (LockLost("l"), {"name": "x", "token": 7, "reason": "broken"}),
    (NotHeld("n"), {"name": "x"}),
    (StaleToken("s"), {"resource": "r", "token": 1, "newest": 2}),
    (ReplayedError("r"), {"error_type": "shop.Declined", "error_text": "no funds"}),
    (EngineUnavailable("e"), {}),
]


@pytest.mark.parametrize(("error", "attributes"), ATTRIBUTES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_errors_travel_whole(error: HoldfastError, attributes: dict[str, object], protocol: int) -> None:
    for name, value in attributes.items():
        setattr(error, name, value)
    error.add_note("a note")
    for arrived in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(arrived) is type(error)
        assert arrived.args == error.args
        assert arrived.__notes__[0] == "a note"
        for name, value in attributes.items():
            assert getattr(arrived, name) == value


@every
def test_what_an_error_carries_has_a_default(kind: type[HoldfastError]) -> None:
    error = kind("x")
    for name in ("name", "token", "reason", "holders", "resource", "newest"):
        assert hasattr(error, name) == hasattr(kind, name)


@pytest.mark.realtime
def test_real_errors_travel_too() -> None:
    with holdfast.connect("memory://errors") as client:
        lease = client.lock("x").acquire()
        assert lease is not None
        with pytest.raises(LockTimeout) as refused:
            client.lock("x", timeout=0).__enter__()
        arrived = pickle.loads(pickle.dumps(refused.value))
        assert (arrived.name, arrived.holders[0].token) == ("x", lease.token)
        client.break_lock("x", reason="test")
        assert lease.wait_lost(timeout=20)
        with pytest.raises(LockLost) as lost:
            lease.check()
        arrived = pickle.loads(pickle.dumps(lost.value))
        assert (arrived.name, arrived.token, arrived.reason) == ("x", lease.token, "broken")
