"""Opening a connection, written once for threads and event loops.

A connection is connected, then the handshake finds out which server answers, whether a proxy stands in
between, and whether our functions are installed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

from ...core.effects import NotApplied, TransientError, mark_never_sent
from ...errors import EngineUnavailable
from ...runtime.clock import boottime
from ...runtime.connect_timeout import connect_seconds
from .admin import install_schema
from .codec import Call, Statement
from .config import Conninfo, PostgresConfig
from .connection import ConnectionLostError, PgConnection, PQGen, ServerError, run_generator
from .errors import NOT_INSTALLED, SESSION_POOLER_NEEDED, connection_failure
from .scripts import VERSION

__all__ = [
    "OLDEST_VERSION",
    "DatabaseContext",
    "Effect",
    "Resolve",
    "RunGenerator",
    "close_on_failure",
    "open_connection",
    "perform_in_thread",
]

OLDEST_VERSION: Final = 140_000


class DatabaseContext:
    """One database and namespace, shared by all clients of one engine. It has no resources, so a fork may
    inherit it."""

    __slots__ = ("_scheme", "_source", "config", "namespace")

    def __init__(self, config: PostgresConfig, namespace: str, scheme: str) -> None:
        self.config = config
        self.namespace = namespace
        self._scheme = scheme
        self._source = ""

    def record_handshake(self, source: str, is_pooled: bool) -> None:
        if is_pooled and self._scheme != "postgresql":
            raise EngineUnavailable(SESSION_POOLER_NEEDED)
        self._source = source

    @property
    def source(self) -> str:
        """The domain of the tokens. Known once a connection was opened, and so with every lease."""
        return f"{self._scheme}:{self._source}/{self.namespace}"


# --- what opening a connection awaits ------------------------------------------------------------


class Resolve(NamedTuple):
    """Look up the addresses of a host, where libpq would block an event loop with that."""

    conninfo: Conninfo
    seconds: float

    def __await__(self) -> Generator[Resolve, list[Conninfo], list[Conninfo]]:
        return (yield self)


class RunGenerator(NamedTuple):
    """Run a generator of a connection to its end. Raises TimeoutError at the moment ``ends_at``."""

    connection: PgConnection
    generator: PQGen[Any]
    ends_at: float

    def __await__(self) -> Generator[RunGenerator, Any, Any]:
        return (yield self)


Effect = Resolve | RunGenerator


def perform_in_thread(effect: Effect) -> Any:
    return [effect.conninfo] if isinstance(effect, Resolve) else run_generator(*effect)


# --- opening -------------------------------------------------------------------------------------


async def open_connection(context: DatabaseContext, io_timeout: float, ends_at: float) -> PgConnection:
    """Open a connection to the first host that accepts it. Our functions are installed there."""
    hosts = context.config.conninfos(io_timeout)
    open_host = partial(_open_host, context, io_timeout, connect_seconds(io_timeout) / len(hosts))
    return await _open_first(hosts, ends_at, open_host, "there is no server to connect to")


async def _open_host(
    context: DatabaseContext, io_timeout: float, seconds: float, host: Conninfo, ends_at: float
) -> PgConnection:
    addresses = await Resolve(host, min(max(ends_at - boottime(), 0.0), seconds))
    open_address = partial(_open_address, context, io_timeout, seconds / max(len(addresses), 1))
    return await _open_first(addresses, ends_at, open_address, "the server has no address")


async def _open_first(
    candidates: Sequence[Conninfo],
    ends_at: float,
    open_one: Callable[[Conninfo, float], Coroutine[Any, Any, PgConnection]],
    none_found: str,
) -> PgConnection:
    """Try one after the other; each has an equal share of the time that is left."""
    failure: Exception = NotApplied(none_found)
    for number, candidate in enumerate(candidates):
        now = boottime()
        share = max(ends_at - now, 0.0) / (len(candidates) - number)
        try:
            return await open_one(candidate, now + share)
        except (TransientError, EngineUnavailable) as error:
            failure = error
    raise failure


async def _open_address(
    context: DatabaseContext, io_timeout: float, seconds: float, conninfo: Conninfo, ends_at: float
) -> PgConnection:
    began = boottime()
    connection = PgConnection(conninfo)
    with close_on_failure(connection, seconds, conninfo.server):
        await RunGenerator(connection, connection.connect(), min(ends_at, began + seconds))
        handshake = perform_handshake(connection, context.config, io_timeout)
        source = await RunGenerator(connection, handshake, ends_at)
        context.record_handshake(source, connection.is_pooled)
    return connection


@contextmanager
def close_on_failure(connection: PgConnection, seconds: float, server: str = "the server") -> Iterator[None]:
    """Close a connection that could not be made ready, and say why."""
    try:
        yield
    except (ServerError, ConnectionLostError, TimeoutError) as error:
        connection.close()
        raise connection_failure(error, seconds, server) from error
    except (EngineUnavailable, KeyboardInterrupt) as error:
        connection.close()
        mark_never_sent(error)
        raise
    except BaseException:
        connection.close()
        raise


# --- the handshake -------------------------------------------------------------------------------


def perform_handshake(connection: PgConnection, config: PostgresConfig, io_timeout: float) -> PQGen[str]:
    """The first statements on every connection; returns the source of the tokens."""
    if connection.server_version < OLDEST_VERSION:
        oldest, found = OLDEST_VERSION // 10_000, connection.server_version // 10_000
        raise EngineUnavailable(f"PostgreSQL {oldest} or later is needed; this server has version {found}")
    try:
        source, backend_pid, is_standby = yield from _hello(connection, config.schema)
    except ServerError as error:
        if error.sqlstate not in NOT_INSTALLED:
            raise
        yield from install_schema(connection, config.schema)
        source, backend_pid, is_standby = yield from _hello(connection, config.schema)
    if is_standby:
        # This may pass: a failover promotes the standby in a moment.
        raise NotApplied("PostgreSQL is read-only: the server is a standby that was not promoted")
    has_proxy = backend_pid != connection.backend_pid
    connection.is_pooled = config.pooler == "yes" or (config.pooler == "auto" and has_proxy)
    if not connection.is_pooled:
        yield from connection.execute(_session_settings(io_timeout))
    return source


def _hello(connection: PgConnection, schema: str) -> PQGen[tuple[str, int, bool]]:
    text = f"SELECT {schema}.hello_{VERSION}()".encode()
    result = yield from connection.execute(Call(Statement(b"", text, ()), ()))
    answer = result.get_value(0, 0)
    if answer is None:
        raise EngineUnavailable(
            f"the table {schema}.meta is empty: `holdfast init` fills it again. Tokens have another source "
            "then, so no fence compares them with the old ones"
        )
    source, backend_pid, is_standby = json.loads(answer)
    return source, backend_pid, is_standby


def _session_settings(io_timeout: float) -> Call:
    """Settings of our session. Plans are made once and use indexes, whatever the server estimates."""
    milliseconds = str(max(int(io_timeout * 1000), 1))
    settings = {
        "statement_timeout": milliseconds,
        "lock_timeout": milliseconds,
        "default_transaction_isolation": "read committed",
        "extra_float_digits": "1",
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "jit": "off",
    }
    values: Sequence[bytes] = [word.encode() for pair in settings.items() for word in pair]
    calls = ", ".join(f"set_config(${2 * i + 1}, ${2 * i + 2}, false)" for i in range(len(settings)))
    return Call(Statement(b"", f"SELECT {calls}".encode(), (0,) * len(values)), values)
