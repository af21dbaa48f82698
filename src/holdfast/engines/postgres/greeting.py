"""How a connection begins: who answers, is there a proxy between, and are our functions there?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from ...core.ops import Refused
from ...errors import EngineUnavailable
from .failures import NOT_INSTALLED
from .link import Link, ServerError, Waits
from .schema import VERSION, beginning, script
from .statements import Call, Statement
from .target import Target

__all__ = ["OLDEST_VERSION", "greet", "install"]

OLDEST_VERSION: Final = 140_000


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
        raise Refused("PostgreSQL is read-only: the server is a standby that was not promoted")
    link.pooled = target.pooler == "yes" or (target.pooler == "auto" and backend != link.backend)
    if not link.pooled:
        yield from link.call(_settings(io_timeout))
    return source


def _hello(link: Link, schema: str) -> Waits[tuple[str, int, bool]]:
    text = f"SELECT {schema}.hello_{VERSION}()".encode()
    result = yield from link.call(Call(Statement(b"", text, ()), ()))
    source, backend, standby = json.loads(result.get_value(0, 0) or b"[]")
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


def install(link: Link, schema: str) -> Waits[bool]:
    """Make the schema, its tables and functions, if they are not there; tells whether they were made.

    One at a time: the first of twenty does it, and the others find it done.
    """
    yield from link.run(beginning(schema))
    try:
        found = yield from link.run(f"SELECT to_regprocedure('{schema}.hello_{VERSION}()') IS NOT NULL")
        if found.get_value(0, 0) == b"t":
            yield from link.run("ROLLBACK")
            return False
        yield from link.run(script(schema))
        yield from link.run("COMMIT")
    except ServerError:
        yield from link.run("ROLLBACK")
        raise
    return True
