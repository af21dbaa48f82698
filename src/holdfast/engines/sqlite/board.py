"""A notice board in memory that all processes share: what was last written of records that others wait for.

Whoever wants to change such a record decides on what the board says of it, instead of asking the database
first; its change is stored only if the record is still the same. That is all the board is good for: what is
up may be outdated, and nobody takes it for true without storing something.

Only what was stored is put up, by the one who stored it: a version of a record is one text, wherever it
stands. Whoever changes a record that is up puts up what it became, or takes it down. Two who write at the
same time, or one who dies while it writes, leave something that its check sum does not fit.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
from hashlib import blake2b
from typing import Final
from zlib import crc32

from .place import Side

__all__ = ["NAME", "Board"]

NAME: Final = "board"
SLOTS: Final = 64
SLOT_BYTES: Final = 8192
"""What is longer is not put up: some forty who wait."""

HEAD: Final = struct.Struct("<8sQII")
"""Whose it is, version, length and check sum of what follows."""

LONGEST: Final = SLOT_BYTES - HEAD.size
NOBODY: Final = b"\0" * HEAD.size
KEPT_AT_MOST: Final = 20_000
MASK: Final = 0xFFFFFFFF

_head = HEAD.unpack_from


class Board:
    """One client's look at it, for one namespace. Where there is none, nothing is ever up."""

    __slots__ = ("_map", "_namespace", "_slots")

    def __init__(self, side: Side | None, namespace: str) -> None:
        self._namespace = namespace.encode()
        self._slots: dict[bytes, tuple[int, bytes, int]] = {}
        """Where a name's notice is, by what it is known, and where its check sum begins."""
        self._map: mmap.mmap | None = None
        if side is not None:
            with contextlib.suppress(OSError, ValueError):
                self._map = _shared(side)

    def read(self, key: bytes, *known: int | None) -> tuple[int, str, str] | None:
        """Version, boot and text of a record as it was stored, unless it is a version that is known."""
        shared = self._map
        if shared is None:
            return None
        at, tag, seed = self._slots.get(key) or self._slot(key)
        whose, version, length, check = _head(shared, at)
        if whose != tag or version in known or length > LONGEST:
            return None
        begin = at + HEAD.size
        body = shared[begin : begin + length]
        if crc32(body, (seed ^ version) & MASK) != check:
            return None
        try:
            boot, _, text = body.decode("utf-8", "surrogatepass").partition("\n")
        except ValueError:
            return None
        return version, boot, text

    def put_up(self, key: bytes, version: int, boot: str, text: str) -> None:
        shared = self._map
        if shared is None:
            return
        at, tag, seed = self._slots.get(key) or self._slot(key)
        body = f"{boot}\n{text}".encode("utf-8", "surrogatepass")
        length, begin = len(body), at + HEAD.size
        if length > LONGEST:
            self.take_down(key)
            return
        shared[begin : begin + length] = body
        HEAD.pack_into(shared, at, tag, version, length, crc32(body, (seed ^ version) & MASK))

    def take_down(self, key: bytes) -> None:
        """From now on the database is asked."""
        shared = self._map
        if shared is not None:
            at, tag, _ = self._slots.get(key) or self._slot(key)
            if shared[at : at + len(tag)] == tag:
                shared[at : at + HEAD.size] = NOBODY

    def _slot(self, key: bytes) -> tuple[int, bytes, int]:
        if len(self._slots) >= KEPT_AT_MOST:
            self._slots.clear()
        tag = blake2b(self._namespace + b"\0" + key, digest_size=8).digest()
        number = int.from_bytes(tag, "little")
        slot = self._slots[key] = (number % SLOTS * SLOT_BYTES, tag, number)
        return slot

    def close(self) -> None:
        shared, self._map = self._map, None
        if shared is not None:
            shared.close()


def _shared(side: Side) -> mmap.mmap:
    fd = side.open(NAME)
    try:
        if os.fstat(fd).st_size < SLOTS * SLOT_BYTES:
            # With room on the disk for all of it, or none: writing to memory cannot fail in order.
            if not hasattr(os, "posix_fallocate"):
                raise OSError(errno.ENOSYS, "room for it cannot be had beforehand")
            os.posix_fallocate(fd, 0, SLOTS * SLOT_BYTES)
        return mmap.mmap(fd, SLOTS * SLOT_BYTES)
    finally:
        os.close(fd)
