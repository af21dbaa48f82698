"""The liveness lock decides: locked is alive, free dead, missing unknown. A boot id alone decides nothing."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from engines.sqlite.stores import HOLDER, PATIENT, Clock, One, query, record_of, side_files, update
from holdfast.engines.sqlite import liveness
from holdfast.engines.sqlite.liveness import Identity, Status, identify, probe
from holdfast.engines.sqlite.side_directory import SideDirectory
from holdfast.rules.requests import Busy, Done, Gone, Granted, Queued, Renew
from support import Process, run_python, wait_until
from support.renewing import HAIR

FORKS_BEHIND_PYTHON = "import ctypes; pid = ctypes.CDLL(None).fork(); pid or __import__('signal').pause()"


@pytest.fixture
def holder(url: str) -> Iterator[Process]:
    with run_python(PATIENT, url, "x", "60") as child:
        child.expect("held")
        yield child


def one_who_waits_hears_of_it(url: str, end: Callable[[], None]) -> None:
    """It gets the lock once the holder is ended, and not by looking."""
    with run_python(PATIENT, url, "x", "60") as waiter:
        with holdfast.connect(url) as locks:
            wait_until(lambda: locks.inspect("x").waiters)
        end()
        waiter.expect("held")


# --- a holder that is killed ----------------------------------------------------------------------


def test_a_killed_holder_is_noticed_at_once(url: str, holder: Process) -> None:
    one_who_waits_hears_of_it(url, holder.kill)


def test_also_when_it_had_forked(url: str, holder: Process) -> None:
    holder.send("import os; os.fork() or __import__('signal').pause()")
    holder.expect("done")
    one_who_waits_hears_of_it(url, holder.kill)


def test_also_when_it_had_forked_behind_the_back_of_python(url: str, holder: Process) -> None:
    holder.send(FORKS_BEHIND_PYTHON)
    holder.expect("done")
    one_who_waits_hears_of_it(url, holder.kill)


def test_also_while_nobody_has_fetched_its_exit_status(url: str, holder: Process) -> None:
    """A zombie holds nothing."""
    one_who_waits_hears_of_it(url, lambda: os.kill(holder.pid, signal.SIGKILL))


@pytest.mark.usefixtures("patient")
def test_also_where_processes_cannot_be_watched(
    url: str, holder: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then their liveness is probed, a few times a second."""
    monkeypatch.delattr(os, "pidfd_open")
    with holdfast.connect(url) as locks:
        lock = locks.lock("x")
        waiting = threading.Thread(target=lambda: lock.acquire(timeout=50))
        waiting.start()
        wait_until(lambda: locks.inspect("x").waiters)
        holder.kill()
        wait_until(lambda: lock.lease, message="it did not hear of it")
        waiting.join()
        lock.release()


def test_a_try_finds_a_killed_holder_gone(url: str, holder: Process) -> None:
    holder.kill()
    with holdfast.connect(url) as locks, locks.lock("x", timeout=0):
        pass


def test_a_killed_holder_is_neither_listed_nor_shown(url: str, holder: Process) -> None:
    with holdfast.connect(url) as locks:
        assert [info.name for info in locks.list()] == ["x"]
        holder.kill()
        assert locks.inspect("x").holders == ()
        assert list(locks.list()) == []


def test_one_that_exited_without_releasing_is_gone_too(url: str, holder: Process) -> None:
    holder.close_stdin()
    assert holder.wait() == 0
    with holdfast.connect(url) as locks, locks.lock("x", timeout=0):
        pass


def test_a_dead_client_is_noted_and_its_files_are_removed(url: str, path: Path, holder: Process) -> None:
    holder.kill()
    with holdfast.connect(url) as locks:
        assert locks.inspect("x").holders == ()
        assert query(path, "SELECT count(*) FROM clients WHERE dead > 0") == [(1,)]
        assert query(path, "SELECT count(*) FROM clients WHERE dead = 0") == [(1,)]
        assert sorted(file.suffix for file in side_files(path)) == ["", ".alive", ".sock"]


def test_a_paused_holder_keeps_its_lease_until_it_expires(url: str) -> None:
    with run_python(HOLDER, url, "x", "1.5") as holder, holdfast.connect(url) as locks:
        holder.expect("held")
        holder.stop()
        lock = locks.lock("x")
        began = time.monotonic()
        left = max((each.remaining for each in locks.inspect("x").holders), default=0.0)
        assert lock.acquire(timeout=10) is not None
        assert time.monotonic() - began > left - HAIR
        lock.release()
        holder.cont()


def test_a_killed_waiter_gives_its_place_to_the_next(url: str, holder: Process) -> None:
    with (
        run_python(PATIENT, url, "x", "60") as first,
        run_python(PATIENT, url, "x", "60") as second,
        holdfast.connect(url) as locks,
    ):
        wait_until(lambda: len(locks.inspect("x").waiters) == 2)
        order = [waiter.pid for waiter in locks.inspect("x").waiters]
        head, next_one = (first, second) if order[0] == first.pid else (second, first)
        head.kill()
        holder.send("release")
        next_one.expect("held")


# --- probing --------------------------------------------------------------------------------------


@pytest.fixture
def side(path: Path, client: Callable[[], One]) -> Iterator[SideDirectory]:
    """The side folder of a database with one client, as ``probe`` wants it."""
    one = client()
    one.hold("x")
    side = SideDirectory(f"{path}.clients", os.open(f"{path}.clients", os.O_RDONLY))
    yield side
    side.close()


def client_in(path: Path) -> str:
    return next(file.stem for file in side_files(path) if file.suffix == ".alive")


def test_the_liveness_file_of_another_user_says_nothing(
    side: SideDirectory, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert probe(side, client_in(path), None, identify()) is Status.UNKNOWN


def test_locked_is_alive(side: SideDirectory, path: Path) -> None:
    assert probe(side, client_in(path), identify(), identify()) is Status.ALIVE
    assert probe(side, client_in(path), None, identify()) is Status.ALIVE


def test_free_is_dead(side: SideDirectory, path: Path) -> None:
    (path.parent / "locks.db.clients" / "0123.alive").touch()
    assert probe(side, "0123", None, identify()) is Status.DEAD


def test_missing_is_unknown(side: SideDirectory) -> None:
    assert probe(side, "0123", None, identify()) is Status.UNKNOWN
    assert probe(side, "0123", identify(), identify()) is Status.UNKNOWN


def test_locked_by_a_child_of_a_process_that_is_gone_is_dead(side: SideDirectory, path: Path) -> None:
    us = identify()
    with run_python("pass") as child:
        child.wait()
        gone = us._replace(pid=child.pid, started=1)
    assert probe(side, client_in(path), gone, us) is Status.DEAD


def test_a_process_number_in_use_again_is_not_its_former_owner(side: SideDirectory, path: Path) -> None:
    us = identify()
    assert probe(side, client_in(path), us._replace(started=us.started - 1), us) is Status.DEAD


@pytest.mark.parametrize("change", [{"pid_namespace": 1}, {"pid_namespace": 0}, {"boot": "another"}])
def test_process_numbers_of_elsewhere_say_nothing(
    side: SideDirectory, path: Path, change: dict[str, int | str]
) -> None:
    us = identify()
    elsewhere = Identity(**{**us._replace(pid=2**22 + 1, started=1)._asdict(), **change})
    assert probe(side, client_in(path), elsewhere, us) is Status.ALIVE


def test_a_liveness_file_is_made_anew_where_a_sweep_took_it(
    path: Path, client: Callable[[], One], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the making and the locking of the file another process may take it for abandoned."""
    flock = fcntl.flock
    taken: list[int] = []

    def sweep_first(fd: int, operation: int) -> None:
        if not taken and operation & fcntl.LOCK_EX and path.exists():
            for file in side_files(path):
                if file.suffix == ".alive":
                    file.unlink()
                    taken.append(fd)
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    one = client()
    one.hold("x")
    assert taken
    assert client_in(path) == one.id
    with One(path) as other:
        assert isinstance(other.ask("x", other.attempt()), Busy)


# --- boots ----------------------------------------------------------------------------------------


class Elsewhere:
    """Makes clients that tell times under another boot id: after a reboot, or in another container."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, client: Callable[[], One]) -> None:
        self._monkeypatch = monkeypatch
        self._client = client

    def __call__(self, boot: str = "another boot") -> One:
        one = self._client()
        with self._monkeypatch.context() as patch:
            patch.setattr(liveness, "boot_id", lambda: boot)
            one.ask("first use", one.attempt(0.001))
        return one


@pytest.fixture
def elsewhere(
    monkeypatch: pytest.MonkeyPatch, client: Callable[[], One], strangers: None, clock: Clock
) -> Elsewhere:
    return Elsewhere(monkeypatch, client)


def test_after_a_reboot_what_was_held_is_free_at_once(
    url: str, path: Path, elsewhere: Elsewhere, holder: Process
) -> None:
    """Nobody holds the old client's liveness lock; its process id belongs to another process by now."""
    holder.kill()
    update(path, "UPDATE clients SET pid = ?, dead = 0", os.getpid())
    assert isinstance(elsewhere().ask("x", elsewhere().attempt()), Granted)


def test_another_boot_id_does_not_void_a_live_holder(client: Callable[[], One], elsewhere: Elsewhere) -> None:
    here = client()
    attempt, _ = here.hold("x", ttl=1000)
    there = elsewhere()
    assert isinstance(there.ask("x", there.attempt()), Busy)
    assert isinstance(there.ask("x", there.attempt()), Busy)
    assert here.renew_batch(("x", Renew(attempt.nonce, 1000))) == [Done()]
    assert [holder.nonce for holder in record_of(there, "x").holders] == [attempt.nonce]


def test_what_cannot_be_known_waits_for_the_ttl_under_another_boot_id(
    path: Path, client: Callable[[], One], elsewhere: Elsewhere, clock: Clock
) -> None:
    here = client()
    here.hold("x", ttl=0.5)
    for file in side_files(path):
        file.unlink()
    there = elsewhere()
    for _ in range(4):
        assert isinstance(there.ask("x", there.attempt()), Busy)
        clock.passes(0.15)
    # The time is taken anew once, not with every look: otherwise a dead holder would block for ever.
    assert isinstance(there.ask("x", there.attempt()), Granted)


def test_renewals_under_another_boot_id_are_seen(
    client: Callable[[], One], elsewhere: Elsewhere, clock: Clock
) -> None:
    here = client()
    attempt, _ = here.hold("x", ttl=0.6)
    there = elsewhere()
    for _ in range(10):
        assert here.renew_batch(("x", Renew(attempt.nonce, 0.6))) == [Done()]
        assert isinstance(there.ask("x", there.attempt()), Busy)
        clock.passes(0.15)
    clock.passes(0.6)
    assert isinstance(there.ask("x", there.attempt()), Granted)
    assert isinstance(here.renew_batch(("x", Renew(attempt.nonce, 0.6)))[0], Gone)


def test_a_queue_may_have_waiters_of_two_boots(client: Callable[[], One], elsewhere: Elsewhere) -> None:
    here = client()
    attempt, _ = here.hold("x")
    there = elsewhere()
    first, second = there.attempt(wait=True), here.attempt(wait=True)
    assert isinstance(there.ask("x", first), Queued)
    assert isinstance(here.ask("x", second), Queued)
    here.release("x", attempt)
    assert isinstance(here.ask("x", second), Queued)
    assert isinstance(there.ask("x", first), Granted)


def test_a_boot_id_tells_of_this_boot_and_this_clock() -> None:
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        pytest.skip("no boot id here")
    assert liveness.boot_id().startswith(boot.read_text().strip())
    assert liveness.boot_id() == liveness.boot_id()


def test_a_missing_liveness_file_of_a_live_holder_is_not_its_end(
    path: Path, url: str, holder: Process
) -> None:
    for file in side_files(path):
        file.unlink()
    with holdfast.connect(url) as locks:
        assert locks.lock("x").acquire(blocking=False) is None
