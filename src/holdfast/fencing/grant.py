"""A grant as one line of text: what ``holdfast run`` hands to its command in ``HOLDFAST_FENCE``. Pure.

    1:TOKEN:NONCE:SOURCE:MODE:PEERS

The format's version, the token in decimal, nonce and source percent-encoded, the mode (empty: not known)
and the peers' tokens, rising, with commas between. One grant has one text: whatever ``fence_text`` would not
have written, ``parse_fence`` refuses. The text is no capability: it releases and adopts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, get_args
from urllib.parse import quote, unquote

from ..errors import InvalidArgument
from ..model import Fence, Mode

__all__ = ["MAX_TEXT", "VARIABLE", "Grant", "fence_text", "parse_fence"]

VARIABLE: Final = "HOLDFAST_FENCE"
MAX_TEXT: Final = 64 * 1024
"""Characters. A source is a name and a few words; the rest is room for some 3000 peers."""
MAX_TOKEN: Final = 2**63 - 1

_FORM = re.compile(r"1:([0-9]{1,19}):([^:\s]+):([^:\s]+):([a-z]*):([0-9,]*)", re.ASCII)
_MODES = ("", *get_args(Mode))


@dataclass(frozen=True, slots=True)
class Grant:
    """What a guard needs of a lease, without the lease: guards accept it in a lease's place."""

    fence: Fence
    mode: str = ""
    """Empty where the text does not say it."""
    peers: tuple[int, ...] = ()

    @property
    def token(self) -> int:
        return self.fence.token

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Grant:
        """The grant under which ``holdfast run`` started this process."""
        if environ is None:
            from os import environ as own

            environ = own
        text = environ.get(VARIABLE, "")
        if not text:
            raise InvalidArgument(
                f"{VARIABLE} is not set: run this program under `holdfast run NAME -- …`, which sets it"
            )
        return parse_fence(text)


def fence_text(source: str, token: int, nonce: str, mode: str = "", peers: Iterable[int] = ()) -> str:
    """The grant as one line of ASCII text without spaces."""
    tokens = sorted(set(peers))
    for number in (token, *tokens):
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MAX_TOKEN:
            raise InvalidArgument(
                f"token {number!r} is not an int from 0 to 2**63-1: pass lease.token unchanged"
            )
    if mode not in _MODES:
        raise InvalidArgument(f"mode {mode!r} is not one of {', '.join(filter(None, _MODES))}")
    text = (
        f"1:{token}:{_quoted('nonce', nonce)}:{_quoted('source', source)}:{mode}:{','.join(map(str, tokens))}"
    )
    if len(text) > MAX_TEXT:
        raise InvalidArgument(f"the grant is {len(text)} characters of text, at most {MAX_TEXT} are allowed")
    return text


def parse_fence(text: str) -> Grant:
    """The grant that ``fence_text`` wrote. Anything else is ``InvalidArgument``, never a guess."""
    if not isinstance(text, str):
        raise InvalidArgument(f"{VARIABLE} is {type(text).__name__}, not text")
    found = _FORM.fullmatch(text) if len(text) <= MAX_TEXT else None
    if found is None:
        raise InvalidArgument(_malformed(text))
    number, nonce, source, mode, peers = found.groups()
    try:
        fence = Fence(_unquoted(source), int(number), _unquoted(nonce))
        grant = Grant(fence, mode, tuple(int(peer) for peer in peers.split(",") if peer))
        written = fence_text(fence.source, fence.token, fence.nonce, grant.mode, grant.peers)
    except ValueError:
        raise InvalidArgument(_malformed(text)) from None
    if written != text:
        raise InvalidArgument(_malformed(text))
    return grant


def _quoted(what: str, text: object) -> str:
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidArgument(f"{what} {text!r} must be text, not empty and without NUL characters")
    try:
        return quote(text, safe="/")
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} {text!r} cannot be written as UTF-8 (a lone surrogate)") from None


def _unquoted(text: str) -> str:
    return unquote(text, errors="strict")


def _malformed(text: str) -> str:
    shown = ascii(text[:80]) + (f" and {len(text) - 80} more characters" if len(text) > 80 else "")
    return (
        f"{shown} is not a grant as `holdfast run` writes it into {VARIABLE}"
        " (1:TOKEN:NONCE:SOURCE:MODE:PEERS): pass that text on unchanged"
    )
