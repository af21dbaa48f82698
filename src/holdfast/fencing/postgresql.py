"""The guard in PostgreSQL (13 and later): a schema of its own with a table and three functions. Texts only.

``_UPSERT`` is the table of ``rule`` written as SQL; a differential test holds the two together.

In a schema of its own, and always named with it, so that neither ``search_path`` nor a temporary table can
put another table in its place: two clients that see two guards would be guarded by none.

Presenting updates the row that is there by a plain UPDATE, which takes half the time of an upsert; only where
that finds no row that lets the mark pass, the upsert follows: for the first mark of a resource, and for a
refusal.

A transaction that has presented its token for writing notes the resource in a setting that lasts as long as
the transaction (and no longer than a savepoint that is rolled back), behind the transaction's own number. The
triggers of protected tables look for it in their WHEN clause, so that who has presented does not even call a
function.
"""

from __future__ import annotations

from ..errors import HoldfastError, InvalidArgument, Unsupported
from .dialects import CommonDialect, TableName, encode_peers, hexadecimal, sqlstate
from .plans import Plan, Result, Statement
from .rule import Mark

__all__ = ["PostgresqlDialect"]

_INSTALL = """\
DO $install$
BEGIN
    PERFORM pg_advisory_xact_lock(7525358331742);
    IF to_regclass('holdfast_fencing.fence') IS NOT NULL THEN
        RETURN;
    END IF;
    CREATE SCHEMA IF NOT EXISTS holdfast_fencing;
    CREATE TABLE holdfast_fencing.fence (
        resource     text COLLATE "C" PRIMARY KEY,
        source       text        NOT NULL DEFAULT '',
        token        bigint      NOT NULL CHECK (token >= 0),
        nonce        text        NOT NULL DEFAULT '',
        peers        text        NOT NULL DEFAULT '',
        updated_at   timestamptz NOT NULL
    ) WITH (fillfactor = 50);
    CREATE FUNCTION holdfast_fencing.require_token() RETURNS trigger LANGUAGE plpgsql AS $require$
    BEGIN
        RAISE EXCEPTION USING ERRCODE = 'integrity_constraint_violation', MESSAGE = format(
            'table %I.%I is protected by fencing tokens of "%s", and this transaction has presented none:'
            ' call fencing.enforce first in the same transaction',
            TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_ARGV[0]);
    END
    $require$;
    CREATE FUNCTION holdfast_fencing.unprotect(target text) RETURNS text LANGUAGE plpgsql AS $unprotect$
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
    CREATE FUNCTION holdfast_fencing.protect(target text, guarded text) RETURNS text
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
            ' FOR EACH STATEMENT WHEN (NOT coalesce('
            ' starts_with(current_setting(''holdfast_fencing.presented'', true),'
            ' pg_current_xact_id_if_assigned()::text || '','')'
            ' AND strpos(current_setting(''holdfast_fencing.presented'', true), %L) > 0, false))'
            ' EXECUTE FUNCTION holdfast_fencing.require_token(%L)',
            found, ',' || encode(convert_to(guarded, 'UTF8'), 'hex') || ',', guarded);
        EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER holdfast_fence', found);
        RETURN 'done';
    END
    $protect$;
END
$install$"""

_PASSES = """\
(CAST(:source AS text) = '' OR stored.source = '' OR :source = stored.source)
  AND CASE WHEN CAST(:token AS bigint) > stored.token THEN true
           WHEN :token < stored.token
           THEN strpos(stored.peers, ',' || CAST(:token AS text) || ',') > 0
           ELSE CAST(:nonce AS text) = '' OR stored.nonce = '' OR :nonce = stored.nonce END"""

_SET = """\
    source = CASE WHEN CAST(:source AS text) <> '' THEN :source ELSE stored.source END,
    token  = greatest(CAST(:token AS bigint), stored.token),
    nonce  = CASE WHEN :token > stored.token OR (:token = stored.token AND stored.nonce = '')
                  THEN CAST(:nonce AS text) ELSE stored.nonce END,
    peers  = CASE WHEN :token > stored.token
                    OR (:token = stored.token AND stored.nonce = '' AND CAST(:nonce AS text) <> '')
                  THEN CAST(:peers AS text) ELSE stored.peers END,
    updated_at = transaction_timestamp()"""

_RETURNING = "RETURNING CAST(pg_current_xact_id() AS text) AS transaction"
_NOTED = """,
    set_config('holdfast_fencing.presented',
        CASE WHEN NOT starts_with(
                    coalesce(current_setting('holdfast_fencing.presented', true), ''),
                    CAST(pg_current_xact_id() AS text) || ',')
             THEN CAST(pg_current_xact_id() AS text) || ',' || CAST(:noted AS text) || ','
             WHEN strpos(current_setting('holdfast_fencing.presented'),
                         ',' || CAST(:noted AS text) || ',') > 0
             THEN current_setting('holdfast_fencing.presented')
             ELSE current_setting('holdfast_fencing.presented') || CAST(:noted AS text) || ',' END,
        true) AS noted"""

_UPDATE = f"""\
UPDATE holdfast_fencing.fence AS stored SET
{_SET}
WHERE stored.resource = :resource AND {_PASSES}
{_RETURNING}"""  # noqa: S608 - our own texts

# ON CONFLICT DO UPDATE locks the row also where its WHERE does not hold, until the transaction ends. Under
# REPEATABLE READ and SERIALIZABLE it fails (40001) if the row changed after the transaction's snapshot: so a
# holder whose snapshot is older than the hand-over is refused by the database itself.
_UPSERT = f"""\
INSERT INTO holdfast_fencing.fence AS stored (resource, source, token, nonce, peers, updated_at)
VALUES (:resource, :source, :token, :nonce, :peers, transaction_timestamp())
ON CONFLICT (resource) DO UPDATE SET
{_SET}
WHERE {_PASSES}
{_RETURNING}"""  # noqa: S608 - our own texts

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
_PRUNE = """\
DELETE FROM holdfast_fencing.fence
WHERE updated_at < clock_timestamp() - make_interval(secs => CAST(:seconds AS double precision))"""
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
    how_to_begin = 'execute "BEGIN" (or leave autocommit mode)'

    def install(self) -> Plan[None]:
        yield Statement(_INSTALL)

    def update(self, resource: str, mark: Mark, guards_writes: bool = False) -> Statement | None:
        return _presenting(_UPDATE, resource, mark, guards_writes)

    def upsert(self, resource: str, mark: Mark, guards_writes: bool = False) -> Statement:
        return _presenting(_UPSERT, resource, mark, guards_writes)

    def has_passed(self, result: Result) -> bool | None:
        return bool(result.rows)

    def select(self, resource: str) -> Statement:
        return Statement(_SELECT, {"resource": resource})

    # The upsert has locked the row, and fails where it is not what the snapshot shows.
    select_locked = select

    def marks(self) -> Statement:
        return Statement(_MARKS)

    def move(self, resource: str, source: str) -> Statement:
        return Statement(_MOVE, {"resource": resource, "source": source})

    def prune(self, older_than_seconds: float) -> Statement:
        return Statement(_PRUNE, {"seconds": older_than_seconds})

    def set_seal(self) -> Statement | None:
        return None  # the transaction's own number is one, and the upsert has returned it

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


def _presenting(text: str, resource: str, mark: Mark, guards_writes: bool) -> Statement:
    values = {
        "resource": resource,
        "source": mark.source,
        "token": mark.token,
        "nonce": mark.nonce,
        "peers": encode_peers(mark.peers),
    }
    if not guards_writes:
        return Statement(text, values)
    return Statement(text + _NOTED, {**values, "noted": hexadecimal(resource)})


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
        " holdfast_fencing and GRANT SELECT, INSERT, UPDATE ON holdfast_fencing.fence TO the role. (Whoever"
        " installs it needs CREATE on the database.)"
    ),
    "25006": "holdfast: this transaction is read-only; the guard has to write its row.",
}
