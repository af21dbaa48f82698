"""A job queue in your own database: PostgreSQL, or a SQLite file.

    import holdfast.queue

    queue = holdfast.queue.connect("postgresql://localhost/shop")
    queue.put("invoice", {"order": 7}, key="7", connection=db)   # commits with the order, or not at all

    for job in queue.claim(["invoice"], lease=30):
        with job.transaction() as db:        # what is written here happens exactly once
            db.execute("UPDATE …")

Every claim has a lease and a fencing token: a worker that was stopped and wakes after its job was given to
another can neither finish it nor fail it (``StaleToken``). ``holdfast.queue.aio`` has the same, awaited.
"""

from __future__ import annotations

from ..sql.retry import Backoff
from .arguments import IO_TIMEOUT_SECONDS
from .database import database_of
from .migrations import administrator_script
from .model import JobCancelled, JobInfo, KindInfo, NewJob, PeriodicInfo, State
from .threads import Job, Queue, connect
from .worker.threads import Worker

__all__ = [
    "Backoff",
    "Job",
    "JobCancelled",
    "JobInfo",
    "KindInfo",
    "NewJob",
    "PeriodicInfo",
    "Queue",
    "State",
    "Worker",
    "connect",
    "script",
]


def script(url: str | None = None) -> str:
    """What first use does to the database, as a script for its command-line tool. Does no I/O."""
    return administrator_script(database_of(url, IO_TIMEOUT_SECONDS).texts)
