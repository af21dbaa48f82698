"""What every test may use: waiting for a condition, real child processes, interrupts.

    from support import Process, run_python, wait_until

Nothing here knows Holdfast's inside. ``support.servers`` has the servers that tests share. This package
is the only place in the tests that sleeps.
"""

from __future__ import annotations

from .interrupts import interrupted_after
from .processes import Process, ProcessEnded, python_environment, run_python
from .renewing import Seen, renewal_of
from .waiting import TimedOut, async_wait_until, stays_true, wait_until

__all__ = [
    "Process",
    "ProcessEnded",
    "Seen",
    "TimedOut",
    "async_wait_until",
    "interrupted_after",
    "python_environment",
    "renewal_of",
    "run_python",
    "stays_true",
    "wait_until",
]
