"""Installing the schema, at first use or on purpose."""

from __future__ import annotations

from typing import Final

from ...core.effects import NotApplied, TransientError
from ...errors import EngineUnavailable
from ...runtime.clock import boottime
from .config import PostgresConfig
from .connection import ConnectionLostError, PgConnection, PQGen, ServerError, run_generator
from .errors import connection_failure
from .scripts import VERSION, begin_script, install_script

__all__ = ["install_database", "install_schema"]

INSUFFICIENT_PRIVILEGE: Final = "42501"


def install_database(config: PostgresConfig, io_timeout: float) -> bool:
    """Install on the first server that accepts us, also what is missing; False: everything was there."""
    failure: Exception = NotApplied("there is no server to connect to")
    for conninfo in config.conninfos(io_timeout):
        ends_at = boottime() + io_timeout
        connection = PgConnection(conninfo)
        try:
            run_generator(connection, connection.connect(), ends_at)
            return run_generator(connection, install_schema(connection, config.schema, again=True), ends_at)
        except (ServerError, ConnectionLostError, TimeoutError) as error:
            failure = connection_failure(error, io_timeout)
            failure.__cause__ = error
        finally:
            connection.close()
    if isinstance(failure, TransientError):
        raise EngineUnavailable(str(failure)) from failure
    raise failure


def install_schema(connection: PgConnection, schema: str, again: bool = False) -> PQGen[bool]:
    """Make the schema with its tables and functions where they are missing; return whether anything was made.

    Of twenty clients that begin at once the first makes it, and the others find it made. ``again``: run the
    script in any case, which adds what is missing.
    """
    yield from connection.execute_script(begin_script(schema))
    is_installed = False
    try:
        before, is_installed = yield from _count_objects(connection, schema)
        if is_installed and not again:
            yield from connection.execute_script("ROLLBACK")
            return False
        yield from connection.execute_script(install_script(schema))
        after, _ = yield from _count_objects(connection, schema)
        filled = yield from connection.execute_script(
            f"SELECT xmin = pg_current_xact_id()::xid FROM {schema}.meta"  # noqa: S608 - the schema's name was checked
        )
        yield from connection.execute_script("COMMIT")
    except ServerError as error:
        yield from connection.execute_script("ROLLBACK")
        if is_installed and error.sqlstate == INSUFFICIENT_PRIVILEGE:
            return False  # an administrator installed it and maintains it
        raise
    return after > before or filled.get_value(0, 0) == b"t"


def _count_objects(connection: PgConnection, schema: str) -> PQGen[tuple[int, bool]]:
    """How many tables and functions the schema has, and whether a handshake finds what it needs."""
    result = yield from connection.execute_script(
        "SELECT (SELECT count(*) FROM pg_catalog.pg_class WHERE relnamespace = n)"  # noqa: S608 - as above
        " + (SELECT count(*) FROM pg_catalog.pg_proc WHERE pronamespace = n),"
        f" to_regprocedure('{schema}.hello_{VERSION}()') IS NOT NULL"
        f" AND to_regclass('{schema}.meta') IS NOT NULL"
        f" FROM to_regnamespace('{schema}') n"
    )
    return int(result.get_value(0, 0) or 0), result.get_value(0, 1) == b"t"
