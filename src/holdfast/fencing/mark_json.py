"""A mark as JSON text: how files and objects keep what SQL keeps in columns. Pure."""

from __future__ import annotations

import json
from typing import Any, Final

from .arguments import MAX_TOKEN
from .rule import Mark

__all__ = ["decode_mark", "encode_mark", "mark_from", "mark_parts"]

VERSION: Final = 1
VERSION_KEY: Final = "holdfast_fence"


def encode_mark(mark: Mark) -> bytes:
    """One line of ASCII, without its end."""
    return json.dumps({VERSION_KEY: VERSION, **mark_parts(mark)}, separators=(",", ":")).encode()


def decode_mark(text: bytes) -> Mark:
    """The mark that ``encode_mark`` wrote. ``ValueError`` for anything else: a guard does not guess."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(found, dict) or found.get(VERSION_KEY) != VERSION:
        raise ValueError(f"no {VERSION_KEY} of version {VERSION}")
    return mark_from(found)


def mark_parts(mark: Mark) -> dict[str, Any]:
    return {"token": mark.token, "source": mark.source, "nonce": mark.nonce, "peers": list(mark.peers)}


def mark_from(parts: dict[str, Any]) -> Mark:
    """The mark of these parts, as ``mark_parts`` made them; ``ValueError`` for anything else."""
    token, source, nonce, peers = (parts.get(name) for name in ("token", "source", "nonce", "peers"))
    if not isinstance(source, str) or not isinstance(nonce, str) or not isinstance(peers, list):
        raise ValueError("a part of the mark is missing or of the wrong type")
    for number in (token, *peers):
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MAX_TOKEN:
            raise ValueError("a token is no whole number from 0 to 2**63-1")
    return Mark(token or 0, source, nonce, tuple(peers))
