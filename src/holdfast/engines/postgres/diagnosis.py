"""What there is to find out about a PostgreSQL server: how it is reached, who we are there, what it keeps."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

from ...errors import EngineUnavailable
from ..findings import Finding, clock, connection, fail, ok, warn
from .target import Target

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


def diagnose(target: Target, io_timeout: float, advisory: bool) -> list[Finding]:
    """On the first server that lets us in."""
    failure = "there is no server to connect to"
    for conninfo in target.attempts(io_timeout):
        try:
            with psycopg.connect(
                conninfo, autocommit=True, connect_timeout=max(2, round(io_timeout)), prepare_threshold=None
            ) as link:
                return _examine(link, target, advisory)
        except psycopg.Error as error:
            failure = " ".join(str(error).split()) or type(error).__name__
    raise EngineUnavailable(f"PostgreSQL cannot be examined: {failure}")


def _examine(link: psycopg.Connection[Any], target: Target, advisory: bool) -> list[Finding]:
    version = link.info.server_version
    pooled = _one(link, "SELECT pg_backend_pid()") != link.info.backend_pid
    return [
        _connection(link, target),
        clock("clock", lambda: float(_one(link, "SELECT extract(epoch FROM clock_timestamp())::float8"))),
        (ok if version >= OLDEST_VERSION else fail)(
            "version", f"PostgreSQL {version // 10_000}.{version % 10_000}; 14 or later is needed"
        ),
        _pooler(pooled, advisory),
        *_rights(link, target),
        *_durability(link),
        _standby(link),
    ]


def _one(link: psycopg.Connection[Any], statement: str, *values: Any) -> Any:
    row = link.execute(sql.SQL(statement), values).fetchone()
    return row[0] if row else None


def _connection(link: psycopg.Connection[Any], target: Target) -> Finding:
    mode = target.libpq.get("sslmode", "prefer")
    host = link.info.host
    return connection(
        "connection", host, bool(link.pgconn.ssl_in_use), mode in VERIFIED, "write sslmode=verify-full"
    )


def _pooler(pooled: bool, advisory: bool) -> Finding:
    if not pooled:
        return ok("pooler", "none: each connection is a session of the server")
    if advisory:
        return fail("pooler", "a proxy lends sessions out by the transaction: connect to the server itself")
    return warn(
        "pooler", "a proxy lends sessions out by the transaction: waiters poll, so hand-overs take longer"
    )


def _rights(link: psycopg.Connection[Any], target: Target) -> list[Finding]:
    role, is_superuser, administers = link.execute(ROLE).fetchone() or ("?", False, False)
    findings = []
    if not _one(link, IS_INSTALLED, target.schema):
        may = _one(link, MAY_CREATE)
        told = "not there yet: the first use makes it" if may else "not there, and this role may not make it"
        remedy = "" if may else "; have an administrator run `holdfast init`"
        findings.append((ok if may else fail)("schema", f"{target.schema} is {told}{remedy}"))
    elif not _one(link, MAY_USE, target.schema):
        findings.append(fail("rights", f"missing: GRANT USAGE ON SCHEMA {target.schema} TO {role}"))
    elif denied := _one(link, FORBIDDEN_FUNCTIONS, target.schema):
        findings.append(
            fail("rights", f"missing: EXECUTE on {denied} functions of schema {target.schema} for {role}")
        )
    else:
        findings.append(ok("schema", f"{target.schema} is there, and its functions may be called"))
    if is_superuser or administers:
        what = "a superuser" if is_superuser else "a role that makes roles or databases"
        findings.append(
            warn("role", f"{role} is {what}: locks need a role with rights on their schema alone")
        )
    else:
        findings.append(ok("role", f"{role} is an ordinary role"))
    return findings


def _durability(link: psycopg.Connection[Any]) -> list[Finding]:
    values = {name: str(_one(link, "SELECT current_setting(%s)", name)) for name in SETTINGS}
    findings = []
    for name, loss in (
        ("fsync", "a crash of the machine can damage the whole database"),
        ("full_page_writes", "a crash of the machine can damage tables"),
        ("synchronous_commit", "a crash of the server forgets the last grants"),
    ):
        if values[name] == "off":
            findings.append(fail(name, f"off: {loss}; set it to on"))
        else:
            findings.append(ok(name, values[name]))
    if values["synchronous_commit"] == "local" and values["synchronous_standby_names"]:
        findings.append(warn("standbys", "synchronous_commit is local: grants do not wait for the standby"))
    return findings


def _standby(link: psycopg.Connection[Any]) -> Finding:
    if _one(link, "SELECT pg_is_in_recovery()"):
        return fail("replicas", "this server is a standby, which grants nothing: connect to the primary")
    names = _one(link, "SELECT current_setting('synchronous_standby_names')")
    if names:
        return ok(
            "replicas", f"synchronous_standby_names is {names!r}: a failover to such a standby keeps all"
        )
    return ok(
        "replicas", "no synchronous standby: a failover to an asynchronous one may forget the last grants"
    )
