"""Who serves what: the one server, the master that Sentinels name, the masters of a Cluster by slot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol

from hiredis import ReplyError

from ...core.effects import NotApplied, OutcomeUnknown, TransientError
from ...errors import EngineUnavailable
from ..resp.codec import pack_command
from ..resp.config import Address
from .errors import error_for

__all__ = ["SLOTS", "ServerConnections", "find_master", "masters_of", "read_slots"]

SLOTS: Final = 16_384

CLUSTER_SLOTS: Final = pack_command(b"CLUSTER", b"SLOTS")


class ServerConnections(Protocol):
    """Connections to servers, opened as they are needed."""

    async def exchange(self, address: Address, payload: bytes, count: int) -> list[Any]:
        """As ``Line.exchange``, on one of the connections to this server."""
        ...

    async def exchange_blocking(self, address: Address, payload: bytes, count: int) -> list[Any]:
        """The same for what may keep its connection busy for long: it keeps nobody else from an answer."""
        ...

    async def ask_sentinel(self, address: Address, payload: bytes) -> Any:
        """One question to a Sentinel, on a connection of its own."""
        ...

    def drop(self, address: Address) -> None:
        """Close the connections to this server, also those that listen: it is not what it was."""
        ...


async def find_master(
    service: str,
    sentinels: list[Address],
    nodes: ServerConnections,
    try_out: Callable[[Address], Awaitable[None]],
) -> None:
    """Ask Sentinel after Sentinel until one names a master that will do; that one is asked first next time.

    One that is cut off from its peers goes on naming the master that they have replaced.
    """
    unusable: dict[Address, Exception] = {}
    trouble: Exception | None = None
    answered = False
    for sentinel in list(sentinels):
        try:
            master = await _master_named_by(sentinel, service, nodes)
        except (TransientError, EngineUnavailable) as error:
            trouble = error
            continue
        answered = True
        if master is None or master in unusable:
            continue
        try:
            await try_out(master)
        except (TransientError, EngineUnavailable) as error:
            unusable[master] = error
            continue
        sentinels.sort(key=lambda each: each != sentinel)
        return
    if unusable:  # what may pass goes first: it may be the real master that is in trouble for a moment
        raise min(unusable.values(), key=lambda error: not isinstance(error, TransientError))
    if answered and trouble is None:
        raise EngineUnavailable(f"the Sentinels know no master called {service!r}")
    raise _no_answer("Sentinel", sentinels, trouble)


async def _master_named_by(sentinel: Address, service: str, nodes: ServerConnections) -> Address | None:
    question = pack_command(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", service.encode())
    told = await nodes.ask_sentinel(sentinel, question)
    if isinstance(told, ReplyError):
        raise error_for(str(told), sentinel)
    return Address(told[0].decode(), int(told[1])) if isinstance(told, list) and len(told) == 2 else None


def masters_of(slots: Iterable[Address | None]) -> list[Address]:
    """All masters, each once."""
    return list(dict.fromkeys(master for master in slots if master is not None))


async def read_slots(candidates: Iterable[Address], nodes: ServerConnections) -> list[Address | None]:
    """Ask one member of the Cluster after the other for the whole map."""
    trouble: Exception | None = None
    asked = list(dict.fromkeys(candidates))
    for member in asked:
        try:
            told = (await nodes.exchange(member, CLUSTER_SLOTS, 1))[0]
        except (TransientError, EngineUnavailable) as error:
            trouble = error
            continue
        if isinstance(told, ReplyError):
            trouble = error_for(str(told), member)
            continue
        return _masters(told, member)
    raise _no_answer("member of the cluster", asked, trouble)


def _masters(told: list[list[Any]], member: Address) -> list[Address | None]:
    masters: list[Address | None] = [None] * SLOTS
    for first, last, (host, port, *_), *_ in told:
        # A server that does not know its own name means: the one you asked me by.
        name = (host or b"").decode()
        address = Address(member.host if name in ("", "?") else name, port)
        masters[first : last + 1] = [address] * (last + 1 - first)
    return masters


def _no_answer(who: str, asked: Iterable[Address], trouble: Exception | None) -> Exception:
    """A refusal that will not pass is told as it is; whatever else happened, nothing was done."""
    if isinstance(trouble, EngineUnavailable):
        return trouble
    told = f": {trouble}" if isinstance(trouble, NotApplied | OutcomeUnknown) else ""
    return NotApplied(f"no {who} answers ({', '.join(map(str, asked))}){told}")
