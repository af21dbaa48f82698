"""What a guard asks of a storage, as values. No I/O: a plan is a generator, and a driver carries it out.

A plan yields what is to be done, is sent what came of it, and ends, or raises ``StaleToken``. So each plan
is written once for drivers that block and drivers that await, and a test can run it without a storage.
``rule.decide`` is the only decision. There are two forms, by what the storage can do:

``present``      for storages with open transactions (SQL). One statement checks and stores the mark, and
                 keeps everyone else from the guard until the transaction ends; the user's writes follow.
``conditional``  for storages without (a script, an object with a version, HTTP with an ETag). Read the mark
                 and its version, decide, then commit the mark *and the user's writes* on condition that
                 the version is still the same.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from ..errors import Conflict, HoldfastError
from .refusal import stale_token
from .rule import Mark, Refuse, after, decide

__all__ = [
    "Commit",
    "Dialect",
    "Found",
    "Plan",
    "Purpose",
    "Read",
    "Result",
    "Statement",
    "conditional",
    "load",
    "present",
    "run",
    "run_async",
]

Done = TypeVar("Done")

Plan = Generator[Any, Any, Done]
"""Yields requests of one form, is sent the answer to each."""

TRIES: Final = 5
"""How often a conditional commit is decided anew when others change the mark in between."""


# --- storages with open transactions ------------------------------------------------------------


@dataclass(slots=True)
class Statement:
    """One statement with its values, which are bound, never formatted into the text."""

    text: str
    values: Mapping[str, object] = field(default_factory=dict)
    is_short: bool = False
    """It is parsed so quickly that nothing is gained by preparing it; its values are text and whole numbers,
    and so is what it returns, as text. A driver may send it in one message with the BEGIN before it."""


@dataclass(slots=True)
class Result:
    """The result of a statement: how many rows it changed, and those it returned, with the columns' names."""

    changed: int
    rows: Sequence[Sequence[Any]] = ()
    columns: Sequence[str] = ()


class Purpose(enum.IntEnum):
    """What a mark is presented for; each does what the one before it does."""

    ADVANCE = 0
    """Older holders are shut out."""
    WRITE = 1
    """The triggers of ``protect_table`` let through what follows in this transaction."""
    TRANSACTION = 2
    """The transaction is sealed, where the statement that presents can do that: see ``reported_seal``."""


class Dialect(Protocol):
    """``holdfast_fence`` in one kind of SQL: texts, no connection."""

    def upsert(self, resource: str, mark: Mark, purpose: Purpose) -> Statement:
        """Stores the mark if the rule lets it pass; locks the guard either way."""
        ...

    def has_passed(self, result: Result) -> bool | None:
        """Whether the upsert was accepted, by its result. None: only the stored mark shows that."""
        ...

    def select(self, resource: str) -> Statement: ...

    def select_locked(self, resource: str) -> Statement:
        """What the upsert of this transaction has seen, however old the transaction's snapshot is."""
        ...

    def mark_in(self, row: Sequence[Any]) -> Mark: ...


def present(
    dialect: Dialect,
    resource: str,
    mark: Mark,
    purpose: Purpose = Purpose.ADVANCE,
) -> Plan[Result]:
    """Check the mark and store it, or raise ``StaleToken``. Yields ``Statement``, is sent ``Result``.

    One statement where the mark passes. Ends with what that statement returned.
    """
    result: Result = yield dialect.upsert(resource, mark, purpose)
    has_passed = dialect.has_passed(result)
    if has_passed:
        return result
    # Still under the lock the refused statement took, so this is the row that refused it.
    found: Result = yield dialect.select_locked(resource)
    stored = dialect.mark_in(found.rows[0]) if found.rows else None
    decision = decide(stored, mark)
    # Presenting a mark that has passed changes nothing, so the rule itself says whether this one has.
    if has_passed is None and stored is not None and not isinstance(decision, Refuse):
        return result
    if stored is None or not isinstance(decision, Refuse):
        raise HoldfastError(
            f"table holdfast_fence refused token {mark.token} of {resource!r} against the rule:"
            " look for a trigger or a foreign change on that table. Roll back"
        )
    raise stale_token(resource, stored, mark, decision.why)


def load(dialect: Dialect, resource: str) -> Plan[Mark | None]:
    """The stored mark. Yields ``Statement``, is sent ``Result``."""
    result: Result = yield dialect.select(resource)
    return dialect.mark_in(result.rows[0]) if result.rows else None


# --- storages without open transactions -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Read:
    """Read the mark and the version of its object. Answered by ``Found``."""

    resource: str


@dataclass(frozen=True, slots=True)
class Found:
    mark: Mark | None
    version: object
    """What ``Commit`` is conditional on: an ETag, a generation, a revision. None: there is nothing yet."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Store the mark and the user's writes in one step, if the version is still this. Answered by bool.

    Also if the mark is unchanged: the condition keeps a newer holder from coming in between.
    """

    resource: str
    mark: Mark
    version: object


def conditional(resource: str, mark: Mark) -> Plan[None]:
    """Commit the user's writes under the guard, or raise ``StaleToken``. Yields ``Read`` and ``Commit``.

    A driver that computes the writes from its data reads the data at the version that ``Found`` names, and
    computes them again at each ``Commit``. ``Conflict``: another writer changed the mark each time.
    """
    for _ in range(TRIES):
        found: Found = yield Read(resource)
        decision = decide(found.mark, mark)
        if found.mark is not None and isinstance(decision, Refuse):
            raise stale_token(resource, found.mark, mark, decision.why)
        committed: bool = yield Commit(resource, after(found.mark, decision) or mark, found.version)
        if committed:
            return
    raise Conflict(
        f"the guard of {resource!r} was changed by others {TRIES} times in a row, and nothing was written:"
        " try again"
    )


# --- drivers ------------------------------------------------------------------------------------


def run(plan: Plan[Done], carry_out: Callable[[Any], Any]) -> Done:
    """For drivers that block. What ``carry_out`` raises is raised in the plan, which may clean up."""
    try:
        request = next(plan)
        while True:
            try:
                answer = carry_out(request)
            except BaseException as error:  # noqa: BLE001 - the plan raises it again
                request = plan.throw(error)
            else:
                request = plan.send(answer)
    except StopIteration as end:
        done: Done = end.value
        return done


async def run_async(plan: Plan[Done], carry_out: Callable[[Any], Awaitable[Any]]) -> Done:
    """For drivers that await: the same plan, the same end."""
    try:
        request = next(plan)
        while True:
            try:
                answer = await carry_out(request)
            except BaseException as error:  # noqa: BLE001 - as above
                request = plan.throw(error)
            else:
                request = plan.send(answer)
    except StopIteration as end:
        done: Done = end.value
        return done
