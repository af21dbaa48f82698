"""After a fork the child owns nothing, and nothing of SQLite's is carried over."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import holdfast
from engines.sqlite.stores import HOLDER, One, query
from holdfast.engines.sqlite import connection
from holdfast.engines.sqlite.database_file import DatabaseFile
from support import run_python, stays_true

FORKER = """
    import os, sys, holdfast

    locks = holdfast.connect(sys.argv[1])
    lease = locks.lock("x", ttl=60).acquire()

    def child():
        assert lease.lost
        assert locks.lock("x").acquire(blocking=False) is None     # it is the parent's
        with locks.lock("y"):                                       # a client of the child's own
            assert {holder.pid for holder in locks.inspect("y").holders} == {os.getpid()}
        assert {holder.pid for holder in locks.inspect("x").holders} == {os.getppid()}
        print("child fine", flush=True)

    for _ in range(5):
        pid = os.fork()
        if pid == 0:
            child()
            if sys.argv[2] == "exit":
                sys.exit(0)
            os._exit(0)
        lease.check()
        with locks.lock("z"):
            pass
        assert os.waitpid(pid, 0)[1] == 0
        lease.check()
        assert [holder.token for holder in locks.inspect("x").holders] == [lease.token]
    lease.release()
    print("parent fine")
"""


def fork_in_child(url: str, how: str) -> str:
    with run_python(FORKER, url, how, options=("-X", "dev")) as child:
        return child.succeed()


def test_a_child_that_ends_as_any_program_does_leaves_the_parents_lease_alone(url: str, path: Path) -> None:
    assert fork_in_child(url, "exit").count("fine") == 6
    assert query(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_child_that_ends_at_once_too(url: str, path: Path) -> None:
    assert fork_in_child(url, "_exit").count("fine") == 6
    assert query(path, "PRAGMA integrity_check") == [("ok",)]


def test_threads_go_on_while_their_process_forks(url: str, path: Path) -> None:
    code = """
        import os, sys, threading, holdfast

        locks = holdfast.connect(sys.argv[1])
        stop = threading.Event()
        failures = []

        def hammer(name):
            try:
                while not stop.is_set():
                    with locks.lock(name):
                        pass
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=hammer, args=(f"t{n}",)) for n in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(30):
            pid = os.fork()
            if pid == 0:
                with holdfast.connect(sys.argv[1]) as mine, mine.lock("child"):
                    os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures, failures
        print("fine")
    """
    with run_python(code, url) as child:
        assert "fine" in child.succeed(timeout=60)
    assert query(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_child_forked_behind_the_back_of_python_gets_an_error(url: str) -> None:
    code = """
        import ctypes, os, sys, holdfast

        locks = holdfast.connect(sys.argv[1])
        lease = locks.lock("x", ttl=60).acquire()
        pid = ctypes.CDLL(None).fork()
        if pid == 0:
            try:
                locks.lock("y").acquire()
            except holdfast.EngineUnavailable as error:
                print("refused", error, flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        lease.check()
        lease.release()
        print("parent fine")
    """
    with run_python(code, url) as child:
        assert "connect again in the child" in child.expect("refused")
        assert "parent fine" in child.succeed()


def test_a_fork_that_is_only_announced_afterwards_does_not_reuse_what_it_inherited(url: str) -> None:
    """As uWSGI does it: the child is notified, the parent was not."""
    code = """
        import _imp, ctypes, os, sys, holdfast

        locks = holdfast.connect(sys.argv[1])
        lease = locks.lock("x", ttl=60).acquire()
        _imp.acquire_lock()
        pid = ctypes.CDLL(None).fork()
        if pid == 0:
            ctypes.pythonapi.PyOS_AfterFork_Child()
            try:
                locks.lock("y").acquire()
            except holdfast.EngineUnavailable as error:
                print("refused", error, flush=True)
            sys.exit(0)
        _imp.release_lock()
        os.waitpid(pid, 0)
        lease.check()
        lease.release()
        print("parent fine")
    """
    with run_python(code, url) as child:
        assert "connect after the fork" in child.expect("refused")
        assert "parent fine" in child.succeed()


def test_no_descriptor_reaches_a_program_that_is_started(url: str) -> None:
    code = """
        import os, subprocess, sys, holdfast

        with holdfast.connect(sys.argv[1]) as locks, locks.lock("x"):
            assert locks.lock("x").acquire(timeout=0.05) is None        # a listener, too
            shown = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True).stdout
        print("fine" if "locks.db" not in shown and "socket" not in shown else shown)
    """
    with run_python(code, url) as child:
        assert child.succeed().strip() == "fine"


def test_a_killed_parent_is_noticed_though_its_child_lives(url: str) -> None:
    with run_python(HOLDER, url, "x", "60") as holder:
        holder.expect("held")
        holder.send("import os; os.fork() or __import__('signal').pause()")
        holder.expect("done")
        holder.kill()
        with holdfast.connect(url) as locks, locks.lock("x", timeout=2):
            pass


def test_a_store_in_the_child_lets_go_without_a_word(path: Path, client: Callable[[], One]) -> None:
    one = client()
    one.hold("x")
    before = len(os.listdir("/proc/self/fd"))
    pid = os.fork()
    if pid == 0:
        one.store.forked()
        # The file, the socket, the folder: everything but the connection, which was closed before.
        os._exit(0 if len(os.listdir("/proc/self/fd")) < before else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert query(path, "SELECT count(*) FROM clients WHERE dead = 0") == [(1,)]


class SlowToClose:
    """A connection that is still open while it is being closed."""

    def __init__(self) -> None:
        self.closing = threading.Event()
        self.go_on = threading.Event()

    def close(self) -> None:
        self.closing.set()
        assert self.go_on.wait(10)


def test_a_fork_waits_for_a_connection_that_is_being_closed(path: Path) -> None:
    """SQLite writes back its log then; a child with half of that in its memory would do harm."""
    slow = SlowToClose()
    tidied = connection.DatabaseConnection(DatabaseFile(str(path), False))
    tidied.connection = cast(sqlite3.Connection, slow)
    connection._open.add(tidied)

    def close() -> None:
        with tidied.mutex:
            tidied.close()

    closer = threading.Thread(target=close)
    closer.start()
    assert slow.closing.wait(10)
    forking = threading.Thread(target=connection._before_fork)
    forking.start()
    stays_true(forking.is_alive, 0.2)
    slow.go_on.set()
    forking.join(10)
    closer.join(10)
    connection._in_parent()
    assert not connection._open
