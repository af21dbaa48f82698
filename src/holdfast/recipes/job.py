"""Jobs that run once: of many servers that fire the same job, one runs it.

A job is a lock, held while it runs, and a cell, which remembers the last run. A run is stored as begun before
its work begins, and as ended before the lock is released: so the next holder knows whether there is something
to do, and whether the last run crashed. ``schedule`` decides.

Each of the two writes replaces the state that was read before, or is refused. The value of the lock would not
do: a late copy of the first write, still in the network, could then undo the second.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ..core import arguments
from ..core.arguments import Spec
from ..core.effects import Now, Pause, TransientError
from ..core.lock_options import Duration, IfLost
from ..errors import (
    Conflict,
    EngineUnavailable,
    HoldfastError,
    InvalidArgument,
    LockLost,
    LockTimeout,
    Unsupported,
)
from ..model import Guarantees, Run, RunState
from ..protocols import locks, records
from ..protocols.client_state import ClientState, LeaseState
from ..protocols.locks import Caller, HasState, LockCore
from . import cell as cells
from . import names
from .schedule import OnCrash, Skip, Start, Terms, decide, missed_by

__all__ = [
    "BeganRun",
    "Job",
    "JobOptions",
    "begin",
    "check_engine",
    "check_options",
    "check_result",
    "decode",
    "encode",
    "enter",
    "finish",
    "list_jobs",
    "read",
]

L = TypeVar("L", bound=HasState)

FORMAT: Final = 1

LISTED: Final = b"job"
"""The value of the lock of a job that has run: names with a value are listed."""

PAUSE_SECONDS: Final = 0.05
DECIDING_SECONDS: Final = 2.0
"""How much longer than a ttl to wait for a server that decides: it may have died, and then its lease ends."""

EVERY_SECONDS_MIN: Final = 1.0
"""Clocks of servers differ by more than fractions of a second, so a shorter period could run twice."""

PERIOD_SECONDS_MAX: Final = 100 * 366 * 86_400.0
LISTED_SECONDS_MIN: Final = 30 * 86_400.0
LISTED_SECONDS_MAX: Final = 366 * 86_400.0

OWNER_LETTERS_MAX: Final = 200
ERROR_LETTERS_MAX: Final = 400
RESULT_BYTES_MAX: Final = 56 * 1024
"""A value has 64 KiB, and what else is remembered of a run needs less than 8."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """A job as its user asked for it, checked."""

    name: str
    terms: Terms
    spec: Spec
    """The lock that is held while it runs."""


@dataclass(slots=True)
class Job:
    """What this client knows of one job."""

    client_state: ClientState
    options: JobOptions
    wall: Callable[[], float]
    """The clock of this machine, for engines that have none."""
    has_engine_clock: bool

    @property
    def name(self) -> str:
        return self.options.name

    @property
    def retention(self) -> float:
        """How long the job is listed after a run: longer than the period. Its last run is never forgotten."""
        terms = self.options.terms
        longest = max(terms.every or 0.0, terms.at_least)
        return min(max(2 * longest, LISTED_SECONDS_MIN), LISTED_SECONDS_MAX)


@dataclass(slots=True)
class BeganRun:
    """A run that was stored as begun, and whose lease is held."""

    run: Run
    start: Start
    previous: Run | None
    state: LeaseState
    cell: cells.Cell
    version: int
    """Of the cell, which remembers this run."""
    began_at: float
    """By the local clock."""
    result: Any = None


def check_engine(promised: Guarantees) -> None:
    """Refuse an engine that cannot carry jobs, before any I/O."""
    if not (promised.has_values and promised.has_cells):
        raise Unsupported(
            f"{promised.engine} has no jobs: its nodes agree on locks alone, and cannot remember the last "
            "run. Use sqlite://, redis://, etcd://, zookeeper:// or postgresql://"
        )


# --- arguments ----------------------------------------------------------------------------------


def check_options(
    name: str,
    every: Duration | None,
    at_most: Duration | None,
    at_least: Duration,
    on_crash: OnCrash,
    catch_up: bool,
    ttl: Duration,
    timeout: Duration | None,
    if_lost: IfLost,
    allowed_if_lost: tuple[IfLost, ...],
) -> JobOptions:
    arguments.check_name(name)
    if every is not None:
        every = arguments.check_seconds(
            every, "every", "the period, for example 3600, or None", EVERY_SECONDS_MIN, PERIOD_SECONDS_MAX
        )
    elif catch_up:
        raise InvalidArgument(
            "catch_up makes up for missed firings, and a job without a period has none: give every=, for "
            "example every=3600"
        )
    least = arguments.check_seconds(at_least, "at_least", "for example 600, or 0", 0.0, PERIOD_SECONDS_MAX)
    if every is not None and least > every:
        raise InvalidArgument(
            f"at_least ({least:g} s) is longer than every ({every:g} s), so every second firing would be "
            "skipped: choose at_least below the period"
        )
    if at_most is not None:
        at_most = arguments.check_seconds(
            at_most,
            "at_most",
            "the longest time that one run may take, or None",
            arguments.TTL_SECONDS_MIN,
            arguments.TTL_SECONDS_MAX,
        )
    if on_crash not in ("rerun", "skip"):
        raise InvalidArgument(
            f"on_crash is 'rerun' (each firing runs at least once) or 'skip' (at most once); it is "
            f"{on_crash!r}"
        )
    spec = arguments.make_spec(
        name,
        "lock",
        "exclusive",
        0,
        {"ttl": ttl, "timeout": timeout, "max_hold": at_most, "if_lost": if_lost, "metadata": {"job": name}},
        allowed_if_lost,
    )
    spec = dataclasses.replace(spec, name=names.job(name))
    return JobOptions(name, Terms(every, least, on_crash, bool(catch_up)), spec)


def check_result(name: str, result: Any) -> Any:
    try:
        text = _json(result)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"the result of the job {name!r} cannot be stored as JSON ({error}): store numbers, texts, lists "
            "and mappings of them, or a reference; the run counts all the same"
        ) from error
    if len(text) > RESULT_BYTES_MAX:
        raise InvalidArgument(
            f"the result of the job {name!r} has {len(text)} bytes as JSON, at most {RESULT_BYTES_MAX} are "
            "stored: store a reference; the run counts all the same"
        )
    return json.loads(text)


# --- what is stored -----------------------------------------------------------------------------


def encode(run: Run) -> bytes:
    stored = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
    return _json({"format": FORMAT, **stored})


def decode(data: bytes | None) -> Run | None:
    """Raises ValueError for bytes that no job has written."""
    if data is None:
        return None
    stored = json.loads(data)
    if not isinstance(stored, dict) or stored.pop("format", None) != FORMAT:
        raise ValueError("an unknown format")
    try:
        run = Run(**{field.name: stored[field.name] for field in dataclasses.fields(Run)})
    except KeyError as error:
        raise ValueError(f"{error} is missing") from None
    if not all(isinstance(moment, int | float) for moment in (run.started, run.due)):
        raise ValueError("its moments are no numbers")
    return run


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


# --- running ------------------------------------------------------------------------------------


async def enter(job: Job, core: LockCore[L], caller: Caller, owner: str) -> tuple[L, BeganRun] | Skip:
    """Take the job's lock and begin a run, or learn why not; then nothing is held.

    A server that only decides has the lock for a moment. It must not cost another server its turn, which asks
    again until the lock is free or a run has begun. Nor may a connection that has just ended: a server
    that does not wait for another one still has ``io_timeout`` to reach the engine.
    """
    timeout, ends_at = core.spec.timeout, None
    failing_since: float | None = None
    while True:
        try:
            lease = await locks.acquire(core, caller, owner, timeout, entered=True)
        except EngineUnavailable as trouble:
            now = await Now()
            failing_since = now if failing_since is None else failing_since
            is_over = now >= failing_since + job.client_state.io_timeout
            if timeout != 0 or is_over or not isinstance(trouble.__cause__, TransientError):
                raise
            await Pause(PAUSE_SECONDS)
            continue
        except LockTimeout:
            running, now = await _running(job), await Now()
            if ends_at is None:
                ends_at = now + core.spec.ttl + DECIDING_SECONDS
            if running is not None or now > ends_at:
                return running or Skip("running", "another server has decided for longer than its ttl")
            await Pause(PAUSE_SECONDS)
            timeout = 0.0
            continue
        if lease is None:
            raise AssertionError("entering a lock raises LockTimeout instead")
        try:
            step = await begin(job, lease._state)
        except HoldfastError as error:
            await locks.leave(core, caller, error)
            raise
        except BaseException:  # an interrupt: the keeper releases it
            await records.abandon(job.client_state, lease._state, wait=True)
            raise
        if isinstance(step, BeganRun):
            return lease, step
        with contextlib.suppress(LockLost):
            await locks.leave(core, caller, None)
        return step


async def _running(job: Job) -> Skip | None:
    """The run that has the job's lock; None: its holder has not begun a run, or there is none any more."""
    last, _ = await _last(job, _cell(job))
    if last is None or last.state != "running" or not await _is_held(job, last):
        return None
    return Skip("running", f"{last.owner} runs it (token {last.token})")


async def begin(job: Job, state: LeaseState) -> BeganRun | Skip:
    """The caller has the job's lock: decide whether it runs, and store that it has begun."""
    cell = _cell(job)
    last, version = await _last(job, cell)
    # The tokens of one engine come from one clock, and each is later than the ones before it.
    now = state.token / 1e6 if job.has_engine_clock else job.wall()
    terms = job.options.terms
    step = decide(last, now, terms)
    if isinstance(step, Skip):
        return step
    next_due = step.due + terms.every if terms.every is not None else None
    if next_due is None and terms.at_least:
        next_due = now + terms.at_least
    run = Run(
        started=now,
        ended=None,
        owner=state.owner[:OWNER_LETTERS_MAX],
        token=state.token,
        due=step.due,
        next_due=next_due,
        missed=0 if step.settles else step.missed,
        every=terms.every,
        at_least=terms.at_least,
    )
    await locks.set_value(job.client_state, state, LISTED, job.retention)
    try:
        version = await cells.set_if(cell, version, encode(run))
    except Conflict:
        return Skip("running", "another server took the lock meanwhile")
    return BeganRun(run, step, last, state, cell, version, await Now())


async def finish(job: Job, began: BeganRun, error: BaseException | None) -> bool:
    """Store how the run ended. False: nothing is stored, because its lease was lost."""
    now = await Now()
    state = began.state
    if state.loss(now) is not None or state.ended is not None:
        return False
    ended = dataclasses.replace(
        began.run,
        ended=began.run.started + max(now - began.began_at, 0.0),
        state=_outcome(error),
        result=began.result,
        error=None if error is None else _text(error),
    )
    try:
        await cells.set_if(began.cell, began.version, encode(ended))
    except Conflict:
        return False
    except EngineUnavailable as trouble:
        again = "would run again" if job.options.terms.on_crash == "rerun" else "counts as crashed"
        message = f"the job {job.name!r} ran, but its end could not be stored, so it {again}: {trouble}"
        if error is None:
            raise EngineUnavailable(message) from trouble
        error.add_note(f"holdfast: {message}")
        return False
    return True


async def read(job: Job) -> Run | None:
    """The last run, with the firings that were missed since. None: there was none."""
    cell = _cell(job)
    last, version = await _last(job, cell)
    while last is not None and last.state == "running" and not await _is_held(job, last):
        last, latest = await _last(job, cell)
        if latest == version and last is not None:
            last = dataclasses.replace(last, state="crashed")  # an end is stored before the lock is released
        version = latest
    return None if last is None else dataclasses.replace(last, missed=missed_by(last, job.wall()))


async def list_jobs(client_state: ClientState, prefix: str) -> list[str]:
    """The names of the jobs that run or have run, in the order of their bytes."""
    found = await records.list_names(client_state, names.JOBS + prefix)
    return [name.removeprefix(names.JOBS) for name, _ in found]


async def _is_held(job: Job, last: Run) -> bool:
    """Whether that run still has the job's lock."""
    record, _ = await records.inspect(job.client_state, job.options.spec.name)
    return any(holder.token == last.token for holder in record.holders)


def _cell(job: Job) -> cells.Cell:
    cell = cells.Cell(job.client_state, job.name)
    cell.record = names.job_state(job.name)
    return cell


async def _last(job: Job, cell: cells.Cell) -> tuple[Run | None, int]:
    """The last run as it is stored, and the version of the cell."""
    contents = await cells.read(cell)
    try:
        return decode(contents.data), contents.version
    except ValueError as error:
        raise EngineUnavailable(
            f"what is stored as the last run of the job {job.name!r} was not written by this version of "
            f"jobs ({error}): is it a newer version of Holdfast, or another program?"
        ) from error


def _outcome(error: BaseException | None) -> RunState:
    """An interrupt or a cancellation is no end of the job's own: it is as if its process had died."""
    if error is None:
        return "done"
    return "failed" if isinstance(error, Exception) else "crashed"


def _text(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= ERROR_LETTERS_MAX else f"{text[: ERROR_LETTERS_MAX - 1]}…"
