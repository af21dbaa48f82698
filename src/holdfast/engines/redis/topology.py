"""Who serves what: the one server, the master that Sentinels name, the masters of a Cluster by slot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from hiredis import ReplyError

from ...core.ops import Refused, Troubled, Unknown
from ...errors import EngineUnavailable
from .faults import failure_of
from .lines import Nodes, packed_command
from .settings import Address

__all__ = ["SLOTS", "find_master", "masters_of", "read_slots"]

SLOTS: Final = 16_384

CLUSTER_SLOTS: Final = packed_command(b"CLUSTER", b"SLOTS")


async def find_master(service: str, sentinels: list[Address], nodes: Nodes) -> Address:
    """Ask one Sentinel after the other; the one that knows is asked first the next time."""
    question = packed_command(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", service.encode())
    answered = False
    trouble: Exception | None = None
    for sentinel in list(sentinels):
        try:
            told = await nodes.ask_sentinel(sentinel, question)
        except (Troubled, EngineUnavailable) as error:
            trouble = error
            continue
        answered = True
        if isinstance(told, list) and len(told) == 2:
            sentinels.sort(key=lambda each: each != sentinel)
            return Address(told[0].decode(), int(told[1]))
        if isinstance(told, ReplyError):
            trouble = failure_of(str(told), sentinel)
    if answered and trouble is None:
        raise EngineUnavailable(f"the Sentinels know no master called {service!r}")
    raise _nobody("Sentinel", sentinels, trouble)


def masters_of(slots: Iterable[Address | None]) -> list[Address]:
    """All masters, each once."""
    return list(dict.fromkeys(master for master in slots if master is not None))


async def read_slots(candidates: Iterable[Address], nodes: Nodes) -> list[Address | None]:
    """Ask one member of the Cluster after the other for the whole map."""
    trouble: Exception | None = None
    asked = list(dict.fromkeys(candidates))
    for member in asked:
        try:
            told = (await nodes.exchange(member, CLUSTER_SLOTS, 1))[0]
        except (Troubled, EngineUnavailable) as error:
            trouble = error
            continue
        if isinstance(told, ReplyError):
            trouble = failure_of(str(told), member)
            continue
        return _masters(told, member)
    raise _nobody("member of the cluster", asked, trouble)


def _masters(told: list[list[Any]], member: Address) -> list[Address | None]:
    masters: list[Address | None] = [None] * SLOTS
    for first, last, (host, port, *_), *_ in told:
        # A server that does not know its own name means: the one you asked me by.
        name = (host or b"").decode()
        address = Address(member.host if name in ("", "?") else name, port)
        masters[first : last + 1] = [address] * (last + 1 - first)
    return masters


def _nobody(who: str, asked: Iterable[Address], trouble: Exception | None) -> Exception:
    """A refusal that will not pass is told as it is; whatever else happened, nothing was done."""
    if isinstance(trouble, EngineUnavailable):
        return trouble
    told = f": {trouble}" if isinstance(trouble, Refused | Unknown) else ""
    return Refused(f"no {who} answers ({', '.join(map(str, asked))}){told}")
