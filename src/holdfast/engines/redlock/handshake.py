"""The first words on every connection to a node: who we are, which life of the server it is, scripts."""

from __future__ import annotations

from hiredis import ReplyError

from ...core.effects import NotApplied
from ...errors import EngineUnavailable
from ..redis.config import Credentials, Settings
from ..resp.errors import failure_of
from ..resp.handshake import greet
from ..resp.interfaces import Line, packed_command
from .codec import loading_commands, run_of_info
from .errors import permission_needed

__all__ = ["greet_node", "one_server"]

_INFO = packed_command(b"INFO", b"server")


async def greet_node(line: Line, settings: Settings, credentials: Credentials, client: str) -> str:
    """The run of the server at the other end: another one since every start.

    Whatever fails is Refused, also what would not pass by itself: there are other nodes.
    """
    try:
        await greet(line, settings, credentials, client)
        payload, count = loading_commands()
        info, *loaded = await line.exchange(_INFO + payload, count + 1)
        for reply in (info, *loaded):
            if isinstance(reply, ReplyError):
                raise failure_of(str(reply), line.address, permission_needed())
    except EngineUnavailable as error:
        raise NotApplied(str(error)) from None
    run = run_of_info(info)
    if not run:
        raise NotApplied(f"{line.address} does not tell its run id (INFO server)")
    return run


def one_server(one: object, other: object) -> EngineUnavailable:
    """Two addresses, one run id."""
    return EngineUnavailable(
        f"{one} and {other} are one server, which is one vote: Redlock needs servers that fail independently"
    )
