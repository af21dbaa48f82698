"""Jobs that run once: of many servers that fire the same job, one runs it.

A job is a lock, held while it runs, whose value remembers the last run. A run is stored as begun before its
work begins, and as ended before the lock is released, both under the token of its lease: so the next holder
knows whether there is something to do, and whether the last run crashed. ``schedule`` decides.
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
from ..core.effects import Now, Pause
from ..core.lock_options import Duration, IfLost
from ..errors import EngineUnavailable, InvalidArgument, LockLost, LockTimeout, Unsupported
from ..model import Guarantees, Run, RunState
from ..protocols import locks, records
from ..protocols.client_state import ClientState, LeaseState
from ..protocols.locks import Caller, HasState, LockCore
from ..rules.requests import Snapshot
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
    "read",
]

L = TypeVar("L", bound=HasState)

FORMAT: Final = 1

PAUSE_SECONDS: Final = 0.05
DECIDING_SECONDS: Final = 2.0
"""How much longer than a ttl to wait for a server that decides: it may have died, and then its lease ends."""

EVERY_SECONDS_MIN: Final = 1.0
"""Clocks of servers differ by more than fractions of a second, so a shorter period could run twice."""

PERIOD_SECONDS_MAX: Final = 365 * 86_400.0
REMEMBERED_SECONDS_MIN: Final = 30 * 86_400.0
REMEMBERED_SECONDS_MAX: Final = 366 * 86_400.0

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
        """How long the last run is remembered: longer than the period."""
        terms = self.options.terms
        longest = max(terms.every or 0.0, terms.at_least)
        return min(max(2 * longest, REMEMBERED_SECONDS_MIN), REMEMBERED_SECONDS_MAX)


@dataclass(slots=True)
class BeganRun:
    """A run that was stored as begun, and whose lease is held."""

    run: Run
    start: Start
    previous: Run | None
    state: LeaseState
    began_at: float
    """By the local clock."""
    result: Any = None


def check_engine(promised: Guarantees) -> None:
    """Refuse an engine that cannot carry jobs, before any I/O."""
    if not promised.has_values:
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
    again until the lock is free or a run has begun.
    """
    timeout, ends_at = core.spec.timeout, None
    while True:
        try:
            lease = await locks.acquire(core, caller, owner, timeout, entered=True)
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
        except BaseException as error:
            await locks.leave(core, caller, error)
            raise
        if isinstance(step, BeganRun):
            return lease, step
        with contextlib.suppress(LockLost):
            await locks.leave(core, caller, None)
        return step


async def _running(job: Job) -> Skip | None:
    """The run that has the job's lock; None: its holder has not begun a run, or there is none any more."""
    snapshot = await records.inspect(job.client_state, job.options.spec.name)
    last = _last(job, snapshot)
    if last is None or last.state != "running" or not _is_held(last, snapshot):
        return None
    return Skip("running", f"{last.owner} runs it (token {last.token})")


async def begin(job: Job, state: LeaseState) -> BeganRun | Skip:
    """The caller has the job's lock: decide whether it runs, and store that it has begun."""
    last = _last(job, await records.inspect(job.client_state, state.name))
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
    await locks.set_value(job.client_state, state, encode(run), job.retention)
    return BeganRun(run, step, last, state, await Now())


async def finish(job: Job, began: BeganRun, error: BaseException | None) -> None:
    """Store how the run ended. If its lease was lost, nothing is stored, and the end of the lock says so."""
    now = await Now()
    state = began.state
    if state.loss(now) is not None or state.ended is not None:
        return
    ended = dataclasses.replace(
        began.run,
        ended=began.run.started + max(now - began.began_at, 0.0),
        state=_outcome(error),
        result=began.result,
        error=None if error is None else _text(error),
    )
    try:
        await locks.set_value(job.client_state, state, encode(ended), job.retention)
    except LockLost:
        return
    except EngineUnavailable as trouble:
        again = "would run again" if job.options.terms.on_crash == "rerun" else "counts as crashed"
        message = f"the job {job.name!r} ran, but its end could not be stored, so it {again}: {trouble}"
        if error is None:
            raise EngineUnavailable(message) from trouble
        error.add_note(f"holdfast: {message}")


async def read(job: Job) -> Run | None:
    """The last run, with the firings that were missed since. None: there was none, or it was too long ago."""
    snapshot = await records.inspect(job.client_state, job.options.spec.name)
    last = _last(job, snapshot)
    return None if last is None else _seen(last, snapshot, job.wall())


def _seen(last: Run, snapshot: Snapshot, now: float) -> Run:
    has_crashed = last.state == "running" and not _is_held(last, snapshot)
    state: RunState = "crashed" if has_crashed else last.state
    return dataclasses.replace(last, state=state, missed=missed_by(last, now))


def _is_held(last: Run, snapshot: Snapshot) -> bool:
    return any(holder.token == last.token for holder in snapshot.record.holders)


def _last(job: Job, snapshot: Snapshot) -> Run | None:
    value = snapshot.record.value
    try:
        return decode(None if value is None else value.data)
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
