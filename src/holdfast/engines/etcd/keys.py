"""Where everything is kept: one folder for each name and one for each client.

    <prefix>/<namespace>/n/<name>/k             what the name is, put anew with every ticket: so its last
                                                change tells the newest token, also when the ticket is gone
    <prefix>/<namespace>/n/<name>/t/x/<nonce>   a ticket to have it alone
    <prefix>/<namespace>/n/<name>/t/s/<nonce>   a ticket to share it
    <prefix>/<namespace>/n/<name>/u             a semaphore's limit, where it is not the declared one
    <prefix>/<namespace>/n/<name>/v             the name's value
    <prefix>/<namespace>/c/<client>/n/<nonce>   a note about an attempt that was ended
    <prefix>/<namespace>/c/<client>/s/<lease>   there as long as the client's session is

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
"""Of so many names the folder is remembered: it is asked for at every step."""


def end_of(prefix: bytes) -> bytes:
    """The first key behind all that begin with ``prefix``, whose last byte is never the largest."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def _part(text: str) -> bytes:
    """A nonce or a client's id, which are ASCII as Holdfast makes them. Whatever else comes from outside has
    a key of its own, and there is nothing."""
    return quote(text, safe="", errors="surrogatepass").encode("ascii")


class Keys:
    """The keys of one namespace."""

    __slots__ = ("_clients", "_folders", "names")

    def __init__(self, prefix: str, namespace: str) -> None:
        base = f"{prefix}/{quote(namespace, safe='')}/"
        self.names = f"{base}n/".encode()
        self._clients = f"{base}c/".encode()
        self._folders: dict[str, bytes] = {}

    def folder(self, name: str) -> bytes:
        folder = self._folders.get(name)
        if folder is None:
            if len(self._folders) >= FOLDERS_KEPT:
                self._folders.clear()
            self._folders[name] = folder = self.names + quote(name, safe="").encode("ascii") + b"/"
        return folder

    def beginning_with(self, prefix: str) -> tuple[bytes, bytes]:
        """The range of all names that begin so."""
        start = self.names + quote(prefix, safe="").encode("ascii")
        return start, end_of(start)

    def name_of(self, key: bytes) -> tuple[str, bytes]:
        """The name that a key belongs to, and the rest of the key within its folder."""
        name, _, rest = key[len(self.names) :].partition(b"/")
        return unquote(name.decode("ascii")), rest

    def client(self, client: str) -> bytes:
        return self._clients + _part(client) + b"/"

    def note(self, nonce: str, client: str = "") -> bytes:
        """Where a client finds what became of an attempt; of its own ones, unless another is named."""
        return self.client(client or nonce.rpartition("-")[0]) + NOTES + _part(nonce)

    def session(self, client: str, lease: int) -> bytes:
        return self.client(client) + b"s/%x" % lease

    @staticmethod
    def ticket(folder: bytes, mode: str, nonce: str) -> bytes:
        return folder + (b"t/s/" if mode in SHARED_MODES else b"t/x/") + _part(nonce)
