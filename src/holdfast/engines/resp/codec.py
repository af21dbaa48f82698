"""Python values as bytes: commands of RESP, and the few MessagePack values in the arguments of scripts."""

from __future__ import annotations

import struct

__all__ = [
    "bulk",
    "encode_text",
    "msgpack_boolean",
    "msgpack_double",
    "msgpack_integer",
    "msgpack_text",
    "pack_command",
]


def pack_command(*parts: bytes) -> bytes:
    """One command: an array of bulk strings."""
    return b"*%d\r\n" % len(parts) + b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


def bulk(part: bytes) -> bytes:
    """A bulk string."""
    return b"$%d\r\n%b\r\n" % (len(part), part)


def encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def msgpack_integer(number: int) -> bytes:
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


def msgpack_double(number: float) -> bytes:
    return struct.pack(">Bd", 0xCB, number)


def msgpack_boolean(flag: bool) -> bytes:
    return b"\xc3" if flag else b"\xc2"


def msgpack_text(encoded: bytes) -> bytes:
    size = len(encoded)
    if size < 32:
        return struct.pack(">B", 0xA0 | size) + encoded
    if size < 2**8:
        return struct.pack(">BB", 0xD9, size) + encoded
    if size < 2**16:
        return struct.pack(">BH", 0xDA, size) + encoded
    return struct.pack(">BI", 0xDB, size) + encoded
