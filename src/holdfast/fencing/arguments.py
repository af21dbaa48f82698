"""What callers hand to a guard, checked and turned into a ``Mark`` before any I/O.

Nothing here knows a storage: every guard accepts the same things and refuses the same things.
"""

from __future__ import annotations

import time
from typing import Protocol, runtime_checkable

from ..core.tokens import is_plausible
from ..errors import InvalidArgument
from ..model import Fence
from .grant import parse_fence
from .rule import Mark

__all__ = [
    "MAX_RESOURCE_BYTES",
    "MAX_TOKEN",
    "HasFence",
    "Presentable",
    "checked_resource",
    "checked_source",
    "mark_of",
    "name_of",
    "presented",
    "refuse_read_lease",
]

MAX_RESOURCE_BYTES = 512
MAX_TOKEN = 2**63 - 1
"""The largest integer every storage keeps exactly."""


@runtime_checkable
class HasFence(Protocol):
    """A lease, as far as a guard needs one. ``mode`` and ``peers`` are read where a lease has them."""

    @property
    def fence(self) -> Fence: ...


Presentable = HasFence | Fence | str | int
"""A lease, its fence, the text of ``HOLDFAST_FENCE``, or (weaker) the bare token."""


def checked_resource(resource: str) -> str:
    """The resource, if every storage can keep it as a key."""
    _check_text("resource", resource)
    size = len(resource.encode())
    if size > MAX_RESOURCE_BYTES:
        raise InvalidArgument(
            f"resource is {size} bytes of UTF-8, at most {MAX_RESOURCE_BYTES} are allowed: name what the lock"
            " protects (usually the lock's own name), not its content"
        )
    return resource


def checked_source(source: str) -> str:
    """The source, if it can be one."""
    _check_text("source", source)
    return source


def presented(lease_or_token: Presentable) -> HasFence | Fence | int:
    """The given lease or token; the text of a grant is parsed. A number as text is no grant."""
    if isinstance(lease_or_token, str):
        if lease_or_token.strip().isdecimal():
            raise InvalidArgument(_not_presentable(lease_or_token))
        return parse_fence(lease_or_token)
    return lease_or_token


def mark_of(lease_or_token: Presentable) -> Mark:
    """The mark that a lease, a fence, a grant's text or a bare token presents.

    A lease that is lost (or was released) raises what its ``check()`` does: ``LockLost``, ``NotHeld``."""
    lease_or_token = presented(lease_or_token)
    if isinstance(lease_or_token, int):
        return Mark(token=_checked_token(lease_or_token))
    # Not isinstance(…, HasFence): looking at a protocol takes longer than all the rest.
    fence = getattr(lease_or_token, "fence", None)
    if fence is None:
        fence = lease_or_token
    else:
        _refuse_lost(lease_or_token)
    if not isinstance(fence, Fence):
        raise InvalidArgument(_not_presentable(lease_or_token))
    _check_text("fence.source", fence.source)
    _check_text("fence.nonce", fence.nonce)
    return Mark(_checked_token(fence.token), fence.source, fence.nonce, _peers_of(lease_or_token))


def name_of(lease: object) -> str:
    """The lock's own name: the resource, where none is given."""
    name = getattr(lease, "name", None)
    if not isinstance(name, str):
        raise InvalidArgument(f"{type(lease).__name__} does not say what the lock protects: pass resource=")
    return name


def _refuse_lost(lease_or_token: object) -> None:
    """A lease knows by itself that it was lost or released: then no storage need be asked."""
    check = getattr(lease_or_token, "check", None)
    if check is not None:
        check()


def refuse_read_lease(lease_or_token: Presentable) -> None:
    """Readers share the resource, so none of them may write, however new its token is."""
    if getattr(presented(lease_or_token), "mode", None) == "read":
        raise InvalidArgument(
            "a read lease may not write: other readers hold it too. Take rwlock(...).write() for this"
            " transaction; to shut out stale writers before reading, call fencing.advance"
        )


def _checked_token(token: object) -> int:
    # bool is an int to Python, but True as a token is a mistake in the caller.
    if not isinstance(token, int) or isinstance(token, bool):
        raise InvalidArgument(_not_presentable(token))
    if not 0 <= token <= MAX_TOKEN:
        raise InvalidArgument(f"token {token} is outside 0 to 2**63-1: pass lease.token unchanged")
    if token and not is_plausible(token, time.time_ns() // 1000):
        raise InvalidArgument(
            f"token {token} is more than a day ahead of this machine's clock, so no engine issued it: a guard"
            " that stored it would lock out every later holder. Pass lease.token unchanged, and look at"
            " the clocks of this machine and of the engine"
        )
    return int(token)


def _peers_of(lease: object) -> tuple[int, ...]:
    peers = getattr(lease, "peers", ())
    return tuple(sorted({_checked_token(peer) for peer in peers})) if peers else ()


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} is {type(text).__name__}, not text")
    if not text:
        raise InvalidArgument(f"{what} is empty")
    if "\0" in text:
        raise InvalidArgument(f"{what} contains a NUL character, which not every storage can keep")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} {text!r} cannot be written as UTF-8 (a lone surrogate)") from None


def _not_presentable(value: object) -> str:
    advice = "pass the lease that acquire() or `with` gave, its fence, or its token as an int"
    if isinstance(value, str):
        advice = "a token read from text or the environment is int(text); better pass HOLDFAST_FENCE's text"
    return f"{type(value).__name__} is no lease or token: {advice}"
