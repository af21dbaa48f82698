"""How a connection begins: who answers, is there a proxy between, and are our functions there?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from ...core.effects import NotApplied
from ...errors import EngineUnavailable
from .failures import NOT_INSTALLED
from .link import Link, ServerError, Waits
from .schema import VERSION, beginning, script
from .statements import Call, Statement
from .target import Target

__all__ = ["OLDEST_VERSION", "greet", "install"]

OLDEST_VERSION: Final = 140_000

NOT_ALLOWED: Final = "42501"


def greet(link: Link, target: Target, io_timeout: float) -> Waits[str]:
    """What every connection of ours begins with; returns whose numbers the tokens are."""
    if link.server_version < OLDEST_VERSION:
        oldest, found = OLDEST_VERSION // 10_000, link.server_version // 10_000
        raise EngineUnavailable(f"PostgreSQL {oldest} or later is needed; this is {found}")
    try:
        source, backend, standby = yield from _hello(link, target.schema)
    except ServerError as error:
        if error.sqlstate not in NOT_INSTALLED:
            raise
        yield from install(link, target.schema)
        source, backend, standby = yield from _hello(link, target.schema)
    if standby:
        # It may pass: where a server failed, its standby is promoted in a moment.
        raise NotApplied("PostgreSQL is read-only: the server is a standby that was not promoted")
    link.pooled = target.pooler == "yes" or (target.pooler == "auto" and backend != link.backend)
    if not link.pooled:
        yield from link.call(_settings(io_timeout))
    return source


def _hello(link: Link, schema: str) -> Waits[tuple[str, int, bool]]:
    text = f"SELECT {schema}.hello_{VERSION}()".encode()
    result = yield from link.call(Call(Statement(b"", text, ()), ()))
    told = result.get_value(0, 0)
    if told is None:
        raise EngineUnavailable(
            f"the table {schema}.meta is empty: `holdfast init` fills it again. Tokens have another source "
            "then, which no fence compares with the old one"
        )
    source, backend, standby = json.loads(told)
    return source, backend, standby


def _settings(io_timeout: float) -> Call:
    """Of this session, which is ours alone. Plans are made once and by index, whatever the server guesses."""
    milliseconds = str(max(int(io_timeout * 1000), 1))
    chosen = {
        "statement_timeout": milliseconds,
        "lock_timeout": milliseconds,
        "default_transaction_isolation": "read committed",
        "extra_float_digits": "1",
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "jit": "off",
    }
    values: Sequence[bytes] = [word.encode() for pair in chosen.items() for word in pair]
    calls = ", ".join(f"set_config(${2 * i + 1}, ${2 * i + 2}, false)" for i in range(len(chosen)))
    return Call(Statement(b"", f"SELECT {calls}".encode(), (0,) * len(values)), values)


def install(link: Link, schema: str, again: bool = False) -> Waits[bool]:
    """Make the schema, its tables and functions, if they are not there; tells whether anything was made.

    One at a time: the first of twenty does it, and the others find it done. ``again``: it is run in any case,
    which makes what is missing of it.
    """
    yield from link.run(beginning(schema))
    found = False
    try:
        before, found = yield from _found(link, schema)
        if found and not again:
            yield from link.run("ROLLBACK")
            return False
        yield from link.run(script(schema))
        after, _ = yield from _found(link, schema)
        filled = yield from link.run(f"SELECT xmin = pg_current_xact_id()::xid FROM {schema}.meta")  # noqa: S608 - the schema's name was checked
        yield from link.run("COMMIT")
    except ServerError as error:
        yield from link.run("ROLLBACK")
        if found and error.sqlstate == NOT_ALLOWED:
            return False  # an administrator made it, and sees to it
        raise
    return after > before or filled.get_value(0, 0) == b"t"


def _found(link: Link, schema: str) -> Waits[tuple[int, bool]]:
    """How many things of ours are there, and whether we can be greeted by them."""
    result = yield from link.run(
        "SELECT (SELECT count(*) FROM pg_catalog.pg_class WHERE relnamespace = n)"  # noqa: S608 - as above
        " + (SELECT count(*) FROM pg_catalog.pg_proc WHERE pronamespace = n),"
        f" to_regprocedure('{schema}.hello_{VERSION}()') IS NOT NULL"
        f" AND to_regclass('{schema}.meta') IS NOT NULL"
        f" FROM to_regnamespace('{schema}') n"
    )
    return int(result.get_value(0, 0) or 0), result.get_value(0, 1) == b"t"
