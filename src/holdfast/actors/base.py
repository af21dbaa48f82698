"""What the systems for threads and for asyncio share: the kinds of actors, and every call as a plan to run.

Arguments are checked here, before any I/O.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from ..core.lock_options import Duration
from ..errors import EngineUnavailable, InvalidArgument
from ..queue.arguments import check_count, check_lease, check_older_than, check_seconds
from ..queue.calls import BaseJob
from ..queue.model import JobInfo
from ..queue.store import Call
from . import plans
from .context import Context, current
from .definitions import ATTEMPTS, BACKOFF_SECONDS, Definition, check_fields, define
from .invocation import Invocation, Outcome, Stored, attributes_of, restored
from .messages import NewMessage, Received, new_message, received
from .model import DeadLetter, MessageFailed, StateKind
from .plans import Address

__all__ = ["ASK_SECONDS", "REDO_TIMES", "WAIT_SECONDS", "BaseSystem", "check_ask_timeout", "redo_pause"]

Actor = TypeVar("Actor", bound=type[Any])

CONCURRENCY: Final = 4
LEASE_SECONDS: Final = 30.0
KEEP_IDS_SECONDS: Final = 7 * 86_400.0
SNAPSHOT_EVERY: Final = 100
ASK_SECONDS: Final = 30.0
WAIT_SECONDS: Final = 0.5
"""How long a system waits for messages before it looks whether it was stopped."""
REDO_TIMES: Final = 6
"""How often a message is begun again where the database was away or another writer was first."""

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def redo_pause(error: Exception, times: int) -> float | None:
    """How long to wait before a message is begun again; None: it is left to the end of its lease."""
    if times + 1 >= REDO_TIMES:
        return None
    return 0.05 * 2.0**times if isinstance(error, EngineUnavailable) else 0.0


class BaseSystem:
    """Actors of one queue, as far as no I/O is needed."""

    _may_await = False

    def __init__(
        self,
        client: Any,
        namespace: str,
        concurrency: int,
        lease: Duration,
        keep_ids: Duration,
        events_schema: str,
    ) -> None:
        self.client = client
        self.concurrency = check_count(concurrency, "concurrency", 1000)
        self._lease = check_lease(lease)
        self._keep_ids = check_older_than(keep_ids)
        if not isinstance(events_schema, str) or _SCHEMA.fullmatch(events_schema) is None:
            raise InvalidArgument(
                "events_schema is the schema of holdfast.events: at most 63 lower-case letters, digits and"
                f" underscores; it is {events_schema!r}"
            )
        self._namespace = namespace
        self._events_schema = events_schema
        self._definitions: dict[str, Definition] = {}
        self._is_installed = False

    def actor(
        self,
        kind: str,
        *,
        state: StateKind = "value",
        attempts: int = ATTEMPTS,
        backoff: Any = BACKOFF_SECONDS,
        snapshot_every: int | None = SNAPSHOT_EVERY,
    ) -> Callable[[Actor], Actor]:
        """The class of a kind of actors: each public method is a message, each attribute without an
        underscore in front a part of the state.

        ``state="value"``: the attributes are stored as JSON. ``state="events"``: the events of
        ``context().append`` are stored, and ``apply(event)`` rebuilds the attributes from them; after every
        ``snapshot_every`` events the attributes are stored as well. A message whose handler
        raises is tried ``attempts`` times in all, with pauses that grow from ``backoff`` seconds on; then it
        is a dead letter.
        """
        if state not in ("value", "events"):
            raise InvalidArgument(f"state is 'value' or 'events'; it is {state!r}")
        if snapshot_every is not None:
            check_count(snapshot_every, "snapshot_every", 1_000_000)
        check_count(attempts, "attempts", 1_000_000)
        if not isinstance(kind, str):
            raise InvalidArgument(
                "actor takes the name of the kind: write @system.actor('account') above the class"
            )

        def register(actor: Actor) -> Actor:
            if kind in self._definitions:
                raise InvalidArgument(f"there is an actor {kind!r} already: choose another name")
            self._definitions[kind] = define(
                kind, actor, state, attempts, backoff, snapshot_every, self._may_await
            )
            self._is_installed = False  # it may be the first that needs the store of events
            return actor

        return register

    # --- sending

    def _new_message(
        self, kind: str, key: str, message: str, fields: Mapping[str, Any], id_: str | None, is_asked: bool
    ) -> NewMessage:
        definition = self._definitions.get(kind)
        made = new_message(kind, key, message, fields, id_=id_, is_asked=is_asked)
        if definition is not None:
            check_fields(definition, message, fields)
            if definition.has_events:
                self._stream(kind, key)
        return made

    def _new_tell(
        self, kind: str, key: str, message: str, fields: Mapping[str, Any], id_: str | None
    ) -> NewMessage:
        return self._new_message(kind, key, message, fields, id_, False)

    def _joins_message(self, new: NewMessage) -> bool:
        """Whether a handler sends it: then it is committed with the outcome of the handler."""
        handled = current.get()
        if handled is None:
            return False
        handled.outbox.append(new)
        return True

    def _check_may_ask(self) -> None:
        handled = current.get()
        if handled is not None:
            raise InvalidArgument(
                f"the actor {handled.kind} {handled.key!r} handles a message, and cannot wait for a reply:"
                " two actors that ask each other would wait for ever. Send a message by tell(), and let the"
                " other actor answer with a message"
            )

    @staticmethod
    def _put_call(new: NewMessage) -> Call[int]:
        return lambda session: plans.put(session, new)

    # --- handling

    def _job_kinds(self) -> list[str]:
        if not self._definitions:
            raise InvalidArgument(
                "this system has no actors to run: register a class by @system.actor('account') first"
            )
        return [definition.job_kind for definition in self._definitions.values()]

    def _install_call(self) -> Call[None]:
        has_events = any(definition.has_events for definition in self._definitions.values())
        schema = self._events_schema if has_events else None
        return lambda session: plans.install(session, schema)

    def _forget_call(self) -> Call[int]:
        return lambda session: plans.forget(session, self._keep_ids)

    def _received(self, job: BaseJob) -> Received:
        return received(job.id, job.kind, job.key, job.payload)

    def _definition(self, kind: str) -> Definition:
        definition = self._definitions.get(kind)
        if definition is None:
            known = ", ".join(map(repr, self._definitions)) or "none"
            raise InvalidArgument(f"there is no actor {kind!r} here (known: {known}): register its class")
        return definition

    @staticmethod
    def _check_attempts(job: BaseJob, definition: Definition) -> None:
        """A worker that died could not end the message as failed: the next worker does it."""
        if job.attempt > definition.attempts:
            raise MessageFailed(
                f"its workers died or were stopped at each of its {definition.attempts} attempts"
            )

    @staticmethod
    def _fail_call(job: BaseJob, definition: Definition, error: BaseException) -> Call[Any]:
        pause = definition.retry_in(job.attempt, random.random())
        return job.fail_call(error, pause, pause is None)

    def _stream(self, kind: str, key: str) -> str:
        name = plans.stream_name(self._namespace, kind, key)
        if len(name.encode()) > 512:
            raise InvalidArgument(
                f"the key {key!r} is too long for an actor whose state is events: namespace, kind and key"
                " have at most 510 bytes together"
            )
        return name

    def stream(self, kind: str, key: str) -> str:
        """The name of the stream that an actor with ``state="events"`` keeps in the store of events."""
        return self._stream(kind, key)

    def _address(self, definition: Definition, key: str) -> Address:
        stream = self._stream(definition.kind, key) if definition.has_events else None
        return Address(definition.kind, key, stream, self._events_schema)

    def _load_call(self, address: Address) -> Call[Stored]:
        return lambda session: plans.load(session, address)

    def _commit_call(self, job: BaseJob, address: Address, outcome: Outcome) -> Call[bool]:
        return lambda session: plans.commit(session, job.claim, address, outcome)

    def _open_context(
        self, job: BaseJob, message: Received, definition: Definition, invocation: Invocation
    ) -> Context:
        return Context(
            self.client,
            message.kind,
            message.key,
            message.id,
            job.attempt,
            self._new_tell,
            invocation.append if definition.has_events else None,
        )

    # --- looking

    def _state_address(self, kind: str, key: str) -> tuple[Definition, Address]:
        definition = self._definition(kind)
        return definition, self._address(definition, key)

    @staticmethod
    def _attributes(definition: Definition, stored: Stored) -> dict[str, Any] | None:
        return attributes_of(restored(definition, stored)) if stored.version else None

    @staticmethod
    def _dead_letter(job: JobInfo) -> DeadLetter:
        message = received(job.id, job.kind, job.key, job.payload)
        return DeadLetter(
            job.id, message.kind, message.key, message.message, message.fields, job.attempt, job.error or ""
        )


def check_ask_timeout(timeout: object) -> float:
    return check_seconds(timeout, "timeout", 0.0)
