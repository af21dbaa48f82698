"""A worker process: it receives an order from the director, acts, and reports each step.

A report has a kind, details, and its moment on a clock that all processes share.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast
from holdfast import LockLost, StaleToken

from ..channel import Channel
from ..processes import clock, die_with_parent
from .data import JobLog, Ledger, Shop, locks_url

__all__ = ["CRON", "DEPLOY", "LEDGER", "SHOP", "Worker"]

CRON = "cron/nightly-report"
SHOP = "shop/lamp"
LEDGER = "ledger"
DEPLOY = "deploy"

PATIENCE_SECONDS = 30.0
"""Longer than any wait in the demo: a longer wait is a bug."""


class Dismissed(Exception):
    """The director has ended, or does not need this worker any more."""


class Worker:
    """One worker, in its own process."""

    def __init__(self, number: int, folder: Path, channel: Channel) -> None:
        self._number = number
        self._folder = folder
        self._channel = channel
        self._orders: deque[list[Any]] = deque()
        self._reporting = threading.Lock()
        self._roles: dict[str, Callable[..., None]] = {
            "cron": self._fire_cron_job,
            "buy": self._buy,
            "book": self._book,
            "hold": self._hold,
        }

    def run(self, director: int) -> None:
        """Follow orders until dismissed."""
        die_with_parent(director)
        # The director handles Ctrl-C, and cleans up.
        os.setpgid(0, 0)
        for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGWINCH):
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._keep_quiet()
        try:
            with contextlib.suppress(Dismissed), holdfast.connect(locks_url(self._folder)) as self._locks:
                self._locks.inspect(CRON)
                self._report("ready")
                while True:
                    role, *details = self._next_order()
                    self._roles[role](*details)
        except Exception:  # noqa: BLE001 - the director shows it
            self._report("failed", traceback=traceback.format_exc())

    def _keep_quiet(self) -> None:
        """Discard output: the terminal belongs to the director's display."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)

    def _report(self, kind: str, **details: Any) -> None:
        with self._reporting:
            self._channel.send(kind, clock(), details)

    def _next_order(self) -> list[Any]:
        while not self._orders:
            if self._channel.closed:
                raise Dismissed
            self._orders.extend(self._channel.receive())
        return self._orders.popleft()

    # Scene 1

    def _fire_cron_job(self, window: str, delay_seconds: float, job_seconds: float) -> None:
        """Acquire the lock and read its value. Do this window's job if the value does not say that it is
        done."""
        time.sleep(delay_seconds)
        self._report("waiting")
        with self._locks.lock(CRON, timeout=PATIENCE_SECONDS) as lease:
            done = self._locks.inspect(CRON).value == window.encode()
            self._report("granted", token=lease.token, done=done)
            if not done:
                JobLog(self._folder).append(window)
                time.sleep(job_seconds)
                lease.set_value(window.encode())
        self._report("finished", ran=not done)

    # Scene 2

    def _buy(self, locked: bool, begin_at: float) -> None:
        time.sleep(max(0.0, begin_at - clock()))
        if locked:
            self._report("waiting")
            with self._locks.lock(SHOP, timeout=PATIENCE_SECONDS) as lease:
                self._report("granted", token=lease.token)
                bought = Shop(self._folder).buy(self._number)
        else:
            bought = Shop(self._folder).buy(self._number)
        self._report("finished", bought=bought)

    # Scene 3

    def _book(self, amount: int, ttl: float, stalls: bool) -> None:
        """Add an amount to the balance. Start again if the lock is lost meanwhile."""
        ledger = Ledger(self._folder)
        self._report("waiting")
        lease = self._granted(LEDGER, ttl)
        lease.on_lost(lambda _: self._report("told"))
        balance = ledger.read(lease)
        self._report("granted", token=lease.token, balance=balance)
        if stalls:
            self._next_order()  # It is stopped here, and does the next step without another check.
        ledger.write_unguarded(balance + amount)
        refusal = ""
        try:
            ledger.write(lease, balance + amount)
        except StaleToken as error:
            refusal = str(error)
        self._report("wrote", balance=balance + amount, refusal=refusal)
        try:
            lease.release()
        except LockLost as error:
            self._report("lost", reason=error.reason)
            self._redo(ledger, amount, ttl)
        self._report("finished")

    def _redo(self, ledger: Ledger, amount: int, ttl: float) -> None:
        with self._locks.lock(LEDGER, ttl=ttl, timeout=PATIENCE_SECONDS) as lease:
            balance = ledger.read(lease)
            self._report("granted", token=lease.token, balance=balance)
            ledger.write(lease, balance + amount)
        self._report("redone", balance=balance + amount)

    # Scene 4

    def _hold(self, ttl: float) -> None:
        self._report("waiting")
        lease = self._granted(DEPLOY, ttl)
        self._report("granted", token=lease.token)
        self._next_order()
        lease.release()
        self._report("finished")

    def _granted(self, name: str, ttl: float) -> holdfast.Lease:
        lease = self._locks.lock(name, ttl=ttl, timeout=PATIENCE_SECONDS).acquire()
        if lease is None:
            raise TimeoutError(f"{name!r} was not granted within {PATIENCE_SECONDS:g} s")
        return lease
