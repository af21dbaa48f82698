"""Running a transaction again after a deadlock or a conflict: when, how often, and how long after. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ..errors import HoldfastError, InvalidArgument
from ..fencing.dialects import Control, TableState, driver_error, sqlstate
from ..fencing.plans import Plan, Result, Statement
from ..fencing.sql_plans import commits_at_once, roll_back_guarded
from .failures import Failure, failure_of, new_error, translated

__all__ = [
    "ATTEMPT",
    "RETRIES",
    "Backoff",
    "Policy",
    "Sleep",
    "begin",
    "check_function",
    "commit",
    "roll_back",
    "run_again",
]

RETRIES: Final = 5
_RETRIES_MAX: Final = 1_000_000
_SECONDS_MAX: Final = 86_400.0
_MAXIMUM_SECONDS: Final = 1.0
_WORTH_IT: Final = {Failure.DEADLOCK, Failure.CONFLICT}


def check_function(function: object) -> None:
    if not callable(function):
        raise InvalidArgument(f"what is run as a transaction is a function; this is {function!r}")


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to pause before the next try: any time up to ``first`` seconds, then up to twice as much as
    before, never more than ``maximum``.

    The whole pause is drawn by chance (full jitter): those that collided once do not collide in step again.
    """

    first: float = 0.01
    maximum: float = _MAXIMUM_SECONDS

    def __post_init__(self) -> None:
        for name in ("first", "maximum"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= _SECONDS_MAX:
                raise InvalidArgument(
                    f"{name} of a Backoff is a number of seconds from 0 to {_SECONDS_MAX:.0f}; it is"
                    f" {value!r}"
                )
        if self.first > self.maximum:
            raise InvalidArgument(
                f"first={self.first!r} of a Backoff is more than maximum={self.maximum!r}: exchange them"
            )

    def pause_seconds(self, failures: int, random: float) -> float:
        """After so many failed tries; ``random`` is at least 0 and less than 1."""
        return random * min(self.maximum, self.first * 2.0 ** min(failures - 1, 60))


@dataclass(frozen=True, slots=True)
class Policy:
    """How often, and how long after. Checked."""

    retries: int
    backoff: Backoff

    @classmethod
    def of(cls, retries: int, backoff: Backoff | float | None) -> Policy:
        if not isinstance(retries, int) or isinstance(retries, bool) or not 0 <= retries <= _RETRIES_MAX:
            raise InvalidArgument(
                f"retries is how often to try again, from 0 to {_RETRIES_MAX}; it is {retries!r}"
            )
        if backoff is None:
            return cls(retries, Backoff())
        if isinstance(backoff, Backoff):
            return cls(retries, backoff)
        if isinstance(backoff, int | float) and not isinstance(backoff, bool):
            return cls(retries, Backoff(backoff, max(_MAXIMUM_SECONDS, backoff)))
        raise InvalidArgument(
            f"backoff is a Backoff, or the seconds of its first pause at most; it is {backoff!r}"
        )


class Attempt:
    """Run the user's function once, as a whole."""


ATTEMPT: Final = Attempt()


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


def run_again(policy: Policy, what: str, state: str, random: Callable[[], float]) -> Plan[Any]:
    """Yields ``ATTEMPT`` until it succeeds, fails for another reason than these, or the retries are over."""
    failures = 0
    while True:
        try:
            return (yield ATTEMPT)
        except Exception as error:
            failure = failure_of(error)
            if failure not in _WORTH_IT:
                raise
            failures += 1
            if failures > policy.retries:
                if isinstance(error, HoldfastError):
                    error.add_note(f"holdfast: {what} was tried {_times(failures)}")
                    raise
                raise new_error(failure, f"{what} failed {_times(failures)}", state) from driver_error(error)
        yield Sleep(policy.backoff.pause_seconds(failures, random()))


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times in a row"


# --- a transaction of retry_transaction's own ---------------------------------------------------

_WHAT: Final = "the transaction was not committed"


def begin(table: TableState) -> Plan[None]:
    if table.in_transaction() and not table.is_always_in_a_transaction:
        raise InvalidArgument(
            "a transaction is open on this connection, and only a whole one can be run again: commit it or"
            " roll it back first, or call retry_transaction where it begins"
        )
    yield from translated(table, "the transaction did not begin", _begin(table))


def _begin(table: TableState) -> Plan[None]:
    try:
        yield Control.BEGIN
        yield from _refuse_autocommit(table)
        seal = table.dialect.set_seal()
        if seal is not None:
            yield seal
    except BaseException:
        yield from roll_back(table)
        raise


def commit(table: TableState) -> Plan[None]:
    """Refused where nothing could be committed, or not all of it: a database that has ended the transaction,
    or aborted it, does not say so at COMMIT."""
    yield from translated(table, _WHAT, _commit(table))


def _commit(table: TableState) -> Plan[None]:
    yield Control.FLUSH
    seal = table.dialect.set_seal()
    try:
        yield Statement("SELECT 1") if seal is None else table.dialect.check_seal(Result(0))
    except Exception as error:
        if table.dialect.is_seal_missing(error):
            raise HoldfastError(
                "the transaction that retry_transaction began was ended within: by a commit, a rollback, or"
                " an error of the database that the function caught and kept to itself. What came after"
                " it was rolled back now. Let errors leave the function, and leave it the commit"
            ) from driver_error(error)
        if sqlstate(error) == "25P02":
            raise HoldfastError(
                "the transaction was aborted by an error that the function caught and kept to itself, so"
                " nothing of it can be committed: it was rolled back. Let errors of the database leave the"
                " function, or use a savepoint"
            ) from driver_error(error)
        raise
    yield from _refuse_autocommit(table)
    yield Control.COMMIT


def roll_back(table: TableState) -> Plan[None]:
    """A connection that cannot is broken: the user gets the first error."""
    yield from roll_back_guarded(table)


def _refuse_autocommit(table: TableState) -> Plan[None]:
    if (yield from commits_at_once(table)):
        raise InvalidArgument(
            "this connection commits each statement at once (AUTOCOMMIT), so there is no transaction to run"
            " again: leave that mode"
        )
