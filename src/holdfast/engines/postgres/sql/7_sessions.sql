-- Session locks: the server's own advisory locks decide, and live as long as the connection that took them.
-- The tables decide nothing: they have the kind of a name, its token, and its recorded holders. Whether a
-- recorded holder still holds it is in pg_locks, so a release need not write anything.
--
-- Namespaces begin with a byte that no text has, so that the values of both engines share one table.

DO $do$
BEGIN
    IF to_regtype('@schema@.session_holder') IS NULL THEN
        CREATE TYPE @schema@.session_holder AS (
            nonce text, client text, owner text, mode text, token bigint, since float8, ttl float8,
            renews boolean, until float8, metadata text, backend integer
        );
    END IF;
END
$do$;

CREATE TABLE IF NOT EXISTS @schema@.session_names (
    namespace  bytea NOT NULL,
    name       bytea NOT NULL,
    key        bigint NOT NULL,     -- of its advisory lock
    kind       text NOT NULL,
    token      bigint NOT NULL,
    holders    @schema@.session_holder[],
    ended      @schema@.ended[],
    changed_at float8 NOT NULL,
    PRIMARY KEY (namespace, name)
) WITH (fillfactor = 50);

-- The waiters, by connection, for clients that inspect a name. A row is valid only while pg_locks has the wait,
-- too; a connection that waits for the same again finds its row.
CREATE UNLOGGED TABLE IF NOT EXISTS @schema@.session_waiters (
    backend integer PRIMARY KEY,
    key     bigint NOT NULL,
    client  text NOT NULL,
    owner   text NOT NULL,
    mode    text NOT NULL
) WITH (fillfactor = 50);

-- Behind a transaction-pooling proxy a lock would be taken on one session and released on another. So every
-- statement names the backend that it expects.
CREATE OR REPLACE FUNCTION @schema@.session_own_1(p_backend integer) RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
    IF pg_backend_pid() <> p_backend THEN
        RAISE EXCEPTION 'another process of the server answers' USING ERRCODE = 'HF001';
    END IF;
END
$function$;

-- After so long without a statement the server ends this session, and with it all its locks.
CREATE OR REPLACE FUNCTION @schema@.session_idle_1(p_idle_ms integer) RETURNS void
LANGUAGE sql VOLATILE AS $$ SELECT set_config('idle_session_timeout', p_idle_ms::text, false) $$;

-- The backends that hold a key or wait for it.
CREATE OR REPLACE FUNCTION @schema@.session_locks_1(p_key bigint)
RETURNS TABLE (backend integer, shared boolean, granted boolean, waits_since timestamptz)
LANGUAGE sql VOLATILE AS $$
    SELECT l.pid, l.mode = 'ShareLock', l.granted, l.waitstart FROM pg_catalog.pg_locks l
    WHERE l.locktype = 'advisory' AND l.objsubid = 1
        AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
        AND l.classid = ((p_key >> 32) & 4294967295)::oid AND l.objid = (p_key & 4294967295)::oid
$$;

-- The recorded holders that still hold the lock.
CREATE OR REPLACE FUNCTION @schema@.session_live_1(p_holders @schema@.session_holder[], p_key bigint)
RETURNS @schema@.session_holder[]
LANGUAGE plpgsql AS $function$
BEGIN
    IF p_holders IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN ARRAY(
        SELECT h FROM unnest(p_holders) h
        WHERE EXISTS (
            SELECT FROM @schema@.session_locks_1(p_key) l
            WHERE l.backend = h.backend AND l.granted AND l.shared = (h.mode = 'read')
        )
        ORDER BY h.token
    );
END
$function$;

CREATE OR REPLACE FUNCTION @schema@.session_unlock_1(p_key bigint, p_mode text) RETURNS boolean
LANGUAGE plpgsql AS $function$
BEGIN
    IF p_mode = 'read' THEN
        RETURN pg_advisory_unlock_shared(p_key);
    END IF;
    RETURN pg_advisory_unlock(p_key);
END
$function$;

-- This session has the lock: increment the token. It is committed before the client learns it.
CREATE OR REPLACE FUNCTION @schema@.session_grant_1(
    p_namespace bytea, p_name bytea, p_key bigint, p_nonce text, p_client text, p_owner text, p_kind text,
    p_mode text, p_ttl float8, p_renews boolean, p_max_hold float8, p_metadata text
) RETURNS text
LANGUAGE plpgsql AS $function$
DECLARE
    v_now    float8 := @schema@.clock_1();
    v_wall   bigint := @schema@.wall_us_1(v_now);
    v_token  bigint;
    v_others @schema@.session_holder[];
    r        @schema@.session_names;
BEGIN
    FOR attempt IN 1 .. 3 LOOP
        IF p_mode <> 'read' THEN
            -- The usual case in one statement. No other session can hold it, whatever the row says.
            UPDATE @schema@.session_names n SET
                token = greatest(n.token + 1, v_wall),
                holders = ARRAY[ROW (
                    p_nonce, p_client, p_owner, p_mode, greatest(n.token + 1, v_wall), v_now, p_ttl, p_renews,
                    v_now + p_max_hold, p_metadata, pg_backend_pid()
                )::@schema@.session_holder],
                changed_at = v_now
            WHERE n.ctid = @newest(session_names, p_namespace, p_name)@ AND n.kind = p_kind
                AND n.token + 1 < 9007199254740992 AND v_wall < 9007199254740992
            RETURNING n.token INTO v_token;
            IF FOUND THEN
                RETURN 'G' || v_token || coalesce(' ' || p_max_hold, '');
            END IF;
        END IF;
        SELECT n.* INTO r FROM @schema@.session_names n
        WHERE n.namespace = p_namespace AND n.name >= p_name AND n.name <= p_name ORDER BY n.name DESC LIMIT 1
        FOR UPDATE;
        IF NOT FOUND THEN
            INSERT INTO @schema@.session_names (namespace, name, key, kind, token, changed_at)
            VALUES (p_namespace, p_name, p_key, p_kind, @schema@.floor_1(), v_now)
            ON CONFLICT DO NOTHING;
            IF random() < 0.015 THEN
                PERFORM @schema@.session_sweep_1(32, v_now);  -- clients that add rows also delete some
            END IF;
            CONTINUE;
        END IF;
        IF r.kind <> p_kind THEN
            PERFORM @schema@.session_unlock_1(p_key, p_mode);
            RETURN 'M' || json_build_array(r.kind, 0);
        END IF;
        v_token := greatest(r.token + 1, v_wall);
        IF v_token >= 9007199254740992 THEN
            PERFORM @schema@.session_unlock_1(p_key, p_mode);
            RETURN 'E';
        END IF;
        v_others := ARRAY(
            SELECT h FROM unnest(@schema@.session_live_1(r.holders, p_key)) h
            WHERE h.mode = 'read' AND h.backend <> pg_backend_pid()
        );
        UPDATE @schema@.session_names n SET
            token = v_token,
            holders = v_others || ROW (
                p_nonce, p_client, p_owner, p_mode, v_token, v_now, p_ttl, p_renews, v_now + p_max_hold,
                p_metadata, pg_backend_pid()
            )::@schema@.session_holder,
            changed_at = v_now
        WHERE n.ctid = @newest(session_names, p_namespace, p_name)@;
        RETURN 'g' || json_build_array(
            v_token, ARRAY(SELECT h.token FROM unnest(v_others) h), p_kind, p_mode, p_ttl, p_max_hold, p_metadata
        );
    END LOOP;
    RAISE EXCEPTION 'the name kept changing' USING ERRCODE = 'serialization_failure';
END
$function$;

-- Take the lock, or wait for it in the server's queue without limit. A try does not pass the queue: the server
-- refuses a lock that conflicts with a waiter.
CREATE OR REPLACE FUNCTION @schema@.session_take_1(
    p_backend integer, p_idle_ms integer, p_namespace bytea, p_name bytea, p_key bigint, p_nonce text,
    p_client text, p_owner text, p_kind text, p_mode text, p_ttl float8, p_renews boolean, p_max_hold float8,
    p_metadata text, p_wait boolean
) RETURNS text
LANGUAGE plpgsql AS $function$
DECLARE
    v_kind  text;
    v_now   float8;
    v_reply text;
BEGIN
    -- Each expression is initialised anew in every transaction, so the usual path has few of them.
    IF pg_backend_pid() <> p_backend OR p_idle_ms IS NOT NULL THEN
        PERFORM @schema@.session_own_1(p_backend);
        PERFORM @schema@.session_idle_1(p_idle_ms);
    END IF;
    IF p_wait THEN
        SELECT n.kind INTO v_kind FROM @schema@.session_names n
        WHERE n.ctid = @newest(session_names, p_namespace, p_name)@;
        IF v_kind <> p_kind THEN
            RETURN 'M' || json_build_array(v_kind, 0);
        END IF;
    END IF;
    -- The clock is read once the lock is taken; without the lock it is NULL.
    v_now := CASE WHEN CASE
        WHEN NOT p_wait AND p_mode = 'read' THEN pg_try_advisory_lock_shared(p_key)
        WHEN NOT p_wait THEN pg_try_advisory_lock(p_key)
        WHEN p_mode = 'read' THEN pg_advisory_lock_shared(p_key) IS NOT NULL
        ELSE pg_advisory_lock(p_key) IS NOT NULL
    END THEN date_part('epoch', clock_timestamp()) END;
    -- The first part of session_grant_1, inlined: the usual case is one statement and no call.
    UPDATE @schema@.session_names n SET
        token = greatest(n.token + 1, (v_now * 1000000)::bigint),
        holders = ARRAY[ROW (
            p_nonce, p_client, p_owner, p_mode, greatest(n.token + 1, (v_now * 1000000)::bigint), v_now, p_ttl,
            p_renews, v_now + p_max_hold, p_metadata, p_backend
        )::@schema@.session_holder],
        changed_at = v_now
    WHERE n.ctid = @newest(session_names, p_namespace, p_name)@ AND n.kind = p_kind AND p_mode <> 'read'
        AND n.token + 1 < 9007199254740992 AND (v_now * 1000000)::bigint < 9007199254740992
    RETURNING 'G' || n.token || coalesce(' ' || p_max_hold, '') INTO v_reply;
    IF FOUND THEN
        RETURN v_reply;
    END IF;
    IF v_now IS NOT NULL THEN
        RETURN @schema@.session_grant_1(
            p_namespace, p_name, p_key, p_nonce, p_client, p_owner, p_kind, p_mode, p_ttl, p_renews,
            p_max_hold, p_metadata
        );
    END IF;
    RETURN coalesce(
        @schema@.session_mismatch_1(p_namespace, p_name, p_kind),
        'B' || json_build_array(@schema@.session_holders_1(p_namespace, p_name, p_key), @schema@.clock_1())
    );
END
$function$;

CREATE OR REPLACE FUNCTION @schema@.session_mismatch_1(p_namespace bytea, p_name bytea, p_kind text)
RETURNS text
LANGUAGE sql VOLATILE AS $$
    SELECT 'M' || json_build_array(n.kind, 0) FROM @schema@.session_names n
    WHERE n.namespace = p_namespace AND n.name = p_name AND n.kind <> p_kind
$$;

-- Delete the waiters of connections that have ended. Waits for no lock.
CREATE OR REPLACE FUNCTION @schema@.session_sweep_waiters_1() RETURNS void
LANGUAGE sql VOLATILE AS $$
    DELETE FROM @schema@.session_waiters WHERE backend IN (
        SELECT w.backend FROM @schema@.session_waiters w
        WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity a WHERE a.pid = w.backend)
        FOR UPDATE SKIP LOCKED
    )
$$;

-- Record the waiter of this connection, for clients that inspect the name.
CREATE OR REPLACE FUNCTION @schema@.session_waits_1(
    p_backend integer, p_key bigint, p_client text, p_owner text, p_mode text
) RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
    PERFORM @schema@.session_own_1(p_backend);
    INSERT INTO @schema@.session_waiters (backend, key, client, owner, mode)
    VALUES (p_backend, p_key, p_client, p_owner, p_mode)
    ON CONFLICT (backend) DO UPDATE SET
        key = excluded.key, client = excluded.client, owner = excluded.owner, mode = excluded.mode;
    IF random() < 0.015 THEN
        PERFORM @schema@.session_sweep_waiters_1();
    END IF;
END
$function$;

-- Take the lock as a waiter that this connection has not recorded yet. A procedure, since it commits the record
-- before the wait, so that other clients see it.
CREATE OR REPLACE PROCEDURE @schema@.session_wait_1(
    p_backend integer, p_idle_ms integer, p_namespace bytea, p_name bytea, p_key bigint, p_nonce text,
    p_client text, p_owner text, p_kind text, p_mode text, p_ttl float8, p_renews boolean, p_max_hold float8,
    p_metadata text, INOUT p_reply text
)
LANGUAGE plpgsql AS $procedure$
BEGIN
    PERFORM @schema@.session_waits_1(p_backend, p_key, p_client, p_owner, p_mode);
    COMMIT;
    p_reply := @schema@.session_take_1(
        p_backend, p_idle_ms, p_namespace, p_name, p_key, p_nonce, p_client, p_owner, p_kind, p_mode, p_ttl,
        p_renews, p_max_hold, p_metadata, true
    );
END
$procedure$;

-- Why a grant no longer exists.
CREATE OR REPLACE FUNCTION @schema@.session_gone_1(p_namespace bytea, p_name bytea, p_nonce text) RETURNS text
LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(
        (
            SELECT 'X' || json_build_array(e.reason, e.note) FROM @schema@.session_names n, unnest(n.ended) e
            WHERE n.namespace = p_namespace AND n.name = p_name AND e.nonce = p_nonce
            LIMIT 1
        ),
        'X' || json_build_array('expired', '')
    )
$$;

CREATE OR REPLACE FUNCTION @schema@.session_release_1(
    p_backend integer, p_namespace bytea, p_name bytea, p_key bigint, p_nonce text, p_mode text
) RETURNS text
LANGUAGE plpgsql AS $function$
DECLARE
    v_held  boolean;
    v_ended boolean;
BEGIN
    v_held := CASE
        WHEN pg_backend_pid() <> p_backend THEN NULL
        WHEN p_mode = 'read' THEN pg_advisory_unlock_shared(p_key)
        ELSE pg_advisory_unlock(p_key)
    END;
    SELECT n.ended IS NOT NULL INTO v_ended FROM @schema@.session_names n
    WHERE n.ctid = @newest(session_names, p_namespace, p_name)@;
    IF v_held AND v_ended IS NOT TRUE THEN
        RETURN 'D';
    END IF;
    PERFORM @schema@.session_own_1(p_backend);
    IF v_held AND NOT EXISTS (
        SELECT FROM @schema@.session_names n, unnest(n.ended) e
        WHERE n.namespace = p_namespace AND n.name = p_name AND e.nonce = p_nonce
    ) THEN
        RETURN 'D';
    END IF;
    RETURN @schema@.session_gone_1(p_namespace, p_name, p_nonce);
END
$function$;

-- The modes in which this session has the lock, according to pg_locks.
CREATE OR REPLACE FUNCTION @schema@.session_modes_1(p_key bigint, OUT shared boolean, OUT exclusive boolean)
LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(bool_or(l.shared), false), coalesce(bool_or(NOT l.shared), false)
    FROM @schema@.session_locks_1(p_key) l WHERE l.backend = pg_backend_pid() AND l.granted
$$;

-- After an error or a cancellation the outcome is unknown: look, and release the lock if it was granted. Returns
-- whether the session has the other mode: a writer that was to become a reader, and did not.
CREATE OR REPLACE FUNCTION @schema@.session_undo_1(p_backend integer, p_key bigint, p_mode text) RETURNS boolean
LANGUAGE plpgsql AS $function$
DECLARE
    has record;
BEGIN
    PERFORM @schema@.session_own_1(p_backend);
    SELECT * INTO has FROM @schema@.session_modes_1(p_key);
    IF (p_mode = 'read' AND has.shared) OR (p_mode <> 'read' AND has.exclusive) THEN
        PERFORM @schema@.session_unlock_1(p_key, p_mode);
    END IF;
    RETURN CASE WHEN p_mode = 'read' THEN has.exclusive ELSE has.shared END;
END
$function$;

-- A heartbeat.
CREATE OR REPLACE FUNCTION @schema@.session_beat_1(p_backend integer, p_idle_ms integer) RETURNS text
LANGUAGE plpgsql AS $function$
BEGIN
    PERFORM @schema@.session_own_1(p_backend);
    IF p_idle_ms IS NOT NULL THEN
        PERFORM @schema@.session_idle_1(p_idle_ms);
    END IF;
    RETURN 'D';
END
$function$;

-- Set another ttl. The recorded ttl only grows: the idle timeout of a session is never made shorter.
CREATE OR REPLACE FUNCTION @schema@.session_extend_1(
    p_backend integer, p_idle_ms integer, p_namespace bytea, p_name bytea, p_nonce text, p_ttl float8
) RETURNS text
LANGUAGE plpgsql AS $function$
BEGIN
    PERFORM @schema@.session_beat_1(p_backend, p_idle_ms);
    UPDATE @schema@.session_names n SET holders = ARRAY(
        SELECT CASE WHEN h.nonce = p_nonce THEN ROW (
            h.nonce, h.client, h.owner, h.mode, h.token, h.since, greatest(h.ttl, p_ttl), h.renews, h.until, h.metadata, h.backend
        )::@schema@.session_holder ELSE h END
        FROM unnest(n.holders) h
    )
    WHERE n.namespace = p_namespace AND n.name = p_name
        AND EXISTS (SELECT FROM unnest(n.holders) h WHERE h.nonce = p_nonce);
    RETURN CASE WHEN FOUND THEN 'D' ELSE @schema@.session_gone_1(p_namespace, p_name, p_nonce) END;
END
$function$;

-- Lock the row before a decision on its holders, so that no client breaks the lock meanwhile. A statement of its
-- own: one that had to wait for the row would see the holders as they were before.
CREATE OR REPLACE FUNCTION @schema@.session_lock_row_1(p_namespace bytea, p_name bytea) RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
    PERFORM FROM @schema@.session_names n WHERE n.namespace = p_namespace AND n.name = p_name FOR UPDATE;
END
$function$;

-- The writer becomes a reader. It takes the shared lock first, which no waiter can block, since all of them wait
-- for this session; then it releases the exclusive lock. An error rolls back the row, but neither of these, so a
-- repeated call looks first: a shared lock that was taken twice would have to be released twice.
CREATE OR REPLACE FUNCTION @schema@.session_downgrade_1(
    p_backend integer, p_namespace bytea, p_name bytea, p_key bigint, p_nonce text, p_reader text
) RETURNS text
LANGUAGE plpgsql AS $function$
DECLARE
    h       @schema@.session_holder;
    has     record;
    v_reply text;
BEGIN
    PERFORM @schema@.session_own_1(p_backend);
    PERFORM @schema@.session_lock_row_1(p_namespace, p_name);
    SELECT o.* INTO h FROM @schema@.session_names n, unnest(n.holders) o
    WHERE n.namespace = p_namespace AND n.name = p_name AND o.backend = p_backend
        AND o.nonce IN (p_nonce, p_reader);
    SELECT * INTO has FROM @schema@.session_modes_1(p_key);
    IF h.nonce IS NULL OR NOT (has.shared OR has.exclusive) THEN
        RETURN @schema@.session_gone_1(p_namespace, p_name, p_nonce);
    END IF;
    IF h.nonce = p_reader THEN
        RETURN 'g' || json_build_array(
            h.token, NULL, 'rwlock', 'read', h.ttl, h.until - @schema@.clock_1(), h.metadata
        );
    END IF;
    IF NOT has.shared THEN
        PERFORM pg_advisory_lock_shared(p_key);
    END IF;
    v_reply := @schema@.session_grant_1(
        p_namespace, p_name, p_key, p_reader, h.client, h.owner, 'rwlock', 'read', h.ttl, h.renews,
        h.until - @schema@.clock_1(), h.metadata
    );
    IF v_reply LIKE 'g%' AND has.exclusive THEN
        PERFORM pg_advisory_unlock(p_key);
    END IF;
    RETURN v_reply;
END
$function$;

CREATE OR REPLACE FUNCTION @schema@.session_set_value_1(
    p_backend integer, p_namespace bytea, p_name bytea, p_nonce text, p_data bytea, p_retention float8
) RETURNS text
LANGUAGE plpgsql AS $function$
DECLARE
    v_token bigint;
BEGIN
    PERFORM @schema@.session_own_1(p_backend);
    PERFORM @schema@.session_lock_row_1(p_namespace, p_name);
    SELECT h.token INTO v_token FROM @schema@.session_names n, unnest(n.holders) h
    WHERE n.namespace = p_namespace AND n.name = p_name AND h.nonce = p_nonce AND h.backend = p_backend;
    IF NOT FOUND THEN
        RETURN @schema@.session_gone_1(p_namespace, p_name, p_nonce);
    END IF;
    SET LOCAL synchronous_commit TO DEFAULT;  -- a lost token is made up for by the clock, a lost value is not
    INSERT INTO @schema@.values (namespace, name, data, token, forget_at_us) VALUES (
        p_namespace, p_name, p_data, v_token, @schema@.wall_us_1(@schema@.clock_1() + p_retention)
    ) ON CONFLICT (namespace, name) DO UPDATE SET
        data = excluded.data, token = excluded.token, forget_at_us = excluded.forget_at_us;
    RETURN 'D';
END
$function$;

-- The holders as JSON. The ttl of a holder that renews counts from its last heartbeat, where we may see that.
CREATE OR REPLACE FUNCTION @schema@.session_told_1(p_holders @schema@.session_holder[]) RETURNS json
LANGUAGE sql VOLATILE AS $$
    SELECT json_agg(json_build_object(
        'nonce', h.nonce, 'client', h.client, 'owner', h.owner, 'mode', h.mode, 'token', h.token,
        'since', h.since, 'ttl', h.ttl, 'renews', h.renews, 'until', h.until, 'metadata', h.metadata,
        'expires_at', least(h.until, h.ttl + CASE
            WHEN NOT h.renews THEN h.since
            WHEN a.state = 'idle' THEN greatest(h.since, date_part('epoch', a.state_change))
            ELSE @schema@.clock_1()
        END)
    ) ORDER BY h.token)
    FROM unnest(p_holders) h LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = h.backend
$$;

CREATE OR REPLACE FUNCTION @schema@.session_holders_1(p_namespace bytea, p_name bytea, p_key bigint) RETURNS json
LANGUAGE sql VOLATILE AS $$
    SELECT @schema@.session_told_1(@schema@.session_live_1(n.holders, p_key)) FROM @schema@.session_names n
    WHERE n.namespace = p_namespace AND n.name = p_name
$$;

-- The snapshot of a name; the fields are those of snapshot_1.
CREATE OR REPLACE FUNCTION @schema@.session_look_1(p_namespace bytea, p_name bytea, p_key bigint) RETURNS text
LANGUAGE plpgsql AS $function$
DECLARE
    v_now   float8 := @schema@.clock_1();
    v_queue json;
    v_value json;
    r       @schema@.session_names;
BEGIN
    SELECT n.* INTO r FROM @schema@.session_names n WHERE n.namespace = p_namespace AND n.name = p_name;
    SELECT json_agg(json_build_object(
        'nonce', w.backend || ' since ' || since, 'client', w.client, 'owner', w.owner, 'mode', w.mode,
        'since', since, 'expires_at', v_now + 5.0, 'turn_at', NULL
    ) ORDER BY since) INTO v_queue
    FROM @schema@.session_locks_1(p_key) l
        JOIN @schema@.session_waiters w ON w.backend = l.backend AND w.key = p_key,
        coalesce(date_part('epoch', l.waits_since), v_now) since
    WHERE NOT l.granted;
    SELECT json_build_array(translate(encode(v.data, 'base64'), E'\n', ''), v.token, v.forget_at_us) INTO v_value
    FROM @schema@.values v
    WHERE v.namespace = p_namespace AND v.name = p_name AND v.forget_at_us > @schema@.wall_us_1(v_now);
    RETURN 'S' || json_build_array(
        r.kind, coalesce(r.token, 0), @schema@.session_told_1(@schema@.session_live_1(r.holders, p_key)), v_queue,
        0, 0, v_value, NULL, NULL, v_now
    );
END
$function$;

-- The names with a prefix that are in use, with their snapshots: one page, after a given name.
CREATE OR REPLACE FUNCTION @schema@.session_list_1(
    p_namespace bytea, p_prefix bytea, p_after bytea, p_count integer
) RETURNS TABLE (name bytea, told text)
LANGUAGE sql VOLATILE AS $$
    SELECT n.name, @schema@.session_look_1(p_namespace, n.name, n.key) FROM @schema@.session_names n
    WHERE n.namespace = p_namespace AND n.name >= p_prefix AND n.name > p_after
        AND substring(n.name FOR length(p_prefix)) = p_prefix
        AND (
            EXISTS (SELECT FROM @schema@.session_locks_1(n.key))
            OR EXISTS (
                SELECT FROM @schema@.values v
                WHERE v.namespace = n.namespace AND v.name = n.name
                    AND v.forget_at_us > @schema@.wall_us_1(@schema@.clock_1())
            )
        )
    ORDER BY n.name LIMIT p_count
$$;

-- Delete the names on a few random pages that were not used for a day. Waits for no lock.
CREATE OR REPLACE FUNCTION @schema@.session_sweep_1(p_pages integer, p_now float8) RETURNS integer
LANGUAGE plpgsql AS $function$
DECLARE
    v_size  bigint := pg_relation_size('@schema@.session_names') / current_setting('block_size')::bigint;
    v_first bigint := floor(random() * (v_size + p_pages - 1)) - p_pages + 1;
    v_floor bigint := 0;
    v_count integer := 0;
    r       @schema@.session_names;
BEGIN
    PERFORM 1 FROM @schema@.meta m WHERE m.the_only FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    FOR r IN
        SELECT n.* FROM @schema@.session_names n
        WHERE n.ctid >= format('(%s,0)', greatest(v_first, 0))::tid
            AND n.ctid < format('(%s,0)', v_first + p_pages)::tid
            AND n.changed_at <= p_now - 86400.0
        FOR UPDATE SKIP LOCKED
    LOOP
        CONTINUE WHEN EXISTS (SELECT FROM @schema@.session_locks_1(r.key)) OR EXISTS (
            SELECT FROM @schema@.values v
            WHERE v.namespace = r.namespace AND v.name = r.name
                AND v.forget_at_us > @schema@.wall_us_1(p_now)
        );
        v_floor := greatest(v_floor, r.token);
        v_count := v_count + 1;
        DELETE FROM @schema@.values v WHERE v.namespace = r.namespace AND v.name = r.name;
        DELETE FROM @schema@.session_names n WHERE n.namespace = r.namespace AND n.name = r.name;
    END LOOP;
    IF v_count > 0 THEN
        UPDATE @schema@.meta m SET floor = greatest(m.floor, v_floor);
    END IF;
    RETURN v_count;
END
$function$;

-- Break a lock: the reason is recorded first, so that the holder learns it; then the holder is notified.
CREATE OR REPLACE FUNCTION @schema@.session_break_1(
    p_namespace bytea, p_name bytea, p_key bigint, p_token bigint, p_reason text
) RETURNS text
LANGUAGE plpgsql AS $function$
DECLARE
    v_now     float8 := @schema@.clock_1();
    v_token   bigint;
    v_victims @schema@.session_holder[];
    r         @schema@.session_names;
BEGIN
    SELECT n.* INTO r FROM @schema@.session_names n
    WHERE n.namespace = p_namespace AND n.name = p_name FOR UPDATE;
    v_victims := ARRAY(
        SELECT h FROM unnest(@schema@.session_live_1(r.holders, p_key)) h
        WHERE p_token IS NULL OR h.token = p_token
    );
    IF cardinality(v_victims) = 0 THEN
        RETURN json_build_array(NULL, NULL, '{}'::integer[]);
    END IF;
    v_token := greatest(r.token + 1, @schema@.wall_us_1(v_now));
    IF v_token >= 9007199254740992 THEN
        RETURN 'E';
    END IF;
    UPDATE @schema@.session_names n SET
        token = v_token,
        holders = ARRAY(SELECT h FROM unnest(r.holders) h WHERE h.nonce NOT IN (
            SELECT v.nonce FROM unnest(v_victims) v
        )),
        ended = ARRAY(SELECT e FROM unnest(r.ended) e WHERE e.forget_at > v_now) || ARRAY(
            SELECT ROW (v.nonce, 'broken', p_reason, v_now + 3600.0)::@schema@.ended FROM unnest(v_victims) v
        ),
        changed_at = v_now
    WHERE n.namespace = p_namespace AND n.name = p_name;
    PERFORM pg_notify('holdfast_' || v.client, v.nonce) FROM unnest(v_victims) v;
    RETURN json_build_array(
        v_token, @schema@.session_told_1(v_victims), ARRAY(SELECT v.backend FROM unnest(v_victims) v)
    );
END
$function$;

-- Those of these backends that still hold a broken lock. A backend that is a recorded holder has a new grant: it
-- released the lock and took it again.
CREATE OR REPLACE FUNCTION @schema@.session_standing_1(
    p_namespace bytea, p_name bytea, p_key bigint, p_backends integer[]
) RETURNS SETOF integer
LANGUAGE sql VOLATILE AS $$
    SELECT l.backend FROM @schema@.session_locks_1(p_key) l
    WHERE l.granted AND l.backend = ANY (p_backends) AND NOT EXISTS (
        SELECT FROM @schema@.session_names n, unnest(n.holders) h
        WHERE n.namespace = p_namespace AND n.name = p_name AND h.backend = l.backend
    )
$$;

-- End the sessions of holders that do not release a broken lock, since they are stopped or cut off.
CREATE OR REPLACE FUNCTION @schema@.session_end_1(
    p_namespace bytea, p_name bytea, p_key bigint, p_backends integer[]
) RETURNS integer
LANGUAGE plpgsql AS $function$
BEGIN
    RETURN count(pg_terminate_backend(b, 1000))
    FROM @schema@.session_standing_1(p_namespace, p_name, p_key, p_backends) b;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE EXCEPTION '%', SQLERRM USING ERRCODE = 'HF002';
END
$function$;

-- Cancel a wait. It may have been granted just now: the caller looks at the outcome. Another backend with this
-- pid has nothing to do with this key, and is left alone.
CREATE OR REPLACE FUNCTION @schema@.session_cancel_1(p_key bigint, p_backend integer) RETURNS integer
LANGUAGE sql VOLATILE AS $$
    SELECT count(pg_cancel_backend(l.backend))::integer FROM @schema@.session_locks_1(p_key) l
    WHERE l.backend = p_backend
$$;
