"""Names as keys of a node. ::

    holdfast::redlock                     the mark, a hash: one for all namespaces
    holdfast::redlock:shop:invoices       the record of a name

A namespace is never empty, so no key of ``redis://`` on the same server begins like these.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

__all__ = ["MARK_KEY", "RECORDS", "Keyspace"]

MARK_KEY: Final = b"holdfast::redlock"
RECORDS: Final = MARK_KEY + b":"
"""The beginning of the keys of all records of all namespaces."""


class Keyspace:
    """One namespace on all nodes."""

    __slots__ = ("command_parts", "namespace", "prefix")

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.command_parts: dict[object, tuple[bytes, bytes]] = {}
        """The constant parts of frequent commands, kept by ``codec.py``."""
        self.prefix = RECORDS + quote(namespace, safe="").encode() + b":"

    def key_of(self, name: str) -> bytes:
        return self.prefix + name.encode()

    def name_of(self, key: bytes) -> str | None:
        """None: the key is not of this namespace."""
        if not key.startswith(self.prefix):
            return None
        try:
            return key[len(self.prefix) :].decode() or None
        except UnicodeDecodeError:
            return None

    def pattern_of(self, prefix: str) -> bytes:
        """A pattern for SCAN that matches exactly the keys of all names with this prefix."""
        return escape_pattern(self.prefix + prefix.encode()) + b"*"


def escape_pattern(text: bytes) -> bytes:
    return b"".join([b"\\%c" % byte if byte in b"*?[]\\" else b"%c" % byte for byte in text])
