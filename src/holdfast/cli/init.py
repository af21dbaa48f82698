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

Without this command, the schema in PostgreSQL is created when it is first used,
which needs the right to create a schema. The command may be run again, and by
many at once. After it, a role that uses locks needs only these rights:
  GRANT USAGE ON SCHEMA holdfast TO the_role;
  GRANT EXECUTE ON ALL ROUTINES IN SCHEMA holdfast TO the_role;
"""

SQL = Option(("--sql",), "Print the SQL statements instead of running them.")


def init(url: str | None, sql: bool) -> None:
    """Create what an engine needs in its server: in PostgreSQL, a schema with tables and functions."""
    if sql:
        print_text(provision.script(url))
    elif provision.install(url):
        print_lines("ready: the schema, its tables and functions were created")
    else:
        print_lines("ready: everything existed already")


COMMAND = Command(init, (URL, SQL), EPILOG)
