"""The keys: one folder for each name and one for each client.

    <prefix>/<namespace>/n/<name>/k             the kind of the name, written with every ticket: its mod
                                                revision tells the newest token, also when the ticket is gone
    <prefix>/<namespace>/n/<name>/t/x/<nonce>   a ticket in an exclusive mode
    <prefix>/<namespace>/n/<name>/t/s/<nonce>   a ticket in a shared mode
    <prefix>/<namespace>/n/<name>/u             a semaphore's limit, where it is not the declared one
    <prefix>/<namespace>/n/<name>/v             the value of the name
    <prefix>/<namespace>/d/<name>               a cell
    <prefix>/<namespace>/c/<client>/n/<nonce>   a note about an attempt that was ended
    <prefix>/<namespace>/c/<client>/s/<lease>   exists as long as the client's session does

Names are percent-encoded, character by character: a prefix of a name is a prefix of its key.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from ...rules.tickets import SHARED_MODES

__all__ = ["Keys", "end_of"]

KIND: Final = b"k"
TICKETS: Final = b"t/"
LIMIT: Final = b"u"
VALUE: Final = b"v"
NOTES: Final = b"n/"

FOLDERS_KEPT: Final = 1000
"""The folders of at most this many names are cached: every step needs one."""


def end_of(prefix: bytes) -> bytes:
    """The end of the range of all keys that begin with ``prefix``, whose last byte is never 0xff."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def _part(text: str) -> bytes:
    """A nonce or a client's id, which are ASCII where Holdfast made them. Any other text from outside gets a
    key of its own, which does not exist."""
    return quote(text, safe="", errors="surrogatepass").encode("ascii")


class Keys:
    """The keys of one namespace."""

    __slots__ = ("_cells", "_clients", "_folders", "names")

    def __init__(self, prefix: str, namespace: str) -> None:
        base = f"{prefix}/{quote(namespace, safe='')}/"
        self.names = f"{base}n/".encode()
        self._clients = f"{base}c/".encode()
        self._cells = f"{base}d/".encode()
        self._folders: dict[str, bytes] = {}

    def folder(self, name: str) -> bytes:
        folder = self._folders.get(name)
        if folder is None:
            if len(self._folders) >= FOLDERS_KEPT:
                self._folders.clear()
            self._folders[name] = folder = self.names + quote(name, safe="").encode("ascii") + b"/"
        return folder

    def cell(self, name: str) -> bytes:
        return self._cells + quote(name, safe="").encode("ascii")

    def beginning_with(self, prefix: str) -> tuple[bytes, bytes]:
        """The range of all names that begin with ``prefix``."""
        start = self.names + quote(prefix, safe="").encode("ascii")
        return start, end_of(start)

    def name_of(self, key: bytes) -> tuple[str, bytes]:
        """The name that a key belongs to, and the rest of the key."""
        name, _, rest = key[len(self.names) :].partition(b"/")
        return unquote(name.decode("ascii")), rest

    def client(self, client: str) -> bytes:
        return self._clients + _part(client) + b"/"

    def note(self, nonce: str, client: str = "") -> bytes:
        """The key of the note about an attempt, in the folder of its own client unless another is named."""
        return self.client(client or nonce.rpartition("-")[0]) + NOTES + _part(nonce)

    def session(self, client: str, lease: int) -> bytes:
        return self.client(client) + b"s/%x" % lease

    @staticmethod
    def ticket(folder: bytes, mode: str, nonce: str) -> bytes:
        return folder + (b"t/s/" if mode in SHARED_MODES else b"t/x/") + _part(nonce)
