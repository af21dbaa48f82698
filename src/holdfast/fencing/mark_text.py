"""A mark as one line of text, for storages that keep it as one value: Redis, etcd, files, objects. Pure.

    1:TOKEN:NONCE:SOURCE:PEERS

The format's version, the token in decimal, nonce and source percent-encoded (empty: not known), and the
peers' tokens, rising, with commas between. One mark has one text, so equal marks are equal texts.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from ..errors import HoldfastError
from .rule import Mark

__all__ = ["mark_from_text", "mark_text"]

_FORM: Final = re.compile(r"1:([0-9]{1,19}):([^:\s]*):([^:\s]*):([0-9,]*)", re.ASCII)


@lru_cache(maxsize=1024)
def mark_text(mark: Mark) -> str:
    """The mark as ASCII text without spaces."""
    peers = ",".join(map(str, mark.peers))
    return f"1:{mark.token}:{quote(mark.nonce, safe='/')}:{quote(mark.source, safe='/')}:{peers}"


def mark_from_text(text: str | bytes, where: str) -> Mark:
    """The mark that ``mark_text`` wrote. ``where`` names the place, for the error of anything else."""
    if isinstance(text, bytes):
        text = text.decode("ascii", "replace")
    found = _FORM.fullmatch(text)
    if found is None:
        raise HoldfastError(
            f"{where} holds {text[:80]!a}, which is no mark of a guard that this version can read:"
            " something else writes there, or a newer Holdfast does. Nothing was written"
        )
    token, nonce, source, peers = found.groups()
    return Mark(
        int(token), unquote(source), unquote(nonce), tuple(int(peer) for peer in peers.split(",") if peer)
    )
