"""The tables of actors, beside those of the queue, and their statements. Values are bound, ``:like_this``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..fencing.dialects import Control
from ..fencing.plans import Plan, Result, Statement
from ..queue.database import database_of
from ..queue.migrations import administrator_script
from ..queue.texts import SQLITE, Session, Texts

__all__ = ["ActorTexts", "install", "script", "texts_for"]

IO_TIMEOUT_SECONDS: Final = 5.0

_TABLES: Final = (
    """\
CREATE TABLE IF NOT EXISTS {states} (
    namespace text NOT NULL,
    kind      text NOT NULL,
    key       text NOT NULL,
    version   bigint NOT NULL,
    state     text NOT NULL,
    PRIMARY KEY (namespace, kind, key)
)""",
    """\
CREATE TABLE IF NOT EXISTS {messages} (
    namespace  text NOT NULL,
    kind       text NOT NULL,
    key        text NOT NULL,
    id         text NOT NULL,
    job        bigint NOT NULL,
    created_at {float} NOT NULL,
    PRIMARY KEY (namespace, kind, key, id)
)""",
    "CREATE INDEX IF NOT EXISTS {messages_index} ON {messages} (namespace, created_at)",
)

_THIS_ACTOR: Final = "namespace = :namespace AND kind = :kind AND key = :key"

_STATEMENTS: Final = {
    "load": "SELECT version, state FROM {states} WHERE {this_actor}",
    "insert_state": "INSERT INTO {states} (namespace, kind, key, version, state)"
    " VALUES (:namespace, :kind, :key, 1, :state) ON CONFLICT DO NOTHING RETURNING version",
    "update_state": "UPDATE {states} SET version = version + 1, state = :state WHERE {this_actor}"
    " AND version = :version RETURNING version",
    "job_of_message": "SELECT job FROM {messages} WHERE {this_actor} AND id = :id",
    "record_message": "INSERT INTO {messages} (namespace, kind, key, id, job, created_at)"
    " VALUES (:namespace, :kind, :key, :id, :job, {now})",
    # The id of a message that was not handled yet is kept, however old it is.
    "forget_messages": "DELETE FROM {messages} WHERE namespace = :namespace"
    " AND created_at <= {now} - :older_than"
    " AND NOT EXISTS (SELECT 1 FROM {jobs} j WHERE j.id = {messages}.job AND j.ended_at IS NULL)",
}


@dataclass(frozen=True, slots=True)
class ActorTexts:
    """The statements for one database."""

    is_installed: str
    tables: tuple[str, ...]
    load: str
    insert_state: str
    update_state: str
    job_of_message: str
    record_message: str
    forget_messages: str


def texts_for(texts: Texts) -> ActorTexts:
    """The schema's name was checked by the queue: it needs no quotes."""
    if texts.dialect == SQLITE:
        names = {
            "states": "holdfast_queue_actor_states",
            "messages": "holdfast_queue_actor_messages",
            "messages_index": "holdfast_queue_actor_messages_age",
            "jobs": "holdfast_queue_jobs",
            "float": "real",
            "now": "((julianday('now') - 2440587.5) * 86400.0)",
        }
        look = (
            "SELECT count(*) = 2 FROM sqlite_master WHERE name IN"  # noqa: S608 - names of our own
            f" ('{names['states']}', '{names['messages_index']}')"
        )
    else:
        names = {
            "states": f"{texts.schema}.queue_actor_states",
            "messages": f"{texts.schema}.queue_actor_messages",
            "messages_index": "queue_actor_messages_age",
            "jobs": f"{texts.schema}.queue_jobs",
            "float": "float8",
            "now": "CAST(extract(epoch FROM statement_timestamp()) AS float8)",
        }
        look = f"SELECT to_regclass('{texts.schema}.{names['messages_index']}') IS NOT NULL"
    made = {name: text.format_map({**names, "this_actor": _THIS_ACTOR}) for name, text in _STATEMENTS.items()}
    return ActorTexts(look, tuple(text.format_map(names) for text in _TABLES), **made)


def install(session: Session) -> Plan[None]:
    """Create the tables, unless they are there. Those of the queue are. Safe to run many times at once."""
    texts = texts_for(session.texts)
    if (yield from _is_installed(texts)):
        return
    yield Control.BEGIN
    try:
        for text in (*session.texts.begin_install, *texts.tables):
            yield Statement(text)
    except BaseException:
        yield Control.ROLL_BACK
        raise
    yield Control.COMMIT


def _is_installed(texts: ActorTexts) -> Plan[bool]:
    result: Result = yield Statement(texts.is_installed)
    return bool(result.rows[0][0])


def script(url: str | None = None) -> str:
    """What first use does to the database, the queue's part included, as a script for its command-line tool:
    for an administrator, where the program may not create tables. Does no I/O."""
    texts = database_of(url, IO_TIMEOUT_SECONDS).texts
    ours = ["BEGIN", *texts.begin_install, *texts_for(texts).tables, "COMMIT"]
    return administrator_script(texts) + ";\n".join(ours) + ";\n"
