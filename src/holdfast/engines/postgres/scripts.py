"""The SQL scripts in ``sql/``: the version of the functions, and the script that installs them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

from .config import check_schema

__all__ = ["VERSION", "administrator_script", "begin_script", "install_script"]

VERSION: Final = 1
"""Functions have it in their names, so that older clients still find theirs while a fleet is upgraded."""

_FOLDER: Final = Path(__file__).with_name("sql")

INSTALL_KEY: Final = 0x686F6C64
"""The first half of the key of the advisory lock of an installation; the other half is the schema's."""

RECORD_VERSION: Final = f"INSERT INTO @schema@.versions VALUES ({VERSION}) ON CONFLICT DO NOTHING;\n"  # noqa: S608 - ours

_NEWEST_MACRO: Final = re.compile(r"@newest\((\w+), ([\w.]+), ([\w.]+)\)@")

NEWEST: Final = (
    r"(SELECT its.ctid FROM @schema@.\1 its WHERE its.namespace = \2 AND its.name >= \3 AND its.name <= \3"
    " ORDER BY its.name DESC LIMIT 1)"
)
"""Finds the row of a name. While any transaction of the database is open, the server keeps every version that
a row had since; a lookup by ``=`` would visit all of them, for every grant. So this looks it up from the end,
where the newest version is. The row found may have changed by the time it is written to: then the write finds
no row, and its caller decides again."""

GRANTS: Final = """
-- For each role that locks (the role that ran this needs no more). It needs no right to a table:
--   GRANT USAGE ON SCHEMA @schema@ TO the_role;
--   GRANT EXECUTE ON ALL ROUTINES IN SCHEMA @schema@ TO the_role;
"""


@cache
def install_script(schema: str) -> str:
    """Everything, for one transaction. It may run again, many times at once, and over an older version."""
    check_schema(schema)
    parts = [path.read_text("utf-8") for path in sorted(_FOLDER.glob("*.sql"))]
    return _NEWEST_MACRO.sub(NEWEST, "\n".join([*parts, RECORD_VERSION])).replace("@schema@", schema)


def begin_script(schema: str) -> str:
    """Begin the transaction of an installation; one installation runs at a time.

    A session that waited for the lock still has it cached that the schema does not exist. Reading a table
    takes a lock on it, which makes the session process the changes of the catalogue.
    """
    return (
        "BEGIN; SET LOCAL lock_timeout = 0;\n"
        f"SELECT pg_advisory_xact_lock({INSTALL_KEY}, hashtext('{check_schema(schema)}'));\n"
        "SELECT FROM pg_catalog.pg_namespace WHERE false;\n"
    )


def administrator_script(schema: str) -> str:
    """The whole installation as text for psql, with the grants that the other roles need."""
    grants = GRANTS.replace("@schema@", schema)
    return f"{begin_script(schema)}\n\n{install_script(schema)}\nCOMMIT;\n{grants}"
