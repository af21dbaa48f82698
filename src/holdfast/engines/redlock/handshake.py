"""The first words on every connection to a node: who we are, which life of the server it is, scripts."""

from __future__ import annotations

from hiredis import ReplyError

from ...core.effects import NotApplied
from ...errors import EngineUnavailable
from ..redis.config import Credentials, RedisConfig
from ..resp.errors import error_for
from ..resp.handshake import perform_handshake
from ..resp.interfaces import Connection, pack_command
from .codec import loading_commands, run_id_of
from .errors import permission_hint

__all__ = ["handshake_with_node", "same_server_error"]

_INFO = pack_command(b"INFO", b"server")


async def handshake_with_node(
    line: Connection, settings: RedisConfig, credentials: Credentials, client: str
) -> str:
    """The run of the server at the other end: another one since every start.

    Whatever fails is Refused, also what would not pass by itself: there are other nodes.
    """
    try:
        await perform_handshake(line, settings, credentials, client)
        payload, count = loading_commands()
        info, *loaded = await line.exchange(_INFO + payload, count + 1)
        for reply in (info, *loaded):
            if isinstance(reply, ReplyError):
                raise error_for(str(reply), line.address, permission_hint())
    except EngineUnavailable as error:
        raise NotApplied(str(error)) from None
    run = run_id_of(info)
    if not run:
        raise NotApplied(f"{line.address} does not tell its run id (INFO server)")
    return run


def same_server_error(one: object, other: object) -> EngineUnavailable:
    """Two addresses, one run id."""
    return EngineUnavailable(
        f"{one} and {other} are one server, which is one vote: Redlock needs servers that fail independently"
    )
