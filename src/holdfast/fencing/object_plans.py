"""The guard for an object store, without I/O: what lies in an object, and which requests a call makes.

The object at the guarded key begins with one line, the *header*: the newest mark, a random id of the write,
and where the content is. Then comes the content itself (layout ``envelope``), or nothing (``manifest``: the
content is an object of its own, under a key that is used once, and the header names it).

Why the mark is inside the bytes. A conditional PUT (``If-Match``) passes if the ETag is still the one that
was read. An ETag is a hash of the content, no version: with the mark in the object's metadata, a new holder
that writes the same bytes leaves the ETag as it is, and the stale holder's PUT passes. With the mark in the
bytes, the same ETag means the same mark, so what was decided by the mark that was read holds when the PUT is
carried out. The id of the write makes every version's ETag differ, and lets a writer whose reply was lost, or
whose client library sent the PUT twice, recognise its own write in place of taking it for another's.

Plans yield requests (``GetObject``, ``PutObject``, ``DeleteObject``, ``Pause``) and are sent the answers.
"""

from __future__ import annotations

import enum
import json
import logging
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Final, Literal

from ..errors import Conflict, HoldfastError, InvalidArgument, StaleToken
from .mark_text import mark_from_text, mark_text
from .plans import TRIES, Commit, Found, Plan, conditional
from .rule import Mark
from .writers import moving

__all__ = [
    "MAX_ENVELOPE_BYTES",
    "Content",
    "DeleteObject",
    "GetObject",
    "Got",
    "Layout",
    "ObjectPlans",
    "Outcome",
    "Pause",
    "PutObject",
    "decode_object",
    "encode_header",
]

_logger = logging.getLogger(__name__)

MAX_ENVELOPE_BYTES: Final = 64 << 20
"""``advance`` reads and writes the content again, and a call holds it in memory."""
MAX_HEADER_BYTES: Final = 64 << 10
"""How many bytes are read to learn only the mark: room for about 3000 peers."""
MARK: Final = "holdfast_fence"
MAGIC: Final = b'{"holdfast_fence":'
FIRST_PAUSE_SECONDS: Final = 0.05

Layout = Literal["envelope", "manifest"]
Content = bytes | BinaryIO


# --- requests -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GetObject:
    """Answered by ``Got``, or None where there is no such object."""

    key: str
    most: int | None = None
    """Read so many bytes of it alone."""
    into: BinaryIO | None = None
    """Copy the body there, in pieces, and answer without it."""


@dataclass(frozen=True, slots=True)
class Got:
    body: bytes
    etag: str


@dataclass(frozen=True, slots=True)
class PutObject:
    """Answered by ``Outcome``."""

    key: str
    body: Content
    etag: str | None
    """Only over the version with this ETag; None: only where there is nothing yet."""


class Outcome(enum.Enum):
    STORED = "stored"
    CHANGED = "changed"
    """The condition does not hold (any more), and nothing was stored."""
    BUSY = "busy"
    """Another conditional write of the key was going on; nothing was stored, and nothing is said about it."""


@dataclass(frozen=True, slots=True)
class DeleteObject:
    key: str


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


# --- what lies in the object --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Header:
    mark: Mark
    write: str
    """Of the last write of the content; ``advance`` keeps it."""
    place: str | None
    """``inline``, the key that has the content, or None: nothing has been written, or it was deleted."""


INLINE: Final = "inline"


@dataclass(frozen=True, slots=True)
class Version:
    """The object as it was read."""

    header: Header
    etag: str
    content: bytes = field(repr=False)
    """What followed the header, as far as it was read."""


def encode_header(header: Header) -> bytes:
    parts = {MARK: mark_text(header.mark), "write": header.write, "place": header.place}
    text = json.dumps(parts, separators=(",", ":")).encode() + b"\n"
    if len(text) > MAX_HEADER_BYTES:
        raise InvalidArgument(
            f"the grant has {len(header.mark.peers)} peers, more than fit into a header: present lease.fence"
        )
    return text


def decode_object(shown: str, got: Got) -> Version:
    line, end, content = got.body.partition(b"\n")
    try:
        if not end or not line.startswith(MAGIC):
            raise ValueError("it does not begin with a header")
        parts = json.loads(line)
        mark, write, place = parts.get(MARK), parts.get("write"), parts.get("place")
        if not (isinstance(mark, str) and isinstance(write, str) and isinstance(place, str | None)):
            raise ValueError("a part of the header is missing or of the wrong type")
    except (ValueError, RecursionError) as error:
        raise HoldfastError(
            f"{shown} was not written by a guard of Holdfast's ({error}), so the guard does not touch it:"
            " keep what it has under another key, delete it, and put the content through the guard"
        ) from None
    return Version(Header(mark_from_text(mark, shown), write, place), got.etag, content)


# --- plans --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ObjectPlans:
    """The calls on one guarded key. ``shown`` names it in messages."""

    shown: str
    key: str
    layout: Layout
    fraction: Callable[[], float] = random.random
    """From 0 to 1, for jitter."""

    def get(self, into: BinaryIO | None = None) -> Plan[bytes | None]:
        """The content; None where there is none. With ``into`` it is copied there, and nothing is returned
        but that it is there."""
        place = ""
        for _ in range(TRIES):
            version = yield from self._read()
            if version is None or version.header.place is None:
                return None
            place = version.header.place
            if place == INLINE:
                return _copied(version.content, into)
            found: Got | None = yield GetObject(place, into=into)
            if found is not None:
                return found.body
            # Replaced between the two requests, and then deleted: the manifest names another by now.
        raise HoldfastError(
            f"{self.shown} names an object for its content that is not there: {place}."
            " It was deleted by hand or by a rule of the bucket's: bring it back, or put the content again"
        )

    def newest(self) -> Plan[Mark | None]:
        version = yield from self._read(MAX_HEADER_BYTES)
        return None if version is None else version.header.mark

    def put(self, content: Content | None, mark: Mark) -> Plan[None]:
        """Replace the content; None deletes it and keeps the mark."""
        write = secrets.token_hex(16)
        if content is None:
            yield from self._write(Header(mark, write, None), b"")
        elif self.layout == "manifest":
            # First under a key that is used once; the manifest then makes it the content, in one step.
            upload = PutObject(f"{self.key}.{write}", content, None)
            yield from self._write(Header(mark, write, upload.key), b"", upload)
        elif isinstance(content, bytes):
            yield from self._write(Header(mark, write, INLINE), content)
        else:
            raise InvalidArgument(
                "an envelope takes bytes; for a file use FencedObject(…, layout='manifest')"
            )

    def advance(self, mark: Mark) -> Plan[None]:
        """Store the mark, and the content as it is."""
        return self._store_mark(conditional(self.shown, mark))

    def move(self, source: str) -> Plan[None]:
        return self._store_mark(moving(self.shown, source))

    # --- the parts of a write

    def _store_mark(self, inner: Plan[None]) -> Plan[None]:
        request = next(inner)
        version: Version | None = None
        try:
            while True:
                if not isinstance(request, Commit):
                    version = yield from self._read_again(version)
                    request = inner.send(_found(version))
                    continue
                if version is not None and request.mark == version.header.mark:
                    return
                header, content = _with_mark(version, request.mark)
                request = inner.send((yield from self._store(header, content, version)))
        except StopIteration:
            return

    def _write(self, header: Header, content: bytes, upload: PutObject | None = None) -> Plan[None]:
        inner = conditional(self.shown, header.mark)
        version: Version | None = None
        is_uploaded = False
        try:
            request = next(inner)
            while True:
                if isinstance(request, Commit):
                    if upload is not None and not is_uploaded:
                        yield from self._upload(upload)
                        is_uploaded = True
                    new = replace(header, mark=request.mark)
                    request = inner.send((yield from self._store(new, content, version)))
                    continue
                seen, version = version, (yield from self._read_again(version, MAX_HEADER_BYTES))
                if version is not None and version.header.write == header.write:
                    version = seen
                    break  # It is ours: it had been stored, and only the answer was lost.
                request = inner.send(_found(version))
        except StopIteration:
            pass
        except (Conflict, StaleToken):
            # No version names what was uploaded, so no reader finds it. After any other error one may.
            if upload is not None and is_uploaded:
                yield from self._discard(upload.key)
            raise
        if version is not None and version.header.place not in (None, INLINE):
            yield from self._discard(version.header.place)

    def _discard(self, key: str) -> Plan[None]:
        """Delete an object that no version names any more. An error of that does not fail the write."""
        try:
            yield DeleteObject(key)
        except Exception:
            _logger.warning(
                "%s: %s is left behind, and may be deleted by hand", self.shown, key, exc_info=True
            )

    def _upload(self, upload: PutObject) -> Plan[None]:
        # CHANGED: the client library sent it twice. The key is ours alone.
        for tries in range(TRIES):
            outcome: Outcome = yield upload
            if outcome is not Outcome.BUSY:
                return
            yield self._pause(tries)
        raise self._busy()

    def _store(self, header: Header, content: bytes, over: Version | None) -> Plan[bool]:
        """Whether the version was still the one that was read."""
        body = encode_header(header) + content
        for tries in range(TRIES):
            outcome: Outcome = yield PutObject(self.key, body, None if over is None else over.etag)
            if outcome is not Outcome.BUSY:
                if outcome is Outcome.CHANGED:
                    yield self._pause(tries)
                return outcome is Outcome.STORED
            yield self._pause(tries)
        raise self._busy()

    def _read(self, most: int | None = None) -> Plan[Version | None]:
        got: Got | None = yield GetObject(self.key, most)
        return None if got is None else decode_object(self.shown, got)

    def _read_again(self, before: Version | None, most: int | None = None) -> Plan[Version | None]:
        """Refuses to go on where the object was there a moment ago: its newest mark is gone with it."""
        version = yield from self._read(most)
        if version is None and before is not None:
            raise Conflict(
                f"{self.shown} was deleted while it was written, and nothing was written. Its fence is gone"
                " too: make sure that no older holder is at work, then try again. Delete through the guard"
            )
        return version

    def _pause(self, tries: int) -> Pause:
        return Pause(self.fraction() * FIRST_PAUSE_SECONDS * 2**tries)

    def _busy(self) -> Conflict:
        return Conflict(
            f"others were writing {self.shown} at the same time, {TRIES} times in a row, and nothing"
            " was written: try again"
        )


def _found(version: Version | None) -> Found:
    return Found(None, None) if version is None else Found(version.header.mark, version.etag)


def _with_mark(version: Version | None, mark: Mark) -> tuple[Header, bytes]:
    """The same content under another mark."""
    if version is None:
        return Header(mark, secrets.token_hex(16), None), b""
    return replace(version.header, mark=mark), version.content


def _copied(content: bytes, into: BinaryIO | None) -> bytes:
    if into is None:
        return content
    into.write(content)
    return b""
