"""The table of records: read, decoded, and written only if nothing changed in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from sqlite3 import Cursor
from typing import Any, Final

from ...rules.record import RETENTION_SECONDS, Record
from .cache import SharedRecordCache
from .codec import SchemaTooNew, decode, encode
from .database_file import DatabaseFile

__all__ = ["RETENTION_US", "Execute", "Guard", "LoadedRecord", "RecordTable"]

Execute = Callable[..., Cursor]

Guard = tuple[str, float]
"""A client whose lease the decision takes for expired, and the renewal that the decision relied on."""

SELECT: Final = "SELECT version, boot, record FROM locks WHERE namespace = ? AND name = ?"
SELECT_FLOOR: Final = "SELECT value FROM meta WHERE key = 'floor'"
SELECT_RANGE: Final = (
    "SELECT name, version, boot, record FROM locks "
    "WHERE namespace = ? AND name >= ? AND name < ? ORDER BY name"
)
SELECT_OF_CLIENT: Final = (
    "SELECT name, version, boot, record FROM locks WHERE namespace = ? AND instr(record, ?)"
)

STILL_ALIVE: Final = " AND EXISTS (SELECT 1 FROM clients WHERE id = ? AND dead = 0)"
"""A client that others have marked dead must not change anything: its claims are void."""

NOT_RENEWED: Final = " AND NOT EXISTS (SELECT 1 FROM clients WHERE id = ? AND renewed_at <> ?)"
"""A lease that was taken for expired has expired only if its client has not renewed since."""

INSERT: Final = (
    "INSERT INTO locks (namespace, name, version, boot, record, forget_at) "  # noqa: S608 - constants only
    "SELECT ?, ?, ?, ?, ?, ? WHERE (SELECT value FROM meta WHERE key = 'floor') = ?"
    f"{STILL_ALIVE} ON CONFLICT DO NOTHING"
)
OVERWRITE: Final = (
    "UPDATE locks SET version = ?, boot = ?, record = ?, forget_at = ? "
    "WHERE namespace = ? AND name = ? AND version = ?"
)
UPDATE: Final = OVERWRITE + STILL_ALIVE
HAND_OVER: Final = UPDATE + STILL_ALIVE
"""The successor must be alive, too."""

NAMES_PER_QUERY: Final = 500
CACHED_MAX: Final = 20_000
RETENTION_US: Final = int(RETENTION_SECONDS * 1_000_000)


class LoadedRecord:
    """A record as stored. Its text is decoded only when the record itself is needed."""

    __slots__ = ("_read", "_record", "boot", "text", "version")

    def __init__(
        self, version: int, boot: str, text: str, read: Callable[[str], Record], record: Record | None = None
    ) -> None:
        self.version = version
        """-1: the record is not stored."""
        self.boot = boot
        """Names the clock of its times."""
        self.text = text
        self._read = read
        self._record = record

    @property
    def record(self) -> Record:
        record = self._record
        if record is None:
            record = self._record = self._read(self.text)
        return record


@cache
def _select_several(count: int) -> str:
    marks = ",".join("?" * count)
    return (
        "SELECT name, version, boot, record FROM locks "  # noqa: S608 - marks only
        f"WHERE namespace = ? AND name IN ({marks})"
    )


class RecordTable:
    """The records of one namespace, as one client reads and writes them."""

    def __init__(self, file: DatabaseFile, namespace: str, client: str) -> None:
        self._file = file
        self._namespace = namespace
        self._client = client
        self.boot = ""
        """Names the clock of this client."""
        self._read: dict[bytes, LoadedRecord] = {}
        self._written: dict[bytes, LoadedRecord] = {}
        self._changed_by_others: set[bytes] = set()
        """Records that other clients wrote after this one: what this client wrote is of no use there."""
        self._outdated: dict[bytes, int] = {}
        """Versions in the shared cache that are known not to be the stored ones any more."""
        self.record_cache = SharedRecordCache(None, namespace)
        """What other clients wrote to contended records."""
        self.unpublished_handoffs: dict[bytes, None] = {}
        """Records that were handed over, and are not in the shared cache yet."""
        self.is_in_transaction = False
        """What is written may still be rolled back, so it is not published."""

    # --- reading --------------------------------------------------------------------------------

    def load(self, execute: Execute, key: bytes) -> LoadedRecord:
        row = execute(SELECT, (self._namespace, key)).fetchone()
        if row is None:
            # Tokens continue after those of deleted records, whatever the wall clock did since.
            return self.absent(Record(token=execute(SELECT_FLOOR).fetchone()[0]))
        loaded = self._from_row(key, *row)
        if loaded is self._written.get(key):
            self._changed_by_others.discard(key)
        return loaded

    def absent(self, record: Record) -> LoadedRecord:
        """A record that is not stored."""
        return LoadedRecord(-1, self.boot, "", decode, record)

    def load_several(self, execute: Execute, keys: list[bytes]) -> dict[bytes, LoadedRecord]:
        found = {}
        for start in range(0, len(keys), NAMES_PER_QUERY):
            some = keys[start : start + NAMES_PER_QUERY]
            for key, version, boot, text in execute(_select_several(len(some)), (self._namespace, *some)):
                found[key] = self._from_row(key, version, boot, text)
        return found

    def load_prefix(self, execute: Execute, prefix: bytes) -> Iterable[tuple[bytes, LoadedRecord]]:
        # No byte of UTF-8 is 0xff, so the range ends right after the last name with the prefix.
        rows = execute(SELECT_RANGE, (self._namespace, prefix, prefix + b"\xff")).fetchall()
        return [(row[0], self._from_row(*row)) for row in rows]

    def load_of_client(self, execute: Execute, client: str) -> Iterable[tuple[bytes, LoadedRecord]]:
        rows = execute(SELECT_OF_CLIENT, (self._namespace, client)).fetchall()
        return [(row[0], self._from_row(*row)) for row in rows]

    def recall(self, key: bytes) -> LoadedRecord | None:
        """What was written last, as far as is known without reading: by another client, or by this one.

        It may be outdated: use it only for a change that is stored only if the record is still the same.
        """
        written = self._written.get(key)
        ours = None if written is None else written.version
        found = self.record_cache.read(key, ours, self._outdated.get(key))
        if found is not None:
            return LoadedRecord(*found, decode)
        return None if key in self._changed_by_others else written

    def is_outdated(self, key: bytes, recalled: LoadedRecord) -> bool:
        """Whether a change of this version was already refused because the record had changed."""
        return self._outdated.get(key) == recalled.version

    def clear_caches(self) -> None:
        """Called when the database is replaced, or a transaction is rolled back."""
        self._read.clear()
        self._written.clear()
        self._changed_by_others.clear()
        self._outdated.clear()

    def _from_row(self, key: bytes, version: int, boot: str, text: str) -> LoadedRecord:
        written = self._written.get(key)
        if written is not None and written.version == version:
            return written  # Versions never repeat.
        known = self._read.get(key)
        if known is not None and known.version == version:
            return known
        if len(self._read) >= CACHED_MAX:
            self.clear_caches()
        loaded = self._read[key] = LoadedRecord(version, boot, text, partial(decode_stored, self._file, key))
        return loaded

    # --- writing --------------------------------------------------------------------------------

    def store(
        self,
        execute: Execute,
        key: bytes,
        loaded: LoadedRecord,
        after: Record,
        wall: int,
        expiry_guards: Sequence[Guard] = (),
        successor: str | None = None,
    ) -> bool:
        """Write, if the record is still the one that was loaded and all guards hold. Returns whether it did.

        ``successor``: the client that the lock is handed to.
        """
        text, forget_at = encode(after), _forget_at(after, wall)
        return self.store_text(execute, key, loaded, text, forget_at, expiry_guards, successor, after)

    def store_text(
        self,
        execute: Execute,
        key: bytes,
        loaded: LoadedRecord,
        text: str,
        forget_at: int,
        expiry_guards: Sequence[Guard] = (),
        successor: str | None = None,
        after: Record | None = None,
    ) -> bool:
        """``store`` of a record that is a text already. ``after``: the record, if it is known.

        A handoff is not published yet: the successor is notified first.
        """
        values: tuple[Any, ...]
        if loaded.version < 0:
            # Versions never repeat, not even when a name is stored again after its record was deleted.
            version, floor = random.getrandbits(52), loaded.record.token
            values = (self._namespace, key, version, self.boot, text, forget_at, floor, self._client)
            written = execute(INSERT, values)
        else:
            version = loaded.version + 1
            values = (version, self.boot, text, forget_at, self._namespace, key, loaded.version, self._client)
            statement = UPDATE
            if expiry_guards:
                statement += NOT_RENEWED * len(expiry_guards)
                values = (*values, *[value for guard in expiry_guards for value in guard])
            if successor is not None:
                statement = HAND_OVER if statement is UPDATE else statement + STILL_ALIVE
                values = (*values, successor)
            written = execute(statement, values)
        if written.rowcount != 1:
            self._written.pop(key, None)
            self._changed_by_others.add(key)
            self._outdated[key] = loaded.version
            return False
        if len(self._written) >= CACHED_MAX:
            self.clear_caches()
        self._written[key] = LoadedRecord(version, self.boot, text, decode, after)
        if successor is not None:
            self.unpublished_handoffs[key] = None
            return True
        if self.unpublished_handoffs:
            self.unpublished_handoffs.pop(key, None)
        if "\n" in text and not self.is_in_transaction:
            self.record_cache.publish(key, version, self.boot, text)
        else:
            self.record_cache.invalidate(key)
        return True

    def publish_handoffs(self) -> None:
        """Publish the records that were handed over, after the successors were notified."""
        while self.unpublished_handoffs:
            key, _ = self.unpublished_handoffs.popitem()
            written = self._written.get(key)
            if written is not None:
                self.record_cache.publish(key, written.version, written.boot, written.text)

    def overwrite(self, execute: Execute, key: bytes, loaded: LoadedRecord, after: Record, wall: int) -> None:
        """Write within a transaction, for a client that is not registered at this moment."""
        version, text = loaded.version, encode(after)
        values = (version + 1, self.boot, text, _forget_at(after, wall), self._namespace, key, version)
        execute(OVERWRITE, values)
        self.record_cache.invalidate(key)


def _forget_at(record: Record, wall: int) -> int:
    forget_at = wall + RETENTION_US
    return forget_at if record.value is None else max(forget_at, record.value.forget_at_us)


def decode_stored(file: DatabaseFile, key: bytes, text: str) -> Record:
    try:
        return decode(text)
    except SchemaTooNew as error:
        raise file.unavailable(f"holds a {error}", "upgrade holdfast here") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise file.unavailable(
            f"holds a damaged record of {key.decode(errors='replace')!r}",
            "stop all processes that use it, delete it (with its -wal and -shm) and start them again",
        ) from error
