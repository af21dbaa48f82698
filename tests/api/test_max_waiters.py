"""The option ``max_waiters``: in the URL, in the environment, or as an argument."""

from __future__ import annotations

import threading

import pytest

import holdfast
import holdfast.aio
from holdfast import EngineUnavailable, InvalidArgument, Unsupported
from support import wait_until


def is_full(client: holdfast.Client, waiting: int) -> bool:
    """Whether one more is turned away when so many wait."""
    held = client.lock("x").acquire()
    assert held is not None
    threads = [threading.Thread(target=lambda: client.lock("x").acquire()) for _ in range(waiting)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(client.inspect("x").waiters) == waiting)
    try:
        with client.lock("x", timeout=0.05):
            pass
    except EngineUnavailable as error:
        return f"'x' has {waiting} waiters already, and {waiting} may wait" in str(error)
    except holdfast.LockTimeout:
        return False
    finally:
        client.close()
        for thread in threads:
            thread.join()
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning", "ignore::ResourceWarning")
def test_wherever_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_full(holdfast.connect("memory://max-waiters-1?max_waiters=2"), 2)
    assert is_full(holdfast.connect("memory://max-waiters-2", max_waiters=1), 1)
    assert is_full(holdfast.connect("memory://max-waiters-3?max_waiters=5", max_waiters=1), 1)
    monkeypatch.setenv("HOLDFAST_URL", "memory://max-waiters-4?max_waiters=1")
    assert is_full(holdfast.connect(), 1)
    assert not is_full(holdfast.connect("memory://max-waiters-5"), 20)


@pytest.mark.parametrize("given", ["0", "-1", "x", "1.5", "", "9999999999999999"])
def test_what_is_no_number_is_refused(given: str) -> None:
    with pytest.raises(InvalidArgument, match="max_waiters"):
        holdfast.connect(f"memory://?max_waiters={given}")
    with pytest.raises(InvalidArgument, match="max_waiters"):
        holdfast.aio.connect("memory://", max_waiters=given)


def test_engines_that_do_not_count_say_so() -> None:
    with pytest.raises(Unsupported, match=r"max_waiters.*redis://"):
        holdfast.connect("redlock://a:1,b:2,c:3?max_waiters=5")
    holdfast.connect("redlock://a:1,b:2,c:3").close()
