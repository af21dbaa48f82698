"""Programs for the child processes of these tests. Each prints where it is and waits for an order to go
on."""

from __future__ import annotations

from support import Process, run_python

__all__ = ["acting", "holding", "waiting"]

_COMMON = """
import os, sys, threading, time
import holdfast
from holdfast import fencing

locks = holdfast.connect(sys.argv[1])
options = eval(sys.argv[2])

def say(*words):
    # A whole line at once: a callback may say something at the same moment.
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()
"""

_HOLDING = (
    _COMMON
    + """
lock = locks.lock("x", **options)
lease = lock.acquire()
lease.on_lost(lambda lost: say("told", lost.lost))
say("held", lease.token)
for line in sys.stdin:
    try:
        say("did", eval(line))
    except BaseException as error:
        say("did", type(error).__name__, getattr(error, "reason", ""))
"""
)

_WAITING = (
    _COMMON
    + """
lock = locks.lock("x", **options)
print("asking", flush=True)
try:
    lease = lock.acquire()
    print("granted", lease.token, flush=True)
    sys.stdin.readline()
    lock.release()
    print("released", flush=True)
except KeyboardInterrupt:
    print("interrupted", lock.lease, flush=True)
"""
)


def holding(url: str, **options: object) -> Process:
    """Holds ``x``: ``held TOKEN``, ``told True`` at a loss; then evaluates each line: ``did RESULT``."""
    return run_python(_HOLDING, url, repr(options))


def waiting(url: str, **options: object) -> Process:
    """Waits for ``x``: ``asking``, ``granted TOKEN``; releases it when told to go on."""
    return run_python(_WAITING, url, repr(options))


def acting(url: str, code: str, **options: object) -> Process:
    """Runs ``code`` with ``locks`` (a client) and ``options`` at hand."""
    # It may fork while threads run, of which Python 3.12 and later warn: that is the hazard under test.
    quiet = ("-W", "ignore:This process:DeprecationWarning")
    return run_python(_COMMON + code, url, repr(options), options=quiet)
