"""The statements of the queue, written once; what differs between PostgreSQL and SQLite is filled in.

Values are bound, ``:like_this``; only names of our own tables are part of the texts. Every time is the
database's own, so that the clocks of the workers decide nothing.

**The claim** walks the partial index of ready jobs of one kind, from the best one on, and passes over rows
that another transaction has locked. What it costs depends on neither the jobs that are over nor those that
wait. The rows are picked in a subquery that PostgreSQL runs first and once, and changed by their primary
keys: a plan with a scan of the table is never the cheaper one, whatever the statistics say.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ..fencing.dialects import TableState

__all__ = ["JOB_COLUMNS", "POSTGRESQL", "SQLITE", "Session", "Texts", "postgresql_texts", "sqlite_texts"]

POSTGRESQL: Final = "postgresql"
SQLITE: Final = "sqlite"

JOB_COLUMNS: Final = (
    "id, kind, key, payload, state, priority, attempt, max_attempts, token, run_at, lane, backoff_first,"
    " backoff_maximum, lease_seconds, lease_until, owner, cancel_requested, result, error, created_at,"
    " started_at, ended_at"
)

_OCCUPIES: Final = "lane > 0 AND (state = 'ready' OR state = 'running' OR state = 'scheduled' AND lane = 2)"
"""As in the index ``queue_jobs_lane``: an ordered job keeps its place in the lane until its time comes."""

_PUT: Final = """
INSERT INTO {jobs} (namespace, kind, key, lane, lane_rank, uniqueness, holds_key, state, priority, run_at,
                    payload, max_attempts, backoff_first, backoff_maximum, created_at)
SELECT namespace, kind, key, lane, CASE lane WHEN 2 THEN 0 ELSE -priority END, uniqueness,
       CASE WHEN uniqueness > 0 THEN 1 ELSE 0 END,
       CASE WHEN lane <> 2 AND run_at > created_at THEN 'scheduled'
            WHEN lane > 0 AND (SELECT count(*) FROM {jobs} j
                               WHERE j.namespace = n.namespace AND j.kind = n.kind AND j.key = n.key
                                 AND {occupies_j}) >= capacity THEN 'blocked'
            WHEN run_at > created_at THEN 'scheduled'
            ELSE 'ready' END,
       priority, run_at, payload, max_attempts, backoff_first, backoff_maximum, created_at
FROM (SELECT namespace, kind, key, uniqueness, priority, payload, max_attempts, backoff_first,
             backoff_maximum, created_at, COALESCE(at_time, created_at + delay) AS run_at,
             CASE WHEN asked_lane > 0 THEN asked_lane WHEN key_concurrency IS NULL THEN 0 ELSE 3 END AS lane,
             CASE WHEN asked_lane > 0 THEN 1 ELSE key_concurrency END AS capacity
      FROM (SELECT CAST(:namespace AS text) AS namespace, {each_kind} AS kind, {each_key} AS key,
                   {each_asked_lane} AS asked_lane, {each_uniqueness} AS uniqueness,
                   {each_priority} AS priority, {each_at} AS at_time, {each_delay} AS delay, {each_payload}
                   AS payload, {each_max_attempts} AS max_attempts, {each_backoff_first} AS backoff_first,
                   {each_backoff_maximum} AS backoff_maximum, {now} AS created_at,
                   CASE WHEN {each_key} IS NULL OR {each_uniqueness} = 2 THEN NULL ELSE
                        (SELECT k.key_concurrency FROM {kinds} k
                         WHERE k.namespace = :namespace AND k.kind = {each_kind}) END AS key_concurrency
            FROM {given_jobs}) AS given) AS n
WHERE true
ON CONFLICT (namespace, kind, key) WHERE holds_key = 1 DO NOTHING
RETURNING id
"""

_CLAIM: Final = """
UPDATE {jobs} SET state = 'running', attempt = attempt + 1, token = token + 1, owner = :owner,
    lease_seconds = :lease, lease_until = {now} + :lease, started_at = {now}, cancel_requested = 0,
    holds_key = CASE uniqueness WHEN 2 THEN holds_key ELSE 0 END
WHERE id {in_open}
    SELECT j.id FROM {jobs} j
    WHERE j.namespace = :namespace AND j.kind = :kind AND j.state = 'ready' AND j.priority >= :least_priority
      AND NOT EXISTS (SELECT 1 FROM {kinds} k WHERE k.namespace = :namespace AND k.kind = :kind
                      AND (k.paused = 1 OR (k.concurrency IS NOT NULL AND :may_be_limited = 0)))
    ORDER BY j.priority DESC, j.id LIMIT :count {skip_locked}
{in_close}
RETURNING {columns}
"""

_READY_KINDS: Final = """
WITH RECURSIVE found(value) AS (
    SELECT (SELECT j.kind FROM {jobs} j WHERE j.namespace = :namespace AND j.state = 'ready'
            ORDER BY j.kind LIMIT 1)
    UNION ALL
    SELECT (SELECT j.kind FROM {jobs} j
            WHERE j.namespace = :namespace AND j.state = 'ready' AND j.kind > found.value
            ORDER BY j.kind LIMIT 1)
    FROM found WHERE found.value IS NOT NULL
)
"""
"""Every kind that has a ready job, by one step of the index for each."""

_HEADS: Final = """
SELECT w.value, j.priority, s.concurrency
FROM {wanted} w
JOIN {jobs} j ON j.id = (SELECT r.id FROM {jobs} r
                         WHERE r.namespace = :namespace AND r.kind = w.value AND r.state = 'ready'
                         ORDER BY r.priority DESC, r.id LIMIT 1)
LEFT JOIN {kinds} s ON s.namespace = :namespace AND s.kind = w.value
WHERE w.value IS NOT NULL AND COALESCE(s.paused, 0) = 0
ORDER BY j.priority DESC, j.id
"""

_NEXT_EVENT: Final = """
SELECT {now},
    (SELECT run_at FROM {jobs} WHERE namespace = :namespace AND state = 'scheduled' ORDER BY run_at LIMIT 1),
    (SELECT lease_until FROM {jobs} WHERE namespace = :namespace AND state = 'running'
     ORDER BY lease_until LIMIT 1),
    (SELECT next_at FROM {periodic} WHERE namespace = :namespace ORDER BY next_at LIMIT 1)
"""

_DUE: Final = """
SELECT id, kind, key, lane FROM {jobs}
WHERE namespace = :namespace AND state = 'scheduled' AND run_at <= {now} ORDER BY run_at LIMIT 500
"""

_EXPIRED: Final = """
SELECT id, kind, key, lane FROM {jobs}
WHERE namespace = :namespace AND state = 'running' AND lease_until <= {now} ORDER BY lease_until LIMIT 500
"""

_MAKE_READY: Final = """
UPDATE {jobs} SET state = CASE WHEN lane = 1 OR lane = 3 THEN 'blocked' ELSE 'ready' END
WHERE id {in_open}
    SELECT id FROM {jobs} WHERE id IN (SELECT {each_id} FROM {given_ids})
      AND state = 'scheduled' AND run_at <= {now} ORDER BY id {skip_locked_all}
{in_close}
"""

_TAKE_BACK: Final = """
UPDATE {jobs} SET
    state = CASE WHEN cancel_requested = 1 THEN 'cancelled'
                 WHEN attempt >= max_attempts THEN 'dead' ELSE 'ready' END,
    holds_key = CASE WHEN cancel_requested = 1 OR attempt >= max_attempts THEN 0 ELSE holds_key END,
    ended_at = CASE WHEN cancel_requested = 1 OR attempt >= max_attempts THEN {now} ELSE NULL END,
    error = 'the lease of the claimant (' || owner || ') expired',
    owner = NULL, lease_until = NULL
WHERE id {in_open}
    SELECT id FROM {jobs} WHERE id IN (SELECT {each_id} FROM {given_ids})
      AND state = 'running' AND lease_until <= {now} ORDER BY id {skip_locked_all}
{in_close}
"""

_PROMOTE: Final = """
UPDATE {jobs} SET state = CASE WHEN run_at > {now} THEN 'scheduled' ELSE 'ready' END
WHERE id = (SELECT b.id FROM {jobs} b
            WHERE b.namespace = :namespace AND b.kind = :kind AND b.key = :key AND b.state = 'blocked'
            ORDER BY b.lane_rank, b.id LIMIT 1)
  AND (SELECT count(*) FROM {jobs} j
       WHERE j.namespace = :namespace AND j.kind = :kind AND j.key = :key AND {occupies_j})
    < CASE lane WHEN 3 THEN COALESCE((SELECT k.key_concurrency FROM {kinds} k
                                      WHERE k.namespace = :namespace AND k.kind = :kind), 1000000) ELSE 1 END
RETURNING lane
"""

_PRESENT: Final = "id = :id AND token = :token AND state = 'running'"
"""Only the present claimant: a claim that came later has a larger token."""

_FINISH: Final = """
UPDATE {jobs} SET state = 'finished', holds_key = 0, result = :result, error = NULL, ended_at = {now},
    lease_until = NULL, owner = NULL
WHERE {present}
RETURNING state
"""

_FAIL: Final = """
UPDATE {jobs} SET
    state = CASE WHEN cancel_requested = 1 THEN 'cancelled'
                 WHEN :is_final = 1 OR attempt >= max_attempts THEN 'dead' ELSE 'scheduled' END,
    holds_key = CASE WHEN cancel_requested = 1 OR :is_final = 1 OR attempt >= max_attempts THEN 0
                     ELSE holds_key END,
    ended_at = CASE WHEN cancel_requested = 1 OR :is_final = 1 OR attempt >= max_attempts THEN {now}
                    ELSE NULL END,
    run_at = {now} + :delay, error = :error, lease_until = NULL, owner = NULL
WHERE {present}
RETURNING state
"""

_FINISH_MANY: Final = """
UPDATE {jobs} SET state = 'finished', holds_key = 0, result = c.result, error = NULL, ended_at = {now},
    lease_until = NULL, owner = NULL
FROM (SELECT {each_claim_id} AS claim_id, {each_claim_token} AS claim_token,
             {each_claim_result} AS result FROM {given_claims}) AS c
WHERE id = claim_id AND token = claim_token AND state = 'running'
RETURNING id
"""

_EXTEND: Final = """
UPDATE {jobs} SET lease_until = {now} + CAST(:lease AS {float}), lease_seconds = CAST(:lease AS {float})
WHERE {present}
RETURNING cancel_requested
"""

_EXTEND_MANY: Final = """
UPDATE {jobs} SET lease_until = {now} + lease_seconds
WHERE id {in_open}
    SELECT j.id FROM {jobs} j
    JOIN (SELECT {each_claim_id} AS id, {each_claim_token} AS token FROM {given_claims}) c
      ON c.id = j.id AND c.token = j.token
    WHERE j.state = 'running' ORDER BY j.id {skip_locked}
{in_close}
RETURNING id, cancel_requested
"""

_RELEASE: Final = """
UPDATE {jobs} SET
    state = CASE WHEN cancel_requested = 1 THEN 'cancelled' ELSE 'ready' END,
    holds_key = CASE WHEN cancel_requested = 1 THEN 0 ELSE holds_key END,
    ended_at = CASE WHEN cancel_requested = 1 THEN {now} ELSE NULL END,
    attempt = attempt - 1, lease_until = NULL, owner = NULL
WHERE {present}
RETURNING state
"""

_CANCEL: Final = """
UPDATE {jobs} SET
    cancel_requested = 1,
    state = CASE WHEN state = 'running' THEN 'running' ELSE 'cancelled' END,
    holds_key = CASE WHEN state = 'running' THEN holds_key ELSE 0 END,
    ended_at = CASE WHEN state = 'running' THEN NULL ELSE {now} END
WHERE namespace = :namespace AND id = :id AND ended_at IS NULL
RETURNING state
"""

_RETRY: Final = """
UPDATE {jobs} SET
    state = CASE WHEN lane > 0 THEN 'blocked' ELSE 'ready' END, attempt = 0, run_at = {now}, ended_at = NULL,
    cancel_requested = 0, holds_key = CASE uniqueness WHEN 0 THEN 0 ELSE 1 END
WHERE namespace = :namespace AND id = :id AND state IN ('dead', 'cancelled')
RETURNING lane
"""

_PRUNE: Final = """
DELETE FROM {jobs} WHERE id {in_open}
    SELECT id FROM {jobs} WHERE namespace = :namespace AND state = :state AND ended_at IS NOT NULL
      AND ended_at <= {now} - :older_than ORDER BY ended_at LIMIT 1000 {skip_locked_all}
{in_close}
"""

_SET_KIND: Final = """
INSERT INTO {kinds} AS stored (namespace, kind, paused, concurrency, key_concurrency)
VALUES (:namespace, :kind, COALESCE(CAST(:paused AS integer), 0), CAST(:concurrency AS integer),
        CAST(:key_concurrency AS integer))
ON CONFLICT (namespace, kind) DO UPDATE SET
    paused = COALESCE(CAST(:paused AS integer), stored.paused),
    concurrency = CASE WHEN :sets_limits = 1 THEN excluded.concurrency ELSE stored.concurrency END,
    key_concurrency = CASE WHEN :sets_limits = 1 THEN excluded.key_concurrency ELSE stored.key_concurrency END
"""

_JOBS: Final = """
SELECT {columns} FROM {jobs}
WHERE namespace = :namespace AND id > :after AND (CAST(:state AS text) IS NULL OR state = :state)
  AND (CAST(:kind AS text) IS NULL OR kind = :kind)
ORDER BY id LIMIT :count
"""

_SET_PERIODIC: Final = """
INSERT INTO {periodic} AS stored (namespace, name, kind, payload, schedule, options, next_at)
VALUES (:namespace, :name, :kind, :payload, :schedule, :options, :next_at)
ON CONFLICT (namespace, name) DO UPDATE SET
    kind = excluded.kind, payload = excluded.payload, options = excluded.options,
    next_at = CASE WHEN stored.schedule = excluded.schedule THEN stored.next_at ELSE excluded.next_at END,
    schedule = excluded.schedule
"""

_STATEMENTS: Final = {
    "put": _PUT,
    "claim": _CLAIM,
    "heads_of_given": _HEADS.replace("{wanted}", "{given_kinds}"),
    "heads_of_all": _READY_KINDS + _HEADS.replace("{wanted}", "found"),
    "next_event": _NEXT_EVENT,
    "due": _DUE,
    "expired": _EXPIRED,
    "make_ready": _MAKE_READY,
    "take_back": _TAKE_BACK,
    "promote": _PROMOTE,
    "finish": _FINISH,
    "finish_many": _FINISH_MANY,
    "fail": _FAIL,
    "extend": _EXTEND,
    "extend_many": _EXTEND_MANY,
    "release": _RELEASE,
    "cancel": _CANCEL,
    "retry": _RETRY,
    "prune": _PRUNE,
    "has_prunable": "SELECT 1 FROM {jobs} WHERE namespace = :namespace AND state = :state"
    " AND ended_at IS NOT NULL AND ended_at <= {now} - :older_than LIMIT 1",
    "set_kind": _SET_KIND,
    "jobs": _JOBS,
    "set_periodic": _SET_PERIODIC,
    "holder_of_key": "SELECT id FROM {jobs} WHERE namespace = :namespace AND kind = :kind AND key = :key"
    " AND holds_key = 1",
    "limit_of_kind": "SELECT paused, concurrency FROM {kinds} WHERE namespace = :namespace AND kind = :kind"
    " {lock_row}",
    "key_limit_of_kind": "SELECT key_concurrency FROM {kinds} WHERE namespace = :namespace AND kind = :kind",
    "running_of_kind": "SELECT count(*) FROM {jobs} WHERE namespace = :namespace AND state = 'running'"
    " AND kind = :kind",
    "blocked_lanes_of_kind": "SELECT DISTINCT key FROM {jobs} WHERE namespace = :namespace AND kind = :kind"
    " AND state = 'blocked' ORDER BY key",
    "standing": "SELECT state, token, cancel_requested FROM {jobs} WHERE id = :id",
    "lane_of": "SELECT kind, key, lane, state FROM {jobs} WHERE namespace = :namespace AND id = :id",
    "job": "SELECT {columns} FROM {jobs} WHERE namespace = :namespace AND id = :id",
    "counts": "SELECT state, count(*) FROM {jobs} WHERE namespace = :namespace"
    " AND (CAST(:kind AS text) IS NULL OR kind = :kind) GROUP BY state",
    "kinds": "SELECT kind, paused, concurrency, key_concurrency FROM {kinds} WHERE namespace = :namespace"
    " ORDER BY kind",
    "due_periodic": "SELECT name, kind, payload, schedule, options, next_at, {now} FROM {periodic}"
    " WHERE namespace = :namespace AND next_at <= {now} ORDER BY next_at LIMIT 100 {skip_locked_all}",
    "advance_periodic": "UPDATE {periodic} SET next_at = :next_at, last_at = :last_at"
    " WHERE namespace = :namespace AND name = :name AND next_at = :last_at",
    "periodic": "SELECT name, kind, payload, schedule, next_at, last_at FROM {periodic}"
    " WHERE namespace = :namespace ORDER BY name",
    "remove_periodic": "DELETE FROM {periodic} WHERE namespace = :namespace AND name = :name",
    "now": "SELECT {now}",
    "newest_version": "SELECT max(version) FROM {versions}",
    "record_version": "INSERT INTO {versions} (version) VALUES (:version) ON CONFLICT DO NOTHING",
}


@dataclass(frozen=True, slots=True)
class Texts:
    """The statements for one database, by name."""

    dialect: str
    schema: str
    has_versions: str
    begin_install: tuple[str, ...]
    lock_lane: str
    """Returns nothing, or the isolation level of the transaction, and NULL if it was not locked for that."""
    try_lock_lane: str
    """Returns whether the lane was locked. None if no other writer is possible meanwhile."""
    wake: str | None
    """Notifies claimants that listen; None: claimants poll."""
    claims_at_once: bool
    """Whether to claim without a query first. Not if a claim that finds nothing waits for the only writer."""
    _made: dict[str, str] = field(default_factory=dict)

    def __getattr__(self, name: str) -> str:
        try:
            return self._made[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True, slots=True)
class Session:
    """One connection to the queue's tables, and whose transaction it is."""

    table: TableState
    texts: Texts
    namespace: str
    is_own: bool
    """A connection of the queue's own: plans begin and commit on it. Else they leave that to its user."""
    notifies: bool = True


_FLOATS: Final = {"at", "delay", "backoff_first", "backoff_maximum"}
_INTEGERS: Final = {"asked_lane", "uniqueness", "priority", "max_attempts"}


def _pieces(prefix: str, number: str, given: str, field: str) -> dict[str, str]:
    """``given`` is a table of the JSON values in a bound array, with ``{}`` for the array's name; ``field``,
    with ``{}`` for its own, one field of such a value."""
    fields = {
        **dict.fromkeys(_FLOATS, number),
        **dict.fromkeys(_INTEGERS, "integer"),
        **dict.fromkeys(("kind", "key", "payload"), "text"),
    }
    return {
        **{f"each_{name}": f"CAST({field.format(name)} AS {kind})" for name, kind in fields.items()},
        "each_claim_id": f"CAST({field.format('id')} AS bigint)",
        "each_claim_token": f"CAST({field.format('token')} AS bigint)",
        "each_claim_result": f"CAST({field.format('result')} AS text)",
        "given_jobs": given.format("jobs") + " AS g",
        "given_claims": given.format("claims") + " AS g",
        "jobs": f"{prefix}jobs",
        "kinds": f"{prefix}kinds",
        "periodic": f"{prefix}periodic",
        "versions": f"{prefix}versions",
        "columns": JOB_COLUMNS,
        "present": _PRESENT,
        "float": number,
        "occupies_j": _OCCUPIES.replace("lane", "j.lane").replace("state", "j.state"),
    }


def _made(pieces: dict[str, str]) -> dict[str, str]:
    return {name: text.format_map(pieces).strip() for name, text in _STATEMENTS.items()}


def postgresql_texts(schema: str) -> Texts:
    """``schema`` is checked: it needs no quotes."""
    pieces = {
        **_pieces(f"{schema}.queue_", "float8", "json_array_elements(CAST(:{} AS json))", "g.value ->> '{}'"),
        # The time of the statement, not of the transaction; and stable, so that an index serves comparisons.
        "now": "CAST(extract(epoch FROM statement_timestamp()) AS float8)",
        "in_open": "= ANY (ARRAY(",
        "in_close": "))",
        "skip_locked": "FOR NO KEY UPDATE OF j SKIP LOCKED",
        "skip_locked_all": "FOR NO KEY UPDATE SKIP LOCKED",
        "lock_row": "FOR NO KEY UPDATE",
        "given_ids": "json_array_elements_text(CAST(:ids AS json)) AS g(value)",
        "each_id": "CAST(g.value AS bigint)",
        "given_kinds": "(SELECT value FROM json_array_elements_text(CAST(:kinds AS json)) AS e(value))",
    }
    made = _made(pieces)
    made["put_and_wake"] = (
        f"WITH put AS ({made['put']}) SELECT id, pg_notify(CAST(:channel AS text), '') FROM put"  # noqa: S608 - ours
    )
    return Texts(
        POSTGRESQL,
        schema,
        has_versions=f"SELECT to_regclass('{schema}.queue_versions') IS NOT NULL",
        begin_install=(
            "SET LOCAL lock_timeout = 0",
            f"SELECT pg_advisory_xact_lock(1752132708, hashtext('{schema}'))",
            "SELECT FROM pg_catalog.pg_namespace WHERE false",
            "SET LOCAL client_min_messages = warning",
        ),
        lock_lane="SELECT isolation, CASE WHEN isolation NOT IN ('repeatable read', 'serializable') THEN"
        " CAST(pg_advisory_xact_lock(hashtextextended(CAST(:lane AS text), 18)) AS text) END"
        " FROM current_setting('transaction_isolation') AS isolation",
        try_lock_lane="SELECT pg_try_advisory_xact_lock(hashtextextended(CAST(:lane AS text), 18))",
        wake="SELECT pg_notify(CAST(:channel AS text), '')",
        claims_at_once=True,
        _made=made,
    )


_BEGIN_TO_WRITE: Final = (
    "UPDATE holdfast_queue_kinds SET paused = paused WHERE namespace IS NULL AND kind = :lane"
)
"""A statement of SQLite's that finds no row makes its connection the one writer all the same."""


def sqlite_texts() -> Texts:
    pieces = {
        **_pieces("holdfast_queue_", "real", "json_each(:{})", "json_extract(g.value, '$.{}')"),
        "now": "((julianday('now') - 2440587.5) * 86400.0)",
        "in_open": "IN (",
        "in_close": ")",
        "skip_locked": "",
        "skip_locked_all": "",
        "lock_row": "",
        "given_ids": "json_each(:ids) AS g",
        "each_id": "g.value",
        "given_kinds": "(SELECT value FROM json_each(:kinds))",
    }
    return Texts(
        SQLITE,
        "main",
        has_versions="SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'holdfast_queue_versions'",
        begin_install=(),
        lock_lane=_BEGIN_TO_WRITE,
        try_lock_lane=_BEGIN_TO_WRITE,
        wake=None,
        claims_at_once=False,
        _made=_made(pieces),
    )
