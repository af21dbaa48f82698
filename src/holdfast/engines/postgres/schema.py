"""The tables and functions in the server: which version, and the script that makes them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

from ...errors import InvalidArgument

__all__ = ["DEFAULT_SCHEMA", "VERSION", "beginning", "check_schema", "script", "script_for_an_administrator"]

VERSION: Final = 1
"""Functions carry it in their names: what older clients call stays there while a fleet is upgraded."""

DEFAULT_SCHEMA: Final = "holdfast"

_FOLDER: Final = Path(__file__).with_name("sql")
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")

INSTALLING: Final = 0x686F6C64
"""The first half of the key of the lock under which it is made; the other is the schema's."""

DONE: Final = f"INSERT INTO @schema@.versions VALUES ({VERSION}) ON CONFLICT DO NOTHING;\n"  # noqa: S608 - ours

_NEWEST: Final = re.compile(r"@newest\((\w+), ([\w.]+), ([\w.]+)\)@")

NEWEST: Final = (
    r"(SELECT its.ctid FROM @schema@.\1 its WHERE its.namespace = \2 AND its.name >= \3 AND its.name <= \3"
    " ORDER BY its.name DESC LIMIT 1)"
)
"""Where the row of a name lies. While any transaction of the database is open, the server keeps every version
that a row had since; looked up by ``=``, all of them would be visited, for every grant. So it is looked up
from the end, where the newest is. What is there may have been changed by the time it is written to: then it
is not found, and who looked decides again."""

GRANTS: Final = """
-- For each role that locks (the one that ran this needs no more). No right to a table is needed:
--   GRANT USAGE ON SCHEMA @schema@ TO the_role;
--   GRANT EXECUTE ON ALL ROUTINES IN SCHEMA @schema@ TO the_role;
"""


def check_schema(name: str) -> str:
    """A name that needs no quotes: it is the one text that becomes part of statements."""
    if _SCHEMA.fullmatch(name) is None or name.startswith("pg_"):
        raise InvalidArgument(
            f"schema is lower-case letters, digits and underscores, at most 63; it is {name!r}: "
            f"write for example schema={DEFAULT_SCHEMA}"
        )
    return name


@cache
def script(schema: str) -> str:
    """Everything as one transaction. May be run again, by many at once, and over an older version."""
    check_schema(schema)
    parts = [path.read_text("utf-8") for path in sorted(_FOLDER.glob("*.sql"))]
    return _NEWEST.sub(NEWEST, "\n".join([*parts, DONE])).replace("@schema@", schema)


def beginning(schema: str) -> str:
    """The transaction in which it is made, by one at a time.

    Who had to wait still remembers that the schema was not there: taking a lock on a table, which reading it
    does, is what makes a session hear of changes to the catalogue.
    """
    return (
        "BEGIN; SET LOCAL lock_timeout = 0;\n"
        f"SELECT pg_advisory_xact_lock({INSTALLING}, hashtext('{check_schema(schema)}'));\n"
        "SELECT FROM pg_catalog.pg_namespace WHERE false;\n"
    )


def script_for_an_administrator(schema: str) -> str:
    """The same as text to be run with psql, with what else is to be said."""
    grants = GRANTS.replace("@schema@", schema)
    return f"{beginning(schema)}\n\n{script(schema)}\nCOMMIT;\n{grants}"
