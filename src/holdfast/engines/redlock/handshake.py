"""The handshake of a connection to a node: login, the run id of the server, and its scripts."""

from __future__ import annotations

from hiredis import ReplyError

from ...core.effects import NotApplied
from ...errors import EngineUnavailable
from ..resp.codec import pack_command
from ..resp.config import Credentials, ServerConfig
from ..resp.connection import Connection
from ..resp.errors import error_for
from ..resp.handshake import perform_handshake
from .codec import loading_commands, run_id_of
from .errors import PERMISSION_HINT

__all__ = ["handshake_with_node"]

_INFO = pack_command(b"INFO", b"server")


async def handshake_with_node(
    connection: Connection, config: ServerConfig, credentials: Credentials, client: str
) -> str:
    """The run id of the server. Every start of a server has another one.

    Every error is NotApplied, also one that would not pass by itself: there are other nodes.
    """
    try:
        await perform_handshake(connection, config, credentials, client, PERMISSION_HINT)
        payload, count = loading_commands()
        info, *loaded = await connection.exchange(_INFO + payload, count + 1)
        for reply in (info, *loaded):
            if isinstance(reply, ReplyError):
                raise error_for(str(reply), connection.address, PERMISSION_HINT)
    except EngineUnavailable as error:
        raise NotApplied(str(error)) from None
    run_id = run_id_of(info)
    if not run_id:
        raise NotApplied(f"{connection.address} does not tell its run id (INFO server)")
    return run_id
