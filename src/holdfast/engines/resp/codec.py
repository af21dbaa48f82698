"""The few values of MessagePack that an argument of a script is made of."""

from __future__ import annotations

import struct

__all__ = ["boolean", "double", "integer", "text"]


def integer(number: int) -> bytes:
    """In the shortest form, as the server writes it: an idle record is recognised by its bytes."""
    if number < 128:
        return struct.pack(">B", number)
    if number < 2**8:
        return struct.pack(">BB", 0xCC, number)
    if number < 2**16:
        return struct.pack(">BH", 0xCD, number)
    if number < 2**32:
        return struct.pack(">BI", 0xCE, number)
    return struct.pack(">BQ", 0xCF, number)


def double(number: float) -> bytes:
    return struct.pack(">Bd", 0xCB, number)


def boolean(flag: bool) -> bytes:
    return b"\xc3" if flag else b"\xc2"


def text(encoded: bytes) -> bytes:
    size = len(encoded)
    if size < 32:
        return struct.pack(">B", 0xA0 | size) + encoded
    if size < 2**8:
        return struct.pack(">BB", 0xD9, size) + encoded
    if size < 2**16:
        return struct.pack(">BH", 0xDA, size) + encoded
    return struct.pack(">BI", 0xDB, size) + encoded
