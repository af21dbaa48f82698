"""Every public operation, for tests of what rights they take."""

from __future__ import annotations

from holdfast import Client

__all__ = ["everything"]


def everything(client: Client, other: Client) -> None:
    """Every public operation, once."""
    with client.lock("lock", metadata={"a": "b"}) as lease:
        lease.set_value(b"value")
        lease.extend()
        lease.check()
        assert other.lock("lock").acquire(timeout=0) is None
        assert other.inspect("lock").holders[0].token == lease.token
        assert [info.name for info in other.list()] == ["lock"]
        with other.watch("lock") as watch:
            assert watch.next(timeout=20) is not None
    waited = client.lock("waits").acquire(timeout=5)
    assert waited is not None
    assert other.lock("waits").acquire(timeout=0.2) is None, "waits, watches and withdraws"
    waited.release()
    with client.rlock("rlock") as outer, client.rlock("rlock") as inner:
        assert outer.token == inner.token
    with client.rwlock("rw").write() as writing:
        writing.downgrade()
        with other.rwlock("rw").read():
            pass
    with client.semaphore("sem", 2), other.semaphore("sem", 2):
        client.semaphore("sem", 2).resize(3)
    lent = client.lock("lent").acquire(timeout=5)
    assert lent is not None
    other.adopt(lent.export()).release()
    broken = client.lock("broken").acquire(timeout=5)
    assert broken is not None
    assert other.break_lock("broken", reason="to see whether we may") is not None
    assert broken.wait_lost(timeout=20)
