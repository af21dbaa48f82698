-- The tables: one row for each name, with everything that a rule needs to know about it.
--
-- Names are bytes: a name may hold any character, and the database any encoding. Every other text is ASCII:
-- texts of users (owners, metadata, reasons) are stored as JSON escapes. Times are seconds since 1970 on the
-- server's clock. An empty list is NULL, so that the usual row is short and cheap to test.
--
-- This file may be run again, and over an older version: it only ever adds.

CREATE SCHEMA IF NOT EXISTS @schema@;

DO $do$
BEGIN
    IF to_regtype('@schema@.holder') IS NULL THEN
        CREATE TYPE @schema@.holder AS (
            nonce text, client text, owner text, mode text, token bigint, since float8, expires_at float8,
            ttl float8, renews boolean, until float8, metadata text
        );
    END IF;
    IF to_regtype('@schema@.waiter') IS NULL THEN
        CREATE TYPE @schema@.waiter AS (
            nonce text, client text, owner text, mode text, since float8, expires_at float8, turn_at float8
        );
    END IF;
    IF to_regtype('@schema@.ended') IS NULL THEN
        CREATE TYPE @schema@.ended AS (nonce text, reason text, note text, forget_at float8);
    END IF;
    IF to_regtype('@schema@.watcher') IS NULL THEN
        CREATE TYPE @schema@.watcher AS (nonce text, client text, expires_at float8);
    END IF;
END
$do$;

CREATE TABLE IF NOT EXISTS @schema@.locks (
    namespace  bytea NOT NULL,
    name       bytea NOT NULL,
    version    bigint NOT NULL,     -- counts changes: a change is stored only over the version it was decided on. It
                                    -- begins with the time, so a row that was deleted and made anew repeats none
    kind       text,
    token      bigint NOT NULL,
    holders    @schema@.holder[],
    queue      @schema@.waiter[],
    permits    integer NOT NULL,    -- a semaphore's current limit, and its declared one
    declared   integer NOT NULL,
    ended      @schema@.ended[],
    watchers   @schema@.watcher[],
    next_at    float8,              -- when time alone next changes holders or queue
    changed_at float8 NOT NULL,
    PRIMARY KEY (namespace, name)
) WITH (fillfactor = 50);           -- room for the next version on the same page, so that no index entry is written

CREATE TABLE IF NOT EXISTS @schema@.values (
    namespace    bytea NOT NULL,
    name         bytea NOT NULL,
    data         bytea NOT NULL,
    token        bigint NOT NULL,
    forget_at_us bigint NOT NULL,
    PRIMARY KEY (namespace, name)
);

CREATE TABLE IF NOT EXISTS @schema@.meta (
    the_only boolean PRIMARY KEY DEFAULT true CHECK (the_only),
    source   text NOT NULL DEFAULT gen_random_uuid()::text,
    floor    bigint NOT NULL DEFAULT 0      -- at least the largest token of the deleted rows
);
INSERT INTO @schema@.meta DEFAULT VALUES ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS @schema@.versions (
    version      integer PRIMARY KEY,
    installed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The types of values that functions pass to each other.

DO $do$
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_catalog.pg_attribute
        WHERE attrelid = to_regclass('@schema@.ask_1') AND attname = 'seal' AND NOT attisdropped
    ) THEN
        -- A request; fields that its kind does not have are NULL.
        DROP TYPE IF EXISTS @schema@.ask_1 CASCADE;
        CREATE TYPE @schema@.ask_1 AS (
            op text, nonce text, client text, owner text, kind text, mode text, ttl float8, wait boolean,
            fair boolean, renews boolean, max_hold float8, permits integer, metadata text, linger float8,
            reader_nonce text, token bigint, reason text, data bytea, retention float8, declared integer,
            seal text
        );
    END IF;
    IF NOT EXISTS (
        SELECT FROM pg_catalog.pg_attribute
        WHERE attrelid = to_regclass('@schema@.step_1') AND attname = 'record' AND NOT attisdropped
    ) THEN
        -- The outcome of a request: the record and the reply. Dropping the table drops a part of this type.
        DROP TYPE IF EXISTS @schema@.step_1 CASCADE;
        CREATE TYPE @schema@.step_1 AS (
            record @schema@.locks,
            reply text,             -- NULL: the place in the queue, which is known once turns are assigned
            changed boolean,
            news boolean,           -- watchers are notified even if their view of the record is the same
            victims @schema@.holder[]
        );
    END IF;
END
$do$;
