"""Findings about a PostgreSQL server: the connection, the role and its rights, durability."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

from ...errors import EngineUnavailable
from ..findings import Finding, clock, connection, fail, ok, warn
from .config import PostgresConfig

__all__ = ["diagnose"]

OLDEST_VERSION: Final = 140_000
VERIFIED: Final = ("verify-ca", "verify-full")

SETTINGS: Final = ("fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names")

ROLE: Final = """
    SELECT current_user, rolsuper, rolcreatedb OR rolcreaterole
    FROM pg_roles WHERE rolname = current_user
"""
IS_INSTALLED: Final = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)"
MAY_CREATE: Final = "SELECT has_database_privilege(current_database(), 'CREATE')"
MAY_USE: Final = "SELECT has_schema_privilege(%s, 'USAGE')"
FORBIDDEN_FUNCTIONS: Final = """
    SELECT count(*) FROM pg_proc
    JOIN pg_namespace ON pg_namespace.oid = pronamespace
    WHERE nspname = %s AND NOT has_function_privilege(pg_proc.oid, 'EXECUTE')
"""


def diagnose(config: PostgresConfig, io_timeout: float, advisory: bool) -> list[Finding]:
    """Examine the first server that accepts a connection."""
    failure = "there is no server to connect to"
    for conninfo in config.conninfos(io_timeout):
        try:
            with psycopg.connect(
                conninfo, autocommit=True, connect_timeout=max(2, round(io_timeout)), prepare_threshold=None
            ) as session:
                return _examine(session, config, advisory)
        except psycopg.Error as error:
            failure = " ".join(str(error).split()) or type(error).__name__
    raise EngineUnavailable(f"PostgreSQL cannot be examined: {failure}")


def _examine(session: psycopg.Connection[Any], config: PostgresConfig, advisory: bool) -> list[Finding]:
    version = session.info.server_version
    pooled = _one(session, "SELECT pg_backend_pid()") != session.info.backend_pid
    return [
        _connection(session, config),
        clock("clock", lambda: float(_one(session, "SELECT extract(epoch FROM clock_timestamp())::float8"))),
        (ok if version >= OLDEST_VERSION else fail)(
            "version", f"PostgreSQL {version // 10_000}.{version % 10_000}; 14 or later is needed"
        ),
        _pooler(pooled, advisory),
        *_rights(session, config),
        *_durability(session),
        _standby(session),
    ]


def _one(session: psycopg.Connection[Any], statement: str, *values: Any) -> Any:
    row = session.execute(sql.SQL(statement), values).fetchone()
    return row[0] if row else None


def _connection(session: psycopg.Connection[Any], config: PostgresConfig) -> Finding:
    mode = config.libpq.get("sslmode", "prefer")
    host = session.info.host
    return connection(
        "connection", host, bool(session.pgconn.ssl_in_use), mode in VERIFIED, "write sslmode=verify-full"
    )


def _pooler(pooled: bool, advisory: bool) -> Finding:
    if not pooled:
        return ok("pooler", "none: each connection is a session of the server")
    if advisory:
        return fail("pooler", "a proxy pools sessions by the transaction: connect to the server itself")
    return warn("pooler", "a proxy pools sessions by the transaction: waiters poll, so handoffs take longer")


def _rights(session: psycopg.Connection[Any], config: PostgresConfig) -> list[Finding]:
    role, is_superuser, administers = session.execute(ROLE).fetchone() or ("?", False, False)
    findings = []
    if not _one(session, IS_INSTALLED, config.schema):
        may = _one(session, MAY_CREATE)
        state = "not there yet: first use makes it" if may else "not there, and this role may not make it"
        remedy = "" if may else "; have an administrator run `holdfast init`"
        findings.append((ok if may else fail)("schema", f"{config.schema} is {state}{remedy}"))
    elif not _one(session, MAY_USE, config.schema):
        findings.append(fail("rights", f"missing: GRANT USAGE ON SCHEMA {config.schema} TO {role}"))
    elif denied := _one(session, FORBIDDEN_FUNCTIONS, config.schema):
        findings.append(
            fail("rights", f"missing: EXECUTE on {denied} functions of schema {config.schema} for {role}")
        )
    else:
        findings.append(ok("schema", f"{config.schema} is there, and its functions may be called"))
    if is_superuser or administers:
        what = "a superuser" if is_superuser else "a role that makes roles or databases"
        findings.append(
            warn("role", f"{role} is {what}: locks need a role with rights on their schema alone")
        )
    else:
        findings.append(ok("role", f"{role} is an ordinary role"))
    return findings


def _durability(session: psycopg.Connection[Any]) -> list[Finding]:
    values = {name: str(_one(session, "SELECT current_setting(%s)", name)) for name in SETTINGS}
    findings = []
    for name, loss in (
        ("fsync", "a crash of the machine can damage the whole database"),
        ("full_page_writes", "a crash of the machine can damage tables"),
        ("synchronous_commit", "a crash of the server loses the last grants"),
    ):
        if values[name] == "off":
            findings.append(fail(name, f"off: {loss}; set it to on"))
        else:
            findings.append(ok(name, values[name]))
    if values["synchronous_commit"] == "local" and values["synchronous_standby_names"]:
        findings.append(warn("standbys", "synchronous_commit is local: grants do not wait for the standby"))
    return findings


def _standby(session: psycopg.Connection[Any]) -> Finding:
    if _one(session, "SELECT pg_is_in_recovery()"):
        return fail("replicas", "this server is a standby, which grants nothing: connect to the primary")
    names = _one(session, "SELECT current_setting('synchronous_standby_names')")
    if names:
        return ok(
            "replicas",
            f"synchronous_standby_names is {names!r}: a failover to such a standby keeps every grant",
        )
    return ok(
        "replicas", "no synchronous standby: a failover to an asynchronous one may lose the last grants"
    )
