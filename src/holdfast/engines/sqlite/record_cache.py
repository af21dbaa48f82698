"""A notice board that all processes share: what was last written of records that others wait for.

Whoever wants to change such a record decides on what the board says of it, instead of asking the database
first; its change is stored only if the record is still the same. That is all the board is good for: what is
up may be outdated, and nobody takes it for true without storing something.

Only what was stored is put up, by the one who stored it: a version of a record is one text, wherever it
stands. Whoever changes a record that is up puts up what it became, or takes it down. Two who write at the
same time, or one who dies while it writes, leave something that its check sum does not fit.

It is a file that is read and written with ``pread`` and ``pwrite``, never mapped: to read mapped memory
of a file that was cut off ends the process (SIGBUS). What is missing here is simply not up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from hashlib import blake2b
from typing import Final
from zlib import crc32

from .database_file import SideDirectory

__all__ = ["NAME", "SharedRecordCache"]

log = logging.getLogger("holdfast")

NAME: Final = "board"
SLOTS: Final = 64
SLOT_BYTES: Final = 8192
"""What is longer is not put up: some forty who wait."""

HEADER: Final = struct.Struct("<8sQII")
"""Whose it is, version, length and check sum of what follows."""

CONTENT_BYTES_MAX: Final = SLOT_BYTES - HEADER.size
EMPTY_HEADER: Final = b"\0" * HEADER.size
CACHED_MAX: Final = 20_000
MASK: Final = 0xFFFFFFFF

FIRST_READ_BYTES: Final = 2048
"""Read at once: most of what is up is not longer."""

_head = HEADER.unpack_from
_pack = HEADER.pack


class SharedRecordCache:
    """One client's look at it, for one namespace. Where there is none, nothing is ever up."""

    __slots__ = ("_fd", "_namespace", "_slots")

    def __init__(self, side: SideDirectory | None, namespace: str) -> None:
        self._namespace = namespace.encode()
        self._slots: dict[bytes, tuple[int, bytes, int]] = {}
        """Where a name's notice is, by what it is known, and where its check sum begins."""
        self._fd = -1
        if side is not None:
            try:
                self._fd = _open_file(side)
            except OSError as error:
                log.warning("holdfast: %s/%s is not used: %s", side.path, NAME, error.strerror or error)

    def read(self, key: bytes, *known: int | None) -> tuple[int, str, str] | None:
        """Version, boot and text of a record as it was stored, unless it is a version that is known."""
        fd = self._fd
        if fd < 0:
            return None
        at, tag, seed = self._slots.get(key) or self._slot(key)
        try:
            notice = os.pread(fd, FIRST_READ_BYTES, at)
            if len(notice) < HEADER.size:
                return None  # it was cut off
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
        with contextlib.suppress(OSError):  # no room: whoever reads it sees that it does not fit
            os.pwrite(fd, head + body, at)

    def invalidate(self, key: bytes) -> None:
        """From now on the database is asked."""
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
        """An interrupt can strike between any two steps, and nobody has it any more."""
        if getattr(self, "_fd", -1) >= 0:
            self.close()


def _open_file(side: SideDirectory) -> int:
    fd = side.open(NAME)
    try:
        if os.fstat(fd).st_size < SLOTS * SLOT_BYTES and hasattr(os, "posix_fallocate"):
            # With room on the disk for all of it: a notice is not lost because the disk is full.
            os.posix_fallocate(fd, 0, SLOTS * SLOT_BYTES)
    except BaseException:
        os.close(fd)
        raise
    return fd
