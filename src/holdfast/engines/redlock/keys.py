"""Where things are in the key space of a node. ::

    holdfast::redlock                     the mark, a hash: one for all namespaces
    holdfast::redlock:shop:invoices       the record of a name

No namespace is empty, so ``redis://`` on the same server has no key that begins like these.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

__all__ = ["MARK_KEY", "RECORDS", "Keyspace"]

MARK_KEY: Final = b"holdfast::redlock"
RECORDS: Final = MARK_KEY + b":"
"""What the keys of all records of all namespaces begin with."""


class Keyspace:
    """One namespace on all nodes."""

    __slots__ = ("command_parts", "namespace", "prefix")

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.command_parts: dict[object, tuple[bytes, bytes]] = {}
        """What stands before and behind the parts of a command that are new each time."""
        self.prefix = RECORDS + quote(namespace, safe="").encode() + b":"

    def key_of(self, name: str) -> bytes:
        return self.prefix + name.encode()

    def name_of(self, key: bytes) -> str | None:
        """None: it is no key of this namespace."""
        if not key.startswith(self.prefix):
            return None
        try:
            return key[len(self.prefix) :].decode() or None
        except UnicodeDecodeError:
            return None

    def pattern_of(self, prefix: str) -> bytes:
        """For SCAN: exactly the keys of all names with this prefix."""
        return escape_pattern(self.prefix + prefix.encode()) + b"*"


def escape_pattern(text: bytes) -> bytes:
    return b"".join([b"\\%c" % byte if byte in b"*?[]\\" else b"%c" % byte for byte in text])
