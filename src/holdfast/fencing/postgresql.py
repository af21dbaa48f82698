"""The guard in PostgreSQL (13 and later): a schema of its own with a table and four functions. Texts only.

``_PASSES`` and ``_SET`` are the table of ``rule`` written as SQL; a differential test holds the two together.

In a schema of its own, and always named with it, so that neither ``search_path`` nor a temporary table can
put another table in its place: two clients that see two guards would be guarded by none.

A mark is presented by one function, ``present``, which tries what is cheapest first. So it is one statement
also for the first mark of a resource, which is parsed quickly, and what it runs is planned once for each
session. It does one of these:

- It locks the row, and changes nothing: for a grant that has passed before. At READ COMMITTED only,
  where each statement sees what was committed before it. In an older snapshot the transaction
  that waited for this lock would not see what its holder has written; there, a row that was
  changed makes PostgreSQL refuse it (40001), so there each presentation changes the row.
- It changes the row that is there, in half the time of an upsert.
- It inserts or changes the row: for the first mark of a resource, and for a refusal.

A transaction that has presented its token for writing notes the resource in a setting that PostgreSQL resets
at the end of the transaction, and where a savepoint is rolled back. The triggers of protected tables look for
it by a function: the condition of a WHEN clause is read from its text again for every statement, which takes
longer.

``default_transaction_read_only`` is the seal of ``fencing.transaction``. The setting means nothing to the
transaction that it is set in, and nothing after that. But the server reports each change of it to the client,
so the client knows without asking whether that transaction has ended.
"""

from __future__ import annotations

from typing import Final

from ..errors import HoldfastError, InvalidArgument, Unsupported
from .dialects import CommonDialect, TableName, encode_peers, sqlstate
from .plans import Plan, Purpose, Result, Statement
from .rule import Mark

__all__ = ["PostgresqlDialect"]

_PASSES = """\
(given_source = '' OR stored.source = '' OR given_source = stored.source)
          AND CASE WHEN given_token > stored.token THEN true
                   WHEN given_token < stored.token
                   THEN strpos(stored.peers, concat(',', given_token, ',')) > 0
                   ELSE given_nonce = '' OR stored.nonce = '' OR given_nonce = stored.nonce END"""

_SET = """\
source = CASE WHEN given_source <> '' THEN given_source ELSE stored.source END,
            token = greatest(given_token, stored.token),
            nonce = CASE WHEN given_token > stored.token OR (given_token = stored.token AND stored.nonce = '')
                         THEN given_nonce ELSE stored.nonce END,
            peers = CASE WHEN given_token > stored.token
                           OR (given_token = stored.token AND stored.nonce = '' AND given_nonce <> '')
                         THEN given_peers ELSE stored.peers END,
            updated_at = transaction_timestamp()"""

# Where the rule accepts and changes nothing. ``updated_at`` is brought up to date when it is older than this,
# so ``prune`` keeps fences for that much longer.
_REFRESHED: Final = "interval '10 minutes'"
_SEAL: Final = "default_transaction_read_only"

# The note is one assigned expression: it needs no query, and one snapshot for all of it.
#
# ON CONFLICT DO UPDATE locks the row also where its WHERE does not hold, until the transaction ends. Under
# REPEATABLE READ and SERIALIZABLE it fails (40001) if the row changed after the transaction's snapshot: so a
# holder whose snapshot is older than the hand-over is refused by the database itself.
_PRESENT = f"""\
    CREATE OR REPLACE FUNCTION holdfast_fencing.present(
        given_resource text, given_source text, given_token bigint, given_nonce text, given_peers text,
        purpose integer
    ) RETURNS text LANGUAGE plpgsql AS $present$
    DECLARE
        noted text;
        own text;
    BEGIN
        PERFORM FROM holdfast_fencing.fence AS stored
        WHERE stored.resource = given_resource
          AND current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')
          AND (given_source = '' OR stored.source = given_source)
          AND CASE WHEN stored.token = given_token THEN given_nonce = '' OR stored.nonce = given_nonce
                   ELSE stored.token > given_token
                        AND strpos(stored.peers, concat(',', given_token, ',')) > 0 END
          AND stored.updated_at > transaction_timestamp() - {_REFRESHED}
        FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            UPDATE holdfast_fencing.fence AS stored SET
            {_SET}
            WHERE stored.resource = given_resource AND {_PASSES};
        END IF;
        IF NOT FOUND THEN
            INSERT INTO holdfast_fencing.fence AS stored (resource, source, token, nonce, peers, updated_at)
            VALUES (given_resource, given_source, given_token, given_nonce, given_peers,
                transaction_timestamp())
            ON CONFLICT (resource) DO UPDATE SET
            {_SET}
            WHERE {_PASSES};
        END IF;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        IF purpose >= {Purpose.WRITE.value} THEN
            own := concat(',', encode(convert_to(given_resource, 'UTF8'), 'hex'), ',');
            noted := set_config('holdfast_fencing.presented',
                CASE WHEN strpos(current_setting('holdfast_fencing.presented', true), own) > 0
                     THEN current_setting('holdfast_fencing.presented')
                     ELSE concat(current_setting('holdfast_fencing.presented', true), own) END,
                true
            ) || CASE WHEN purpose >= {Purpose.TRANSACTION.value} THEN set_config('{_SEAL}', 'on', true) END;
        END IF;
        RETURN pg_current_xact_id();
    END
    $present$;"""  # noqa: S608 - our own texts

_INSTALL = f"""\
DO $install$
BEGIN
    PERFORM pg_advisory_xact_lock(7525358331742);
    IF to_regprocedure('holdfast_fencing.present(text, text, bigint, text, text, integer)') IS NOT NULL THEN
        RETURN;
    END IF;
    IF to_regclass('holdfast_fencing.fence') IS NULL THEN
        CREATE SCHEMA IF NOT EXISTS holdfast_fencing;
        CREATE TABLE holdfast_fencing.fence (
            resource     text COLLATE "C" PRIMARY KEY,
            source       text        NOT NULL DEFAULT '',
            token        bigint      NOT NULL CHECK (token >= 0),
            nonce        text        NOT NULL DEFAULT '',
            peers        text        NOT NULL DEFAULT '',
            updated_at   timestamptz NOT NULL
        ) WITH (fillfactor = 50);
    END IF;
    CREATE OR REPLACE FUNCTION holdfast_fencing.require_token() RETURNS trigger LANGUAGE plpgsql AS $require$
    BEGIN
        IF strpos(current_setting('holdfast_fencing.presented', true), TG_ARGV[0]) > 0 THEN
            RETURN NULL;
        END IF;
        RAISE EXCEPTION USING ERRCODE = 'integrity_constraint_violation', MESSAGE = format(
            'table %I.%I is protected by fencing tokens of "%s", and this transaction has presented none:'
            ' call fencing.enforce first in the same transaction',
            TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_ARGV[1]);
    END
    $require$;
    CREATE OR REPLACE FUNCTION holdfast_fencing.unprotect(target text) RETURNS text
    LANGUAGE plpgsql AS $unprotect$
    DECLARE
        found regclass := to_regclass(target);
    BEGIN
        IF found IS NULL THEN
            RETURN 'missing';
        END IF;
        EXECUTE format('DROP TRIGGER IF EXISTS holdfast_fence ON %s', found);
        RETURN 'done';
    END
    $unprotect$;
    CREATE OR REPLACE FUNCTION holdfast_fencing.protect(target text, guarded text) RETURNS text
    LANGUAGE plpgsql AS $protect$
    DECLARE
        found regclass := to_regclass(target);
        class pg_class;
    BEGIN
        IF found IS NULL THEN
            RETURN 'missing';
        END IF;
        SELECT * INTO class FROM pg_class WHERE oid = found;
        IF class.relkind <> 'r' OR class.relpersistence = 't' THEN
            RETURN 'no table';
        END IF;
        IF class.relispartition
           OR EXISTS (SELECT FROM pg_inherits WHERE inhparent = found OR inhrelid = found) THEN
            RETURN 'family';
        END IF;
        EXECUTE format('DROP TRIGGER IF EXISTS holdfast_fence ON %s', found);
        EXECUTE format(
            'CREATE TRIGGER holdfast_fence BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s'
            ' FOR EACH STATEMENT EXECUTE FUNCTION holdfast_fencing.require_token(%L, %L)',
            found, ',' || encode(convert_to(guarded, 'UTF8'), 'hex') || ',', guarded);
        EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER holdfast_fence', found);
        RETURN 'done';
    END
    $protect$;
{_PRESENT}
END
$install$"""  # noqa: S608 - our own texts

_PRESENTED: Final = """\
SELECT holdfast_fencing.present(
    :resource, :source, CAST(:token AS bigint), :nonce, :peers, :purpose) AS transaction"""

_MOVE = """\
INSERT INTO holdfast_fencing.fence AS stored (resource, source, token, updated_at)
VALUES (:resource, :source, 0, transaction_timestamp())
ON CONFLICT (resource) DO UPDATE SET
    source = excluded.source, token = 0, nonce = '', peers = '',
    updated_at = excluded.updated_at
WHERE stored.source <> excluded.source"""

_SELECT = "SELECT token, source, nonce, peers FROM holdfast_fencing.fence WHERE resource = :resource"
_MARKS = """\
SELECT token, source, nonce, peers, resource,
    to_char(updated_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS changed
FROM holdfast_fencing.fence ORDER BY resource"""
_PRUNE = f"""\
DELETE FROM holdfast_fencing.fence
WHERE updated_at < clock_timestamp() - {_REFRESHED}
    - make_interval(secs => CAST(:seconds AS double precision))"""  # noqa: S608 - our own text
_SAME_TRANSACTION = """\
SELECT coalesce(CAST(pg_current_xact_id_if_assigned() AS text) = CAST(:transaction AS text), false) AS same"""
_PROTECT = "SELECT holdfast_fencing.protect(CAST(:target AS text), CAST(:resource AS text)) AS outcome"
_UNPROTECT = "SELECT holdfast_fencing.unprotect(CAST(:target AS text)) AS outcome"


class PostgresqlDialect(CommonDialect):
    """The texts. ``dialects.SqlDialect``."""

    name = "PostgreSQL"
    definitions_commit = False
    counts_matches = True
    row_lock = " FOR UPDATE"
    reported_seal: str | None = _SEAL
    how_to_begin = 'execute "BEGIN" (or leave autocommit mode)'
    # Presenting has changed or locked a row, which gave the transaction its number.
    ask_whether_it_commits_at_once: Statement | None = Statement(
        "SELECT pg_current_xact_id_if_assigned() IS NULL AS at_once"
    )

    def install(self) -> Plan[None]:
        yield Statement(_INSTALL)

    def upsert(self, resource: str, mark: Mark, purpose: Purpose) -> Statement:
        values: dict[str, object] = {
            "resource": resource,
            "source": mark.source,
            "token": mark.token,
            "nonce": mark.nonce,
            "peers": encode_peers(mark.peers),
            "purpose": int(purpose),
        }
        return Statement(_PRESENTED, values, is_short=True)

    def has_passed(self, result: Result) -> bool | None:
        return result.rows[0][0] is not None

    def select(self, resource: str) -> Statement:
        return Statement(_SELECT, {"resource": resource})

    # Presenting has locked the row, and fails where it is not what the snapshot shows.
    select_locked = select

    def marks(self) -> Statement:
        return Statement(_MARKS)

    def move(self, resource: str, source: str) -> Statement:
        return Statement(_MOVE, {"resource": resource, "source": source})

    def prune(self, older_than_seconds: float) -> Statement:
        return Statement(_PRUNE, {"seconds": older_than_seconds})

    def set_seal(self) -> Statement | None:
        return None  # presenting has set it, and returned the transaction's number

    def check_seal(self, presented: Result) -> Statement:
        return Statement(_SAME_TRANSACTION, {"transaction": presented.rows[0][0]})

    def protect(self, table: TableName, resource: str) -> Plan[None]:
        result: Result = yield Statement(_PROTECT, {"target": table.quoted(self.quote), "resource": resource})
        _check_outcome(table, result)

    def unprotect(self, table: TableName) -> Plan[None]:
        result: Result = yield Statement(_UNPROTECT, {"target": table.quoted(self.quote)})
        _check_outcome(table, result)

    def is_not_installed(self, error: BaseException) -> bool:
        missing = {"42P01", "42883", "3F000", "42703"}
        return sqlstate(error) in missing and "holdfast_fencing" in str(error)

    def is_seal_missing(self, error: BaseException) -> bool:
        return False

    def is_lost_race(self, error: BaseException) -> bool:
        return sqlstate(error) == "40001"

    def is_duplicate(self, error: BaseException) -> bool:
        return sqlstate(error) == "23505"

    def explain(self, error: BaseException) -> str | None:
        return _NOTES.get(sqlstate(error))


def _check_outcome(table: TableName, result: Result) -> None:
    outcome = result.rows[0][0]
    if outcome == "done":
        return
    if outcome == "missing":
        raise InvalidArgument(f"there is no table {str(table)!r} in this database; nothing was changed")
    if outcome == "no table":
        raise InvalidArgument(
            f"{str(table)!r} is not an ordinary table (a view, a temporary, foreign or partitioned one):"
            " its writes cannot be guarded by a trigger of its own. Protect the tables behind it"
        )
    if outcome == "family":
        raise Unsupported(
            f"{str(table)!r} inherits, is inherited from, or is a partition: a statement on one table of"
            " such a family does not fire the triggers of another. Guard its writers by fencing.enforce"
        )
    raise HoldfastError(f"holdfast_fencing.protect answered {outcome!r}")


_NOTES = {
    "40001": (
        "holdfast: another transaction changed what this one relies on, and PostgreSQL refused this one;"
        " nothing was written. Roll back and run the whole transaction again: if a newer holder has presented"
        " its token meanwhile, that is answered by StaleToken."
    ),
    "40P01": "holdfast: a deadlock, and this transaction was chosen. Roll back and run it again as a whole.",
    "55P03": (
        "holdfast: another transaction holds the guard of this resource, for longer than lock_timeout; the"
        " token was not checked. Roll back and run the whole transaction again."
    ),
    "42501": (
        "holdfast: this role may not use the guard. Its owner grants it: GRANT USAGE ON SCHEMA"
        " holdfast_fencing and GRANT SELECT, INSERT, UPDATE ON holdfast_fencing.fence TO the role (and"
        " EXECUTE on its functions, if PUBLIC does not have it). The role that"
        " installs it needs CREATE on the database."
    ),
    "25006": "holdfast: this transaction is read-only; the guard has to write its row.",
}
