"""``holdfast init``: prepare an engine before it is first used."""

from __future__ import annotations

from holdfast import provision

from .options import URL, Command, Option
from .output import print_lines, print_text

__all__ = ["COMMAND", "init"]

EPILOG = """
Examples:
  holdfast init --url postgresql://admin@db.example.org/app
  holdfast init --sql --url postgresql://db.example.org/app | psql app

Without it PostgreSQL is prepared when it is first used, which needs the right
to create a schema. Safe to run again, and by many at once. The role that locks
then needs no more than this:
  GRANT USAGE ON SCHEMA holdfast TO the_role;
  GRANT EXECUTE ON ALL ROUTINES IN SCHEMA holdfast TO the_role;
"""

SQL = Option(("--sql",), "Print what would be run, for an administrator.")


def init(url: str | None, sql: bool) -> None:
    """Make what an engine keeps in its server: for PostgreSQL a schema with tables and functions."""
    if sql:
        print_text(provision.script(url))
    elif provision.install(url):
        print_lines("ready: the schema, its tables and functions were made")
    else:
        print_lines("ready: everything was there already")


COMMAND = Command(init, (URL, SQL), EPILOG)
