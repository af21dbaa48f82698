-- The tables and functions of a store, version 1. Functions have the version in their names, so that older
-- programs still find theirs while a fleet is upgraded.
--
-- A writer inserts events and nothing else: the primary key decides between two who append the same version,
-- and no writer waits for one of another stream. The order of all events is made afterwards, by readers:
--
-- `order_1` gives positions to the events that are committed now and were not when it last ran. It knows these
-- by the two snapshots: an event has the number of its transaction, and a snapshot says of each number whether
-- that transaction was committed. So a transaction that commits late is found when it commits, whatever its
-- number is; and one that stays open holds up nothing, for nobody waits for it.
--
-- Among the events of one run, `id` decides: a writer who saw another's event has a larger one.

CREATE SCHEMA IF NOT EXISTS @schema@;

CREATE TABLE @schema@.event (
    id      bigint GENERATED ALWAYS AS IDENTITY,
    xid     xid8 NOT NULL DEFAULT pg_current_xact_id(),
    stream  text COLLATE "C" NOT NULL,
    version bigint NOT NULL CHECK (version > 0),
    data    json NOT NULL,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (stream, version)
);
CREATE INDEX event_xid ON @schema@.event (xid);

CREATE TABLE @schema@.ordered (
    position bigint PRIMARY KEY,
    stream   text COLLATE "C" NOT NULL,
    version  bigint NOT NULL
);

-- One row: how far `order_1` came. A new row replaces it each time, and is found from the end of the index:
-- while any transaction of the database is open, the server keeps every row that was.
CREATE TABLE @schema@.progress (
    newest bigint PRIMARY KEY,
    seen   pg_snapshot NOT NULL,
    server text NOT NULL            -- numbers of transactions mean something on this server alone
);
INSERT INTO @schema@.progress SELECT 0, '1:1:', system_identifier::text FROM pg_control_system();

CREATE TABLE @schema@.snapshot (
    stream  text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,
    data    json NOT NULL,
    at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE @schema@.checkpoint (
    projection text COLLATE "C" PRIMARY KEY,
    position   bigint NOT NULL
) WITH (fillfactor = 50);

-- Returns the version that the stream has now, or the one that was found instead of the expected one.
CREATE FUNCTION @schema@.append_1(
    to_stream text, events json, expected bigint, OUT is_appended boolean, OUT at_version bigint
) LANGUAGE plpgsql AS $append$
DECLARE
    number_of_events integer := json_array_length(events);
BEGIN
    is_appended := false;
    FOR attempt IN 1..50 LOOP
        at_version := coalesce(
            (SELECT e.version FROM @schema@.event e WHERE e.stream = to_stream ORDER BY e.version DESC LIMIT 1), 0);
        IF at_version <> expected THEN
            RETURN;
        END IF;
        -- Waits for another transaction that has inserted the same version.
        INSERT INTO @schema@.event (stream, version, data) VALUES (to_stream, at_version + 1, events -> 0)
        ON CONFLICT DO NOTHING;
        is_appended := FOUND;
        EXIT WHEN is_appended;
    END LOOP;
    IF NOT is_appended THEN
        RETURN;
    END IF;
    -- The first is ours, so nobody else can have a later one.
    IF number_of_events > 1 THEN
        INSERT INTO @schema@.event (stream, version, data)
        SELECT to_stream, append_1.at_version + each.number, each.value
        FROM json_array_elements(events) WITH ORDINALITY AS each (value, number)
        WHERE each.number > 1 ORDER BY each.number;
    END IF;
    at_version := at_version + number_of_events;
    -- A notification makes commits wait for each other, so there is none unless a subscriber waits: it holds
    -- this lock meanwhile.
    IF pg_try_advisory_lock(@waiting@, hashtext('@schema@')) THEN
        PERFORM pg_advisory_unlock(@waiting@, hashtext('@schema@'));
    ELSE
        PERFORM pg_notify('@schema@', '');
    END IF;
END
$append$;

-- Returns the newest position.
CREATE FUNCTION @schema@.order_1() RETURNS bigint LANGUAGE plpgsql SET enable_seqscan TO off AS $order$
DECLARE
    progress @schema@.progress;
    this_server text := (SELECT system_identifier::text FROM pg_control_system());
    seen_now pg_snapshot;
    added bigint;
BEGIN
    SELECT p.* INTO progress FROM @schema@.progress p ORDER BY p.newest DESC LIMIT 1;
    IF progress.server = this_server AND NOT EXISTS (
        SELECT FROM @schema@.event e WHERE e.xid >= pg_snapshot_xmax(progress.seen)
    ) AND NOT EXISTS (
        SELECT FROM pg_snapshot_xip(progress.seen) AS open (xid) JOIN @schema@.event e ON e.xid = open.xid
    ) THEN
        RETURN progress.newest;
    END IF;

    -- Released after the positions have become visible: that is the order in which a transaction ends.
    PERFORM pg_advisory_xact_lock(@ordering@, hashtext('@schema@'));
    SELECT p.* INTO progress FROM @schema@.progress p ORDER BY p.newest DESC LIMIT 1;
    seen_now := pg_current_snapshot();
    IF progress.server <> this_server THEN
        -- Restored from a dump: no transaction of before is open, and their numbers are not to be compared.
        UPDATE @schema@.event SET xid = '1' WHERE xid <> '1';
        INSERT INTO @schema@.ordered
        SELECT progress.newest + row_number() OVER (ORDER BY e.id), e.stream, e.version FROM @schema@.event e
        WHERE e.xid = '1' AND NOT EXISTS (
            SELECT FROM @schema@.ordered o WHERE o.stream = e.stream AND o.version = e.version);
    ELSE
        INSERT INTO @schema@.ordered
        SELECT progress.newest + row_number() OVER (ORDER BY new.id), new.stream, new.version
        FROM (
            SELECT e.* FROM @schema@.event e WHERE e.xid >= pg_snapshot_xmax(progress.seen)
            UNION ALL
            SELECT e.* FROM pg_snapshot_xip(progress.seen) AS open (xid) JOIN @schema@.event e ON e.xid = open.xid
        ) AS new
        WHERE pg_visible_in_snapshot(new.xid, seen_now);
    END IF;
    GET DIAGNOSTICS added = ROW_COUNT;
    IF added = 0 AND progress.server = this_server THEN
        RETURN progress.newest;
    END IF;
    -- First the old row: where nothing was added, the new one has the same number.
    DELETE FROM @schema@.progress p WHERE p.newest = progress.newest;
    INSERT INTO @schema@.progress VALUES (progress.newest + added, seen_now, this_server);
    RETURN progress.newest + added;
END
$order$;
