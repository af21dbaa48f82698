"""A cache of contended records that all processes share: what was last written of them.

A client that changes such a record decides on the cached text instead of reading the database first. Its
change is stored only if the record is still the same. An entry may be outdated, so it serves no other
purpose: no client relies on it without storing something.

Only what was stored is published, by the client that stored it, so a version of a record has one text. A
client that changes a published record publishes the new text or invalidates the entry. Two clients that write
at the same time, or one that dies while it writes, leave an entry whose checksum does not match.

It is a file that is read and written with ``pread`` and ``pwrite``, never mapped: reading the mapped memory
of a truncated file kills the process (SIGBUS). A missing entry only costs a read of the database.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from typing import Final
from zlib import crc32

from ...core.hashing import blake2b
from .side_directory import SideDirectory

__all__ = ["NAME", "SharedRecordCache"]

log = logging.getLogger("holdfast")

NAME: Final = "board"
SLOTS: Final = 64
SLOT_BYTES: Final = 8192
"""A longer record is not published. This is enough for some forty waiters."""

HEADER: Final = struct.Struct("<8sQII")
"""The tag of the key, and the version, length and checksum of the content."""

CONTENT_BYTES_MAX: Final = SLOT_BYTES - HEADER.size
EMPTY_HEADER: Final = b"\0" * HEADER.size
CACHED_MAX: Final = 20_000
MASK: Final = 0xFFFFFFFF

FIRST_READ_BYTES: Final = 2048
"""Most entries are not longer, so that one read is enough."""

_head = HEADER.unpack_from
_pack = HEADER.pack


class SharedRecordCache:
    """One client's access to the cache, for one namespace. Without a file the cache is always empty."""

    __slots__ = ("_fd", "_namespace", "_slots")

    def __init__(self, side: SideDirectory | None, namespace: str) -> None:
        self._namespace = namespace.encode()
        self._slots: dict[bytes, tuple[int, bytes, int]] = {}
        """For each key: the offset of its slot, its tag, and the start value of its checksum."""
        self._fd = -1
        if side is not None:
            try:
                self._fd = _open_file(side)
            except OSError as error:
                log.warning("holdfast: %s/%s is not used: %s", side.path, NAME, error.strerror or error)

    def read(self, key: bytes, *known: int | None) -> tuple[int, str, str] | None:
        """Version, boot and text of a record as it was stored. None: not cached, or a known version."""
        fd = self._fd
        if fd < 0:
            return None
        at, tag, seed = self._slots.get(key) or self._slot(key)
        try:
            notice = os.pread(fd, FIRST_READ_BYTES, at)
            if len(notice) < HEADER.size:
                return None  # The file was truncated.
            whose, version, length, check = _head(notice)
            if whose != tag or version in known or length > CONTENT_BYTES_MAX:
                return None
            if length > len(notice) - HEADER.size:
                notice += os.pread(fd, length + HEADER.size - len(notice), at + len(notice))
        except OSError:
            return None
        body = notice[HEADER.size : HEADER.size + length]
        if crc32(body, (seed ^ version) & MASK) != check:
            return None
        try:
            boot, _, text = body.decode("utf-8", "surrogatepass").partition("\n")
        except ValueError:
            return None
        return version, boot, text

    def publish(self, key: bytes, version: int, boot: str, text: str) -> None:
        fd = self._fd
        if fd < 0:
            return
        at, tag, seed = self._slots.get(key) or self._slot(key)
        body = f"{boot}\n{text}".encode("utf-8", "surrogatepass")
        length = len(body)
        if length > CONTENT_BYTES_MAX:
            self.invalidate(key)
            return
        head = _pack(tag, version, length, crc32(body, (seed ^ version) & MASK))
        with contextlib.suppress(OSError):  # Disk full: the checksum of a partial entry does not match.
            os.pwrite(fd, head + body, at)

    def invalidate(self, key: bytes) -> None:
        """Remove the entry, so that the database is read."""
        fd = self._fd
        if fd >= 0:
            at, tag, _ = self._slots.get(key) or self._slot(key)
            with contextlib.suppress(OSError):
                if os.pread(fd, len(tag), at) == tag:
                    os.pwrite(fd, EMPTY_HEADER, at)

    def _slot(self, key: bytes) -> tuple[int, bytes, int]:
        if len(self._slots) >= CACHED_MAX:
            self._slots.clear()
        tag = blake2b(self._namespace + b"\0" + key, digest_size=8).digest()
        number = int.from_bytes(tag, "little")
        slot = self._slots[key] = (number % SLOTS * SLOT_BYTES, tag, number)
        return slot

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        """An interrupt can strike between any two steps, so that no caller is left to close it."""
        if getattr(self, "_fd", -1) >= 0:
            self.close()


def _open_file(side: SideDirectory) -> int:
    fd = side.open(NAME)
    try:
        if os.fstat(fd).st_size < SLOTS * SLOT_BYTES and hasattr(os, "posix_fallocate"):
            # Reserve the disk space, so that no entry is lost because the disk is full.
            os.posix_fallocate(fd, 0, SLOTS * SLOT_BYTES)
    except BaseException:
        os.close(fd)
        raise
    return fd
