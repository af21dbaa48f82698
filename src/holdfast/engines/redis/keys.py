"""Names as keys: the keys of a lock, the channel of a client, the slot of a name.

A lock has two keys, the record's and the value's; in a Cluster both are in one slot. A name that brings a
hash tag of its own (``orders/{42}``) is in the slot of that tag, with every other name that has it. Any
other name is itself the tag. ::

    holdfast:shop:lock:{invoices}        holdfast:shop:value:{invoices}
    holdfast:shop:lock::orders/{42}      holdfast:shop:value::orders/{42}

A brace at the wrong place would make a different tag, or none. The tag is the text between the first ``{``
and the first ``}`` behind it, unless that is empty. So a name in Holdfast's own braces must not begin with
``}``: such a name is preceded by ``%``, and so is a name that begins with ``%``.
"""

from __future__ import annotations

from binascii import crc_hqx
from typing import Final
from urllib.parse import quote

from ..resp.scripts import Script
from .scripts import load

__all__ = ["Keyspace", "channel_of", "key_of", "name_of", "scan_pattern", "slot_of", "value_key_of"]

SLOTS: Final = 16_384
_RECORD: Final = b"lock:"
_VALUE: Final = b"value:"
_CHANNEL: Final = b"wake:"


class Keyspace:
    """One namespace on one server or Cluster, and the scripts that fit it."""

    __slots__ = ("channel", "command_prefixes", "prefix", "scripts", "sharded")

    def __init__(self, namespace: str, *, sharded: bool = False) -> None:
        self.prefix = b"holdfast:" + quote(namespace, safe="").encode() + b":"
        """The beginning of every key and channel. It has no brace, and no other colon than these two."""
        self.sharded = sharded
        """A Cluster: keys are grouped by slot, and messages go to channels in the slot of the name."""
        self.channel = self.prefix + _CHANNEL
        self.scripts: dict[str, Script] = load(sharded)
        self.command_prefixes: dict[object, bytes] = {}
        """Beginnings of frequent commands, kept by ``codec.py``."""


def key_of(space: Keyspace, name: str) -> bytes:
    """The key of the record of this name."""
    return space.prefix + _RECORD + _ending(name)


def value_key_of(space: Keyspace, name: str) -> bytes:
    """The key of the value of this name: in the same slot as the record."""
    return space.prefix + _VALUE + _ending(name)


def _ending(name: str) -> bytes:
    encoded = name.encode()
    if _has_tag(encoded):
        return b":" + encoded
    return b"{%" + encoded + b"}" if encoded[:1] in b"}%" else b"{" + encoded + b"}"


def _has_tag(encoded: bytes) -> bool:
    begin = encoded.find(b"{")
    return begin >= 0 and encoded.find(b"}", begin + 1) > begin + 1


def name_of(space: Keyspace, key: bytes) -> str | None:
    """The name of a key (of a record or a value); None: the key is not of this keyspace."""
    for kind, key_again in ((_RECORD, key_of), (_VALUE, value_key_of)):
        if key.startswith(space.prefix + kind):
            ending = key[len(space.prefix) + len(kind) :]
            try:
                name = (ending[1:] if ending.startswith(b":") else ending[1:-1].removeprefix(b"%")).decode()
            except UnicodeDecodeError:
                return None
            return name if name and key_again(space, name) == key else None
    return None


def scan_pattern(space: Keyspace, prefix: str) -> bytes:
    """A pattern for SCAN. It matches the keys of all names with this prefix, and some others: see
    ``name_of``."""
    escaped = bytearray()
    for byte in prefix.encode():
        escaped += b"\\%c" % byte if byte in b"*?[]\\" else b"%c" % byte
    return space.prefix + b"*" + bytes(escaped) + b"*"


def slot_of(space: Keyspace, name: str) -> int:
    """The Cluster slot of everything of this name."""
    return crc_hqx(_tag(key_of(space, name)), 0) % SLOTS


def _tag(key: bytes) -> bytes:
    begin = key.index(b"{") + 1
    return key[begin : key.index(b"}", begin)]


def channel_of(space: Keyspace, client: str, name: str) -> bytes:
    """The channel with the messages for this client: one, or in a Cluster one for each hash tag."""
    if not space.sharded:
        return space.channel + client.encode()
    return space.channel + b"{" + _tag(key_of(space, name)) + b"}:" + client.encode()
