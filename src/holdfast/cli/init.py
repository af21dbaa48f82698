"""``holdfast init``: prepare an engine before it is first used."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast import provision

from .options import Url

__all__ = ["EPILOG", "init"]

EPILOG = """\b
Examples:
  holdfast init --url postgresql://admin@db.example.org/app
  holdfast init --sql --url postgresql://db.example.org/app | psql app

Without it PostgreSQL is prepared when it is first used, which needs the right
to create a schema. Safe to run again, and by many at once. The role that locks
then needs no more than this:
  GRANT USAGE ON SCHEMA holdfast TO the_role;
  GRANT EXECUTE ON ALL ROUTINES IN SCHEMA holdfast TO the_role;
"""

Sql = Annotated[bool, typer.Option("--sql", help="Print what would be run, for an administrator.")]


def init(url: Url = None, sql: Sql = False) -> None:
    """Make what an engine keeps in its server: for PostgreSQL a schema with tables and functions."""
    if sql:
        print(provision.script(url), end="")
    elif provision.install(url):
        print("ready: the schema, its tables and functions were made")
    else:
        print("ready: everything was there already")
