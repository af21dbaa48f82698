"""``holdfast fence``: the guards in a database of the user's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast import errors

from .exits import Status, complain
from .fence_database import VARIABLE, open_database
from .options import JSON, NAMESPACE, Argument, Command, Group, Option, duration, number

if TYPE_CHECKING:
    from holdfast.fencing import Grant

__all__ = ["ADVANCE", "GROUP", "INSTALL", "MOVE", "PROTECT", "PRUNE", "SHOW", "UNPROTECT"]

EPILOG = """
Examples:
  holdfast fence install --url postgresql://app@db/shop
  holdfast fence protect invoice invoices
  holdfast fence show

The databases are SQLite, PostgreSQL and MariaDB (or MySQL).
HOLDFAST_DATABASE_URL names the database for every one of these commands.
"""

PROTECT_EPILOG = """
Examples:
  holdfast fence protect invoice invoices --url postgresql://app@db/shop
  holdfast fence protect billing.invoice invoices
"""

SHOW_EPILOG = """
Examples:
  holdfast fence show --url sqlite:///shop.db
  holdfast fence show invoices --json
"""

ADVANCE_EPILOG = """
Examples:
  holdfast run invoices -- sh -c 'holdfast fence advance invoices && ./bill.sh'
  holdfast fence advance invoices --token 1763209000123456

Exit status: 0 when the guard has accepted the token, 1 when it refused it.
"""

MOVE_EPILOG = """
Examples:
  holdfast fence move invoices --to redis://locks:6379/0
"""

PRUNE_EPILOG = """
Examples:
  holdfast fence prune --older-than 90d
"""

DATABASE = Option(
    ("--url",),
    "The database that has the data and the guard. Other users see a command line: give a URL with a "
    "password in the variable.",
    metavar="URL",
    env=VARIABLE,
)
TABLE = Argument("table", "The table: its name, or schema.name.")
RESOURCE = Argument("resource", "What the lock protects, usually the lock's own name.")
ANY_RESOURCE = Argument("resource", "Only this resource.", required=False)
TOKEN = Option(
    ("--token",),
    "The token as a number, which is weaker. The default is the grant that holdfast run passed in "
    "HOLDFAST_FENCE.",
    metavar="N",
    convert=number(0),
)
TO = Option(("--to",), "The engine on which the lock is taken from now on.", metavar="URL", required=True)
NAME = Option(("--name",), "The name of the lock, if it differs from the resource.", metavar="NAME")
TIMEOUT = Option(
    ("--timeout",), "The longest time to wait for the lock.", metavar="TIME", convert=duration, default=10.0
)
OLDER_THAN = Option(
    ("--older-than",),
    "Remove fences to which no token was presented for this long; a day at least.",
    metavar="TIME",
    convert=duration,
    required=True,
)


def install(url: str | None) -> None:
    """Create the guard's table in a database, if it does not exist."""
    from holdfast import fencing

    from .output import print_lines

    with open_database(url) as db:
        fencing.install(db)
        db.commit()
    print_lines("the guard is installed")


def protect(table: str, resource: str, url: str | None) -> None:
    """Have the database refuse writes to a table by programs that have not presented a token.

    Writers that do not call fencing.enforce (or fencing.transaction) fail from now on.
    """
    from holdfast import fencing

    from .output import print_lines

    with open_database(url) as db:
        fencing.protect_table(db, table, resource)
        db.commit()
    print_lines(f"{table!r} is protected by tokens of {resource!r}")


def unprotect(table: str, url: str | None) -> None:
    """Let all programs write to a table again."""
    from holdfast import fencing

    from .output import print_lines

    with open_database(url) as db:
        fencing.unprotect_table(db, table)
        db.commit()
    print_lines(f"{table!r} is not protected")


def show(resource: str | None, url: str | None, json: bool) -> int:
    """Show the newest token that the guard has seen, of one resource or of all."""
    from holdfast import fencing

    from .output import print_json, print_table

    with open_database(url) as db:
        found = [each for each in fencing.marks(db) if resource in {None, each.resource}]
    if json:
        print_json([_as_json(each) for each in found])
    elif found:
        rows = [(each.resource, str(each.mark.token), each.mark.source, each.updated_at) for each in found]
        print_table("", ("resource", "newest token", "source", "presented"), rows)
    if resource is not None and not found:
        complain(f"no token of {resource!r} was ever presented here")
        return Status.NOTHING_DONE
    return Status.OK


def advance(resource: str, token: int | None, url: str | None) -> int:
    """Inform the guard of a grant, so that older holders are shut out from now on."""
    from holdfast import fencing

    from .output import print_lines

    presented: Grant | int = fencing.Grant.from_environ() if token is None else token
    try:
        with open_database(url) as db:
            fencing.advance(db, resource, presented)
            db.commit()
    except errors.StaleToken as error:
        complain(str(error))
        return Status.NOTHING_DONE
    shown = presented if isinstance(presented, int) else presented.token
    print_lines(f"the guard of {resource!r} knows token {shown}")
    return Status.OK


def move(resource: str, to: str, name: str | None, timeout: float, namespace: str, url: str | None) -> None:
    """Have a guard accept the tokens of another engine.

    It takes the lock on that engine, advances the guard with the new token, and from then on the guard
    refuses tokens of the old engine. Numbers of two engines do not compare: stop the holders on the old
    engine first.
    """
    import holdfast
    from holdfast import fencing

    from .output import print_lines
    from .redaction import learn

    learn([to])
    with (
        open_database(url) as db,
        holdfast.connect(to, namespace=namespace) as client,
        client.lock(name or resource, timeout=timeout) as lease,
    ):
        source = lease.fence.source
        fencing.move(db, resource, source)
        fencing.advance(db, resource, lease)
        db.commit()
        print_lines(f"{resource!r} is guarded by tokens of {source!r}; its newest is {lease.token}")


def prune(older_than: float, url: str | None) -> None:
    """Remove the fences of resources that have been idle for a long time.

    The guard forgets those resources: a holder that is older than all this time would pass again.
    """
    from holdfast import fencing

    from .output import print_lines

    with open_database(url) as db:
        removed = fencing.prune(db, older_than)
        db.commit()
    print_lines(f"removed {removed}")


def _as_json(stored: Any) -> dict[str, object]:
    mark = stored.mark
    return {
        "resource": stored.resource,
        "token": mark.token,
        "source": mark.source,
        "nonce": mark.nonce,
        "peers": list(mark.peers),
        "presented": stored.updated_at,
    }


INSTALL = Command(install, (DATABASE,))
PROTECT = Command(protect, (TABLE, RESOURCE, DATABASE), PROTECT_EPILOG)
UNPROTECT = Command(unprotect, (TABLE, DATABASE))
SHOW = Command(show, (ANY_RESOURCE, DATABASE, JSON), SHOW_EPILOG)
ADVANCE = Command(advance, (RESOURCE, TOKEN, DATABASE), ADVANCE_EPILOG)
MOVE = Command(move, (RESOURCE, TO, NAME, TIMEOUT, NAMESPACE, DATABASE), MOVE_EPILOG)
PRUNE = Command(prune, (OLDER_THAN, DATABASE), PRUNE_EPILOG)
GROUP = Group(
    "Manage the guards in a database: install them, protect tables, see and advance tokens.",
    {
        "install": "fence:INSTALL",
        "protect": "fence:PROTECT",
        "unprotect": "fence:UNPROTECT",
        "show": "fence:SHOW",
        "advance": "fence:ADVANCE",
        "move": "fence:MOVE",
        "prune": "fence:PRUNE",
        "probe": "fence_probe:PROBE",
    },
    EPILOG,
)
