"""Whether an object store checks the condition of a PUT and stores the object in one step.

Some stores check first and write then: two writers that come at once both pass the check, and the guard lets
a stale holder in. No document tells that apart, a race does: writers prepare the same conditional PUT, are
let go together, and at most one may be reported as stored. Many races without a second winner prove
nothing, but a store that checks in two steps does not get through many.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from ..errors import InvalidArgument, Unsupported
from .object_plans import DeleteObject, GetObject, Got, Outcome, PutObject
from .object_store import FencedObject

__all__ = ["ProbeResult", "probe_store"]

BARRIER_SECONDS: Final = 10.0
CONTENT_BYTES: Final = 2048
_BEFORE_SEND: Final = "before-send.s3.PutObject"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The results of the probe. Counts are of races: all writers create or replace one object at once."""

    writers: int
    races: int
    checks_if_none_match: bool
    checks_if_match: bool
    several_created: int
    """Races in which ``If-None-Match: *`` let more than one writer create the object."""
    several_replaced: int
    """Races in which ``If-Match`` let more than one writer replace the same version."""
    none_stored: int
    """Races without a winner: safe, and a sign that writers will have to try again."""
    unclear: int
    """Races in which the store did not report the outcome of its PUT to each writer."""
    has_content_etag: bool
    """The same content has the same ETag, so that an ETag is no version."""

    @property
    def is_atomic(self) -> bool:
        """As far as the races can tell."""
        return (
            self.checks_if_none_match
            and self.checks_if_match
            and not self.several_created
            and not self.several_replaced
        )

    def as_dict(self) -> dict[str, Any]:
        return {"atomic": self.is_atomic, **asdict(self)}


def probe_store(
    clients: Sequence[Any], bucket: str, prefix: str = "", *, rounds: int = 25, writers: int = 8
) -> ProbeResult:
    """Race conditional PUTs on new objects below ``prefix``, which are deleted at the end.

    With several clients, of the gateways of one store, the writers of each race go through all of them. The
    clients must not send a request again by themselves. A client's errors are raised as they are.
    """
    if not clients or rounds < 1 or writers < 2:
        raise InvalidArgument("a probe needs a client, one round and two writers at least")
    races = _Races([FencedObject(client, bucket, prefix or "probe") for client in clients], writers)
    name = f"{prefix}holdfast-probe-{secrets.token_hex(8)}"
    try:
        return _probe(races, name, rounds)
    finally:
        races.close()


def _probe(races: _Races, name: str, rounds: int) -> ProbeResult:
    try:
        races.put(f"{name}/first", b"first", None)
        checks_if_none_match = races.put(f"{name}/first", b"second", None) is None
        etag = races.etag(f"{name}/first")
        has_content_etag = races.put(f"{name}/first", races.content(f"{name}/first"), etag) == etag
        checks_if_match = races.put(f"{name}/first", b"third", '"00000000000000000000000000000000"') is None
    except Unsupported:
        return ProbeResult(races.writers, 0, False, False, 0, 0, 0, 0, False)
    created: list[list[bool | None]] = []
    replaced: list[list[bool | None]] = []
    if checks_if_none_match and checks_if_match:
        for number in range(rounds):
            key = f"{name}/{number}"
            created.append(races.run(key, None))
            replaced.append(races.run(key, races.etag(key)))
    return ProbeResult(
        races.writers,
        len(created) + len(replaced),
        checks_if_none_match,
        checks_if_match,
        sum(outcomes.count(True) > 1 for outcomes in created),
        sum(outcomes.count(True) > 1 for outcomes in replaced),
        sum(set(outcomes) == {False} for outcomes in [*created, *replaced]),
        sum(None in outcomes for outcomes in [*created, *replaced]),
        has_content_etag,
    )


class _Races:
    """Writers that wait for each other at the last moment before they send."""

    def __init__(self, guards: Sequence[FencedObject], writers: int) -> None:
        self.writers = writers
        self._guards = guards
        self._keys: set[str] = set()
        self._pool = ThreadPoolExecutor(writers, "fencing-probe")
        self._start = threading.Barrier(writers)
        self._runner = threading.local()
        self._events: list[Any] = []
        self._hold_back()

    def run(self, key: str, etag: str | None) -> list[bool | None]:
        """For each writer, whether its PUT was reported as stored; None: unknown."""
        self._keys.add(key)
        racing = [self._pool.submit(self._race, number, key, etag) for number in range(self.writers)]
        outcomes = [each.result() for each in racing]
        errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if len(errors) == self.writers:
            raise errors[0]
        return [None if isinstance(outcome, Exception) else outcome for outcome in outcomes]

    def _race(self, number: int, key: str, etag: str | None) -> bool | Exception:
        # Never the same twice: it would have the ETag that the others' condition names.
        content = secrets.token_bytes(CONTENT_BYTES)
        self._runner.is_racing = True
        try:
            return self._ask(PutObject(key, content, etag), number) is Outcome.STORED
        except Exception as error:  # noqa: BLE001 - one writer's trouble is a finding about the race
            return error
        finally:
            self._runner.is_racing = False

    def put(self, key: str, content: bytes, etag: str | None) -> str | None:
        """The new ETag; None if the condition was refused."""
        self._keys.add(key)
        return self.etag(key) if self._ask(PutObject(key, content, etag)) is Outcome.STORED else None

    def etag(self, key: str) -> str:
        return self._get(key).etag

    def content(self, key: str) -> bytes:
        return self._get(key).body

    def close(self) -> None:
        self._pool.shutdown()
        for events in self._events:
            events.unregister(_BEFORE_SEND, self._wait)
        for key in self._keys:
            with suppress(Exception):  # The first error is what the caller has to see.
                self._ask(DeleteObject(key))

    def _get(self, key: str) -> Got:
        found = self._ask(GetObject(key))
        return found if isinstance(found, Got) else Got(b"", "")

    def _ask(self, request: Any, number: int = 0) -> Any:
        return self._guards[number % len(self._guards)]._carry_out(request)

    # --- the start

    def _hold_back(self) -> None:
        """By botocore's event, all is signed and only to be sent; else as late as a caller can."""
        for guard in self._guards:
            events = getattr(getattr(guard._s3, "meta", None), "events", None)
            if events is not None:
                events.register(_BEFORE_SEND, self._wait)
                self._events.append(events)
            else:
                guard._s3 = _HeldBack(guard._s3, self._wait)

    def _wait(self, **_: Any) -> None:
        if getattr(self._runner, "is_racing", False):
            self._runner.is_racing = False
            with suppress(threading.BrokenBarrierError):
                self._start.wait(BARRIER_SECONDS)


class _HeldBack:
    """A client whose PUTs wait for the others."""

    def __init__(self, client: Any, wait: Callable[[], None]) -> None:
        self._client = client
        self._wait = wait
        self.get_object, self.delete_object = client.get_object, client.delete_object

    def put_object(self, **keywords: Any) -> Any:
        self._wait()
        return self._client.put_object(**keywords)
