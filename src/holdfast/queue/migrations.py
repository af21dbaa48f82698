"""The schema of the queue by version: the scripts in ``sql/``, and how a database is brought up to date.

Script ``N_….sql`` makes version N of the schema from version N−1. A newer schema than this release knows
stays as it is: scripts only ever add, so older releases keep working while a fleet is upgraded.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from ..fencing.dialects import Control
from ..fencing.plans import Plan, Result, Statement
from .texts import Session, Texts

__all__ = ["VERSION", "administrator_script", "migrate", "needs_migration", "statements_of"]

VERSION: Final = 1

INSTALL_KEY: Final = 0x686F6C64
"""The first half of the key of the advisory lock of an installation, the same as of the lease table's."""

_FOLDER: Final = Path(__file__).with_name("sql")


@cache
def _scripts(dialect: str) -> tuple[tuple[int, str], ...]:
    """By the version that each makes."""
    found = [(int(path.name.partition("_")[0]), path) for path in (_FOLDER / dialect).glob("*.sql")]
    return tuple((version, path.read_text("utf-8")) for version, path in sorted(found))


def statements_of(texts: Texts, after: int = 0) -> list[str]:
    """All of them, for one transaction. No statement of these has a semicolon within."""
    found = []
    for version, script in _scripts(texts.dialect):
        if version <= after:
            continue
        code = "\n".join(line.partition("--")[0].rstrip() for line in script.splitlines())
        found += [part.strip() for part in code.replace("@schema@", texts.schema).split(";") if part.strip()]
        found.append(texts.record_version.replace(":version", str(version)))
    return found


def needs_migration(session: Session) -> Plan[bool]:
    """One look at the catalogue; nothing is written, so users without rights to create may use the queue."""
    exists: Result = yield Statement(session.texts.has_versions)
    if not exists.rows or not exists.rows[0][0]:
        return True
    newest: Result = yield Statement(session.texts.newest_version)
    return (newest.rows[0][0] or 0) < VERSION


def migrate(session: Session) -> Plan[bool]:
    """Whether there was something to do. Safe to run many times at once."""
    if not (yield from needs_migration(session)):
        return False
    yield Control.BEGIN
    try:
        for text in session.texts.begin_install:
            yield Statement(text)
        done = yield from needs_migration(session)
        if done:
            exists: Result = yield Statement(session.texts.has_versions)
            after = 0
            if exists.rows and exists.rows[0][0]:
                newest: Result = yield Statement(session.texts.newest_version)
                after = newest.rows[0][0] or 0
            for text in statements_of(session.texts, after):
                yield Statement(text)
    except BaseException:
        yield Control.ROLL_BACK
        raise
    yield Control.COMMIT
    return done


def administrator_script(texts: Texts) -> str:
    """The whole installation as text for psql or sqlite3, to be run by a role that may create tables."""
    begin = ["BEGIN", *texts.begin_install]
    return ";\n".join([*begin, *statements_of(texts), "COMMIT"]) + ";\n"
