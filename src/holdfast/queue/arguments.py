"""What users give to the queue, checked before any I/O, and made what the statements take."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, get_args

from ..core.arguments import check_name
from ..core.durations import seconds_in
from ..errors import InvalidArgument
from ..model import UNSET
from ..sql.retry import Backoff
from .cron import Every, Schedule, parse_schedule
from .model import STATES, NewJob, State, Unique

__all__ = [
    "DEFAULT_BACKOFF",
    "IO_TIMEOUT_SECONDS",
    "LEASE_SECONDS",
    "RETENTION_SECONDS",
    "check_count",
    "check_id",
    "check_kind",
    "check_kinds",
    "check_lease",
    "check_limit",
    "check_older_than",
    "check_retry_in",
    "check_schedule",
    "check_state",
    "decoded",
    "encoded",
    "job_row",
]

IO_TIMEOUT_SECONDS: Final = 5.0
LEASE_SECONDS: Final = 30.0
MAX_ATTEMPTS: Final = 20
DEFAULT_BACKOFF: Final = Backoff(first=2.0, maximum=3600.0)
RETENTION_SECONDS: Final = 7 * 86_400.0
PAYLOAD_BYTES_MAX: Final = 1 << 20
_INTEGER_MAX: Final = 2**31 - 1
_SECONDS_MAX: Final = 10 * 365 * 86_400.0
_LANES: Final = {"running": 1}
_UNIQUENESS: Final = {"queued": 1, "both": 2}


def check_kind(kind: str) -> str:
    return _text(kind, "kind")


def _text(value: str, what: str) -> str:
    if "\0" in check_name(value, what):
        raise InvalidArgument(f"the {what} {value!r} contains a NUL character: write one without")
    return value


def check_kinds(kinds: str | Iterable[str] | None) -> list[str] | None:
    """None: all of them."""
    if kinds is None:
        return None
    if isinstance(kinds, str):
        return [check_kind(kinds)]
    found = list(dict.fromkeys(check_kind(kind) for kind in kinds))
    if not found:
        raise InvalidArgument("there is no kind to claim: name some, or write None for all of them")
    return found


def check_seconds(value: object, what: str, least: float, most: float = _SECONDS_MAX) -> float:
    seconds = math.nan if isinstance(value, str) else seconds_in(value)
    if not least <= seconds <= most:
        raise InvalidArgument(
            f"{what} is a number of seconds from {least:g} to {most:g}, or a timedelta; it is {value!r}"
        )
    return seconds


def check_lease(lease: object) -> float:
    return check_seconds(lease, "lease", 0.05, 7 * 86_400.0)


def check_retry_in(retry_in: object) -> float | None:
    return None if retry_in is None else check_seconds(retry_in, "retry_in", 0.0)


def check_older_than(older_than: object) -> float:
    return check_seconds(older_than, "older_than", 0.0)


def check_count(count: object, what: str, most: int = 10_000) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= most:
        raise InvalidArgument(f"{what} is a whole number from 1 to {most}; it is {count!r}")
    return count


def check_limit(limit: object, what: str) -> int | None:
    return None if limit is None else check_count(limit, what, _INTEGER_MAX)


def check_id(job: object) -> int:
    if not isinstance(job, int) or isinstance(job, bool) or not 0 < job < 2**63:
        raise InvalidArgument(f"a job is named by the number that put returned; this is {job!r}")
    return job


def check_state(state: object) -> State | None:
    for known in STATES:
        if state == known:
            return known
    if state is None:
        return None
    raise InvalidArgument(f"there is no state {state!r}: the states are {', '.join(STATES)}")


def check_schedule(cron: str | None, every: object) -> Schedule:
    if (cron is None) == (every is None):
        raise InvalidArgument("a periodic job has a cron='*/5 * * * *' or every= so many seconds: give one")
    if cron is not None:
        if isinstance(cron, str) and cron.startswith("every "):
            raise InvalidArgument(f"cron={cron!r} is no schedule of cron: give every= so many seconds")
        return parse_schedule(cron)
    return Every(check_seconds(every, "every", 1.0))


def encoded(value: Any, what: str) -> str:
    """As JSON, in ASCII: any database can store it."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except Exception as error:  # noqa: BLE001 - whatever the methods of a value raise
        raise InvalidArgument(
            f"the {what} cannot be written as JSON ({error!r}): pass dicts, lists, texts, numbers, booleans"
            " and None, and put large or secret things elsewhere"
        ) from None
    if len(text) > PAYLOAD_BYTES_MAX:
        raise InvalidArgument(
            f"the {what} has {len(text)} bytes as JSON, at most {PAYLOAD_BYTES_MAX} are allowed: store it"
            " elsewhere, and put a reference to it"
        )
    return text


def decoded(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def job_row(job: NewJob) -> Mapping[str, Any]:
    """What ``put`` binds."""
    if not isinstance(job, NewJob):
        raise InvalidArgument(f"put_many takes NewJob(kind, payload, …); this is {type(job).__name__}")
    key = None if job.key is None else _text(job.key, "key")
    lane, uniqueness = _lane_and_uniqueness(job, key)
    at, delay = _run_at(job.run_at)
    attempts = MAX_ATTEMPTS if job.max_attempts is None else job.max_attempts
    priority = job.priority
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > 1_000_000:
        raise InvalidArgument(f"priority is a whole number from -1000000 to 1000000; it is {priority!r}")
    backoff = _backoff(job.backoff)
    return {
        "kind": check_kind(job.kind),
        "key": key,
        "asked_lane": lane,
        "uniqueness": uniqueness,
        "priority": priority,
        "at": at,
        "delay": delay,
        "payload": encoded(job.payload, "payload"),
        "max_attempts": check_count(attempts, "max_attempts", _INTEGER_MAX),
        "backoff_first": backoff.first,
        "backoff_maximum": backoff.maximum,
    }


def _lane_and_uniqueness(job: NewJob, key: str | None) -> tuple[int, int]:
    unique = job.unique
    if not isinstance(job.ordered, bool):
        raise InvalidArgument(f"ordered is True or False; it is {job.ordered!r}")
    if unique is UNSET:
        unique = None if job.ordered or key is None else "both"
    if unique is not None and unique not in get_args(Unique):
        raise InvalidArgument(f"unique is 'queued', 'running', 'both' or None; it is {unique!r}")
    if key is None and (unique is not None or job.ordered):
        raise InvalidArgument("unique and ordered are about jobs of one key: give the key, too")
    if job.ordered and unique is not None:
        raise InvalidArgument(
            f"ordered=True is for many jobs of one key, which run one after the other; unique={unique!r}"
            " allows only one: leave one of these options out"
        )
    lane = 2 if job.ordered else _LANES.get(str(unique), 0)
    return lane, _UNIQUENESS.get(str(unique), 0)


def _run_at(run_at: object) -> tuple[float | None, float]:
    """A time, or a delay from now on by the database's clock."""
    if run_at is None:
        return None, 0.0
    if isinstance(run_at, timedelta):
        return None, check_seconds(run_at, "run_at", 0.0)
    if isinstance(run_at, datetime) and run_at.tzinfo is not None:
        return run_at.timestamp(), 0.0
    raise InvalidArgument(
        f"run_at is a datetime with a time zone, or a timedelta from now; it is {run_at!r}: write for example"
        " timedelta(minutes=5) or datetime(2030, 1, 1, tzinfo=timezone.utc)"
    )


def _backoff(backoff: object) -> Backoff:
    if backoff is None:
        return DEFAULT_BACKOFF
    if isinstance(backoff, Backoff):
        return backoff
    first = check_seconds(backoff, "backoff", 0.0, 86_400.0)
    return Backoff(first, max(first, DEFAULT_BACKOFF.maximum))
