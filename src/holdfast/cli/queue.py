"""``holdfast queue``: the jobs of a queue, for those who run it."""

from __future__ import annotations

import dataclasses
import json as json_module
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast import errors

from .exits import Status, complain
from .options import JSON, NAMESPACE, Argument, Command, Group, Misuse, Option, duration, number

if TYPE_CHECKING:
    from holdfast.queue import JobInfo, Queue, State

__all__ = ["CANCEL", "GROUP", "LS", "PAUSE", "PRUNE", "PUT", "RESUME", "RETRY", "SHOW"]

EPILOG = """
Examples:
  holdfast queue put mail '{"to": "ann"}' --url sqlite:///shop.db
  holdfast queue ls --state dead
  holdfast queue work shop.jobs:worker

The queue is in PostgreSQL or in a SQLite file: give --url, or set HOLDFAST_URL.
The states of a job: scheduled (waits for its time, or its next attempt),
blocked (behind another job of its key), ready, running; then finished, dead or
cancelled.
"""

LS_EPILOG = """
Examples:
  holdfast queue ls
  holdfast queue ls --state dead --kind mail
  holdfast queue ls --json | jq .counts.ready

Without --state it lists unfinished and dead jobs, the oldest first. The JSON
has "counts" (state: how many), "jobs", and "kinds" (what was paused or limited).
"""

SHOW_EPILOG = """
Examples:
  holdfast queue show 42
  holdfast queue show 42 --json | jq -r .error

Exit status: 0, or 1 when there is no such job.
"""

PUT_EPILOG = """
Examples:
  holdfast queue put mail '{"to": "ann"}'
  holdfast queue put report --key 2030-01 --delay 5m --priority 10

It prints the number of the job. With --key, there is at most one unfinished job
of this kind and key: if there is one already, its number is printed, and no job
is put.
"""

RETRY_EPILOG = """
Examples:
  holdfast queue retry 42 43
  holdfast queue ls --state dead --json | jq '.jobs[].id' | xargs holdfast queue retry

Exit status: 0, or 1 when one of them is neither dead nor cancelled.
"""

CANCEL_EPILOG = """
Examples:
  holdfast queue cancel 42

A running job ends when its function looks; the others end at once.
Exit status: 0, or 1 when one of them was over.
"""

PAUSE_EPILOG = """
Examples:
  holdfast queue pause mail
  holdfast queue resume mail
"""

PRUNE_EPILOG = """
Examples:
  holdfast queue prune --older-than 7d
  holdfast queue prune --older-than 30d --dead
"""

URL = Option(
    ("--url",),
    "The database of the queue: postgresql://... or sqlite:///path. The default is a file of this user. "
    "Other users can see command lines: set the environment variable if the URL has a password.",
    metavar="URL",
    env="HOLDFAST_URL",
)
QUEUE = (URL, NAMESPACE)
STATES: tuple[State, ...] = ("scheduled", "blocked", "ready", "running", "finished", "dead", "cancelled")
LISTED = ("scheduled", "blocked", "ready", "running", "dead")


def _state(text: str) -> str:
    if text not in STATES:
        raise Misuse(f"there is no state {text!r}: the states are {', '.join(STATES)}")
    return text


ID = Argument("id", "The number of the job, as put and ls print it.")
IDS = Argument("id", "The numbers of the jobs, as put and ls print them.", many=True)
KIND = Argument("kind", "The kind of jobs.")
STATE = Option(("--state",), "Only jobs in this state.", metavar="STATE", convert=_state)
ONE_KIND = Option(("--kind",), "Only jobs of this kind.", metavar="KIND")
LIMIT = Option(("--limit",), "At most so many jobs.", metavar="N", convert=number(1, 10_000), default=100)
PAYLOAD = Argument("payload", "What the job is about, as JSON. The default is null.", required=False)
KEY = Option(("--key",), "There is at most one unfinished job with this key.", metavar="KEY")
PRIORITY = Option(
    ("--priority",),
    "Jobs with a larger number are claimed first. The default is 0.",
    metavar="N",
    convert=number(),
    default=0,
)
DELAY = Option(("--delay",), "The job may begin after this time.", metavar="TIME", convert=duration)
MAX_ATTEMPTS = Option(
    ("--max-attempts",), "The largest number of attempts.", metavar="N", convert=number(1), default=20
)
OLDER_THAN = Option(
    ("--older-than",),
    "Only jobs that ended at least this long ago.",
    metavar="TIME",
    convert=duration,
    required=True,
)
DEAD = Option(("--dead",), "Also remove dead jobs, which can then not be retried.")


def _open(url: str | None, namespace: str) -> AbstractContextManager[Queue]:
    import holdfast.queue

    return holdfast.queue.connect(url, namespace=namespace)


def ls(state: str | None, kind: str | None, limit: int, url: str | None, namespace: str, json: bool) -> None:
    """List jobs, and how many there are in each state."""
    from .output import print_json, print_lines, print_table

    with _open(url, namespace) as queue:
        counts = queue.counts(kind)
        chosen = [each for each in STATES if (each in LISTED if state is None else each == state)]
        jobs = [job for each in chosen if counts[each] for job in queue.jobs(each, kind, limit)]
        kinds = [each for each in queue.kinds() if kind in {None, each.kind}]
    jobs = sorted(jobs, key=lambda job: job.id)[:limit]
    if json:
        print_json(
            {
                "counts": counts,
                "jobs": [_as_json(job) for job in jobs],
                "kinds": [dataclasses.asdict(each) for each in kinds],
            }
        )
        return
    if jobs:
        rows = [
            (
                str(job.id),
                job.kind,
                job.key or "",
                job.state,
                f"{job.attempt}/{job.max_attempts}",
                _time(job.created_at),
                _remark(job),
            )
            for job in jobs
        ]
        print_table("", ("id", "kind", "key", "state", "tries", "put at", ""), rows)
    print_lines(
        ", ".join(f"{count} {each}" for each, count in counts.items() if count) or "there are no jobs"
    )
    for each in kinds:
        if each.paused:
            print_lines(f"{each.kind} is paused: holdfast queue resume {each.kind}")


def _remark(job: JobInfo) -> str:
    if job.state == "running":
        return f"{job.owner}{', asked to stop' if job.cancel_requested else ''}"
    last = (job.error or "").strip().rpartition("\n")[2]
    return last if len(last) <= 60 else f"{last[:57]}..."


def _as_json(job: JobInfo) -> dict[str, Any]:
    return dataclasses.asdict(job)


def show(id: str, url: str | None, namespace: str, json: bool) -> int:
    """Show one job: its payload, its attempts, its claimant, its result or error."""
    from .output import print_json, print_pairs

    with _open(url, namespace) as queue:
        job = queue.get(_number(id))
    if job is None:
        complain(f"there is no job {id} in namespace {namespace!r}, or no longer")
        return Status.NOTHING_DONE
    if json:
        print_json(_as_json(job))
        return Status.OK
    pairs: dict[str, str | list[str]] = {
        "job": f"{job.id} of kind {job.kind}",
        "state": f"{job.state}{', asked to stop' if job.cancel_requested else ''}",
        "tries": f"{job.attempt} of {job.max_attempts}",
        "token": str(job.token),
        "payload": json_module.dumps(job.payload, ensure_ascii=False),
        "put at": _time(job.created_at),
    }
    if job.key is not None:
        pairs["key"] = job.key
    if job.priority:
        pairs["priority"] = str(job.priority)
    if job.state == "scheduled":
        pairs["runs at"] = _time(job.run_at)
    if job.started_at is not None:
        pairs["last begun at"] = _time(job.started_at)
    if job.lease_until is not None:
        pairs["lease until"] = _time(job.lease_until)
    if job.owner is not None:
        pairs["claimant"] = job.owner
    if job.ended_at is not None:
        pairs["over since"] = _time(job.ended_at)
    if job.result is not None:
        pairs["result"] = json_module.dumps(job.result, ensure_ascii=False)
    if job.error:
        pairs["error"] = job.error.splitlines()
    print_pairs(pairs)
    return Status.OK


def _time(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def put(
    kind: str,
    payload: str | None,
    key: str | None,
    priority: int,
    delay: float | None,
    max_attempts: int,
    url: str | None,
    namespace: str,
    json: bool,
) -> None:
    """Put a job."""
    from .output import print_json, print_lines

    try:
        value = None if payload is None else json_module.loads(payload)
    except ValueError as error:
        raise Misuse(
            f'the payload is no JSON ({error}): write for example \'{{"to": "ann"}}\' or \'"ann"\', quoted'
            " for the shell"
        ) from None
    with _open(url, namespace) as queue:
        id_ = queue.put(
            kind,
            value,
            key=key,
            priority=priority,
            run_at=None if delay is None else timedelta(seconds=delay),
            max_attempts=max_attempts,
        )
    if json:
        print_json({"id": id_})
    else:
        print_lines(str(id_))


def retry(id: list[str], url: str | None, namespace: str, json: bool) -> int:
    """Let dead or cancelled jobs run again, with all their attempts."""
    with _open(url, namespace) as queue:
        return _each(id, queue.retry, "is neither dead nor cancelled, or there is none", "retried", json)


def cancel(id: list[str], url: str | None, namespace: str, json: bool) -> int:
    """Cancel jobs: queued jobs do not run, and running jobs are asked to stop."""
    with _open(url, namespace) as queue:
        return _each(id, queue.cancel, "was over, or there is none", "cancelled", json)


def _each(ids: list[str], change: Callable[[int], bool], refusal: str, done: str, json: bool) -> int:
    from .output import print_json, print_lines

    changed: list[int] = []
    numbers = [_number(text) for text in ids]
    for number_ in numbers:
        try:
            if change(number_):
                changed.append(number_)
            else:
                complain(f"job {number_} {refusal}")
        except errors.Conflict as error:
            complain(str(error))
    if json:
        print_json({done: changed})
    elif changed:
        print_lines(f"{done} {', '.join(map(str, changed))}")
    return Status.OK if len(changed) == len(numbers) else Status.NOTHING_DONE


def _number(text: str) -> int:
    return number(1, 2**63 - 1)(text)


def pause(kind: str, url: str | None, namespace: str, json: bool) -> None:
    """Let no job of a kind begin until it is resumed. Running jobs go on."""
    with _open(url, namespace) as queue:
        queue.pause(kind)
    _print_kind(kind, True, json)


def resume(kind: str, url: str | None, namespace: str, json: bool) -> None:
    """Let jobs of a paused kind begin again."""
    with _open(url, namespace) as queue:
        queue.resume(kind)
    _print_kind(kind, False, json)


def _print_kind(kind: str, is_paused: bool, json: bool) -> None:
    from .output import print_json, print_lines

    if json:
        print_json({"kind": kind, "paused": is_paused})
    else:
        print_lines(f"{kind} is {'paused' if is_paused else 'not paused'}")


def prune(older_than: float, dead: bool, url: str | None, namespace: str, json: bool) -> None:
    """Remove finished and cancelled jobs."""
    from .output import print_json, print_lines

    with _open(url, namespace) as queue:
        removed = queue.prune(older_than, ["finished", "cancelled", *(["dead"] if dead else [])])
    if json:
        print_json({"removed": removed})
    else:
        print_lines(f"removed {removed}")


LS = Command(ls, (STATE, ONE_KIND, LIMIT, *QUEUE, JSON), LS_EPILOG)
SHOW = Command(show, (ID, *QUEUE, JSON), SHOW_EPILOG)
PUT = Command(put, (KIND, PAYLOAD, KEY, PRIORITY, DELAY, MAX_ATTEMPTS, *QUEUE, JSON), PUT_EPILOG)
RETRY = Command(retry, (IDS, *QUEUE, JSON), RETRY_EPILOG)
CANCEL = Command(cancel, (IDS, *QUEUE, JSON), CANCEL_EPILOG)
PAUSE = Command(pause, (KIND, *QUEUE, JSON), PAUSE_EPILOG)
RESUME = Command(resume, (KIND, *QUEUE, JSON), PAUSE_EPILOG)
PRUNE = Command(prune, (OLDER_THAN, DEAD, *QUEUE, JSON), PRUNE_EPILOG)
GROUP = Group(
    "Manage a job queue: see, put, retry and cancel jobs, pause kinds, run workers.",
    {
        "ls": "queue:LS",
        "show": "queue:SHOW",
        "put": "queue:PUT",
        "retry": "queue:RETRY",
        "cancel": "queue:CANCEL",
        "pause": "queue:PAUSE",
        "resume": "queue:RESUME",
        "prune": "queue:PRUNE",
        "work": "queue_work:WORK",
    },
    EPILOG,
)
