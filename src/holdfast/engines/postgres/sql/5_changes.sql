-- A change is decided on the row as it was read, without locking it, and stored only if no other transaction
-- changed the row in between; otherwise it is decided again, with the row locked. So a request that changes
-- nothing (the lock is taken, the lease is gone) writes nothing, and a change locks one row for one statement.

-- At least the largest token of the rows that were deleted.
CREATE OR REPLACE FUNCTION @schema@.floor_1() RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$ BEGIN RETURN (SELECT m.floor FROM @schema@.meta m WHERE m.the_only); END $$;

-- Delete the records on a few random pages that have been idle for a day. Waits for no lock.
CREATE OR REPLACE FUNCTION @schema@.sweep_1(p_pages integer, p_now float8) RETURNS integer
LANGUAGE plpgsql AS $function$
DECLARE
    v_size  bigint := pg_relation_size('@schema@.locks') / current_setting('block_size')::bigint;
    -- Begins before the first page, so that every page has the same chance.
    v_first bigint := floor(random() * (v_size + p_pages - 1)) - p_pages + 1;
    v_floor bigint := 0;
    v_count integer := 0;
    r       @schema@.locks;
    v_then  @schema@.locks;
BEGIN
    PERFORM 1 FROM @schema@.meta m WHERE m.the_only FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    FOR r IN
        SELECT l.* FROM @schema@.locks l
        WHERE l.ctid >= format('(%s,0)', greatest(v_first, 0))::tid
            AND l.ctid < format('(%s,0)', v_first + p_pages)::tid
            AND l.changed_at <= p_now - 86400.0
        FOR UPDATE SKIP LOCKED
    LOOP
        v_then := @schema@.settle_1(r, p_now - 86400.0);
        CONTINUE WHEN v_then.holders IS NOT NULL OR v_then.queue IS NOT NULL
            OR EXISTS (SELECT FROM unnest(r.ended) e WHERE e.forget_at > p_now)
            OR EXISTS (SELECT FROM unnest(r.watchers) o WHERE o.expires_at > p_now)
            OR EXISTS (
                SELECT FROM @schema@.values v
                WHERE v.namespace = r.namespace AND v.name = r.name
                    AND v.forget_at_us > @schema@.wall_us_1(p_now)
            );
        v_floor := greatest(v_floor, r.token);
        v_count := v_count + 1;
        DELETE FROM @schema@.values v WHERE v.namespace = r.namespace AND v.name = r.name;
        DELETE FROM @schema@.locks l WHERE l.namespace = r.namespace AND l.name = r.name;
    END LOOP;
    IF v_count > 0 THEN
        UPDATE @schema@.meta m SET floor = greatest(m.floor, v_floor);
    END IF;
    RETURN v_count;
END
$function$;

-- The part of a record that watchers are notified of. Renewals and refreshes are not: they come every second.
CREATE OR REPLACE FUNCTION @schema@.told_1(r @schema@.locks) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT json_build_array(
        ARRAY(SELECT h.token || ' ' || h.owner FROM unnest(r.holders) h),
        ARRAY(SELECT w.nonce FROM unnest(r.queue) w),
        r.permits
    )::text
$$;

CREATE OR REPLACE FUNCTION @schema@.insert_1(r @schema@.locks, p_now float8) RETURNS boolean
LANGUAGE plpgsql AS $function$
DECLARE
    v_floor bigint := @schema@.floor_1();
BEGIN
    INSERT INTO @schema@.locks (
        namespace, name, version, kind, token, holders, queue, permits, declared, ended, watchers, next_at, changed_at
    ) VALUES (
        r.namespace, r.name, greatest(@schema@.wall_us_1(p_now), 1), r.kind, greatest(r.token, v_floor), r.holders,
        r.queue, r.permits, r.declared, r.ended, r.watchers, r.next_at, p_now
    ) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF @schema@.floor_1() > v_floor OR r.token BETWEEN 1 AND v_floor THEN
        -- The row was deleted a moment ago, and this token may be smaller than its tokens.
        RAISE EXCEPTION 'the floor of tokens was raised meanwhile' USING ERRCODE = 'serialization_failure';
    END IF;
    IF random() < 0.015 THEN
        PERFORM @schema@.sweep_1(32, p_now);  -- clients that add rows also delete some
    END IF;
    RETURN true;
END
$function$;

-- Store a changed record and wake its waiters; false: another transaction changed it first, decide again.
CREATE OR REPLACE FUNCTION @schema@.store_1(
    p_before @schema@.locks, r @schema@.locks, p_news boolean, p_now float8
) RETURNS boolean
LANGUAGE plpgsql AS $function$
DECLARE
    v_waiter  @schema@.waiter;
    v_watcher @schema@.watcher;
BEGIN
    IF r.ended IS NOT NULL THEN
        r.ended := ARRAY(SELECT e FROM unnest(r.ended) e WHERE e.forget_at > p_now);
        r.ended := CASE WHEN cardinality(r.ended) > 0 THEN r.ended[cardinality(r.ended) - 99 :] END;
    END IF;
    IF r.watchers IS NOT NULL THEN
        r.watchers := ARRAY(SELECT o FROM unnest(r.watchers) o WHERE o.expires_at > p_now);
        r.watchers := CASE WHEN cardinality(r.watchers) > 0 THEN r.watchers END;
    END IF;
    IF r.version = 0 THEN
        IF NOT @schema@.insert_1(r, p_now) THEN
            RETURN false;
        END IF;
    ELSE
        UPDATE @schema@.locks l SET
            version = l.version + 1, kind = r.kind, token = r.token, holders = r.holders, queue = r.queue,
            permits = r.permits, declared = r.declared, ended = r.ended, watchers = r.watchers,
            next_at = r.next_at, changed_at = p_now
        WHERE l.ctid = @newest(locks, r.namespace, r.name)@ AND l.version = r.version;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;
    IF r.queue IS NOT NULL THEN
        FOREACH v_waiter IN ARRAY r.queue LOOP
            EXIT WHEN v_waiter.turn_at IS NULL;
            IF (p_before.queue[@schema@.waiter_at_1(p_before.queue, v_waiter.nonce)]).turn_at IS NULL THEN
                PERFORM pg_notify('holdfast_' || v_waiter.client, v_waiter.nonce);
            END IF;
        END LOOP;
    END IF;
    IF r.watchers IS NOT NULL AND (p_news OR @schema@.told_1(p_before) <> @schema@.told_1(r)) THEN
        FOREACH v_watcher IN ARRAY r.watchers LOOP
            PERFORM pg_notify('holdfast_' || v_watcher.client, v_watcher.nonce);
        END LOOP;
    END IF;
    RETURN true;
END
$function$;

-- The row of a name; a row that does not exist yet has version 0.
CREATE OR REPLACE FUNCTION @schema@.load_1(p_namespace bytea, p_name bytea, p_locked boolean)
RETURNS @schema@.locks
LANGUAGE plpgsql AS $function$
DECLARE
    r @schema@.locks;
BEGIN
    IF p_locked THEN
        SELECT l.* INTO r FROM @schema@.locks l
        WHERE l.namespace = p_namespace AND l.name >= p_name AND l.name <= p_name ORDER BY l.name DESC LIMIT 1
        FOR UPDATE;  -- not by ctid: a version that another transaction writes meanwhile has another
    ELSE
        SELECT l.* INTO r FROM @schema@.locks l WHERE l.ctid = @newest(locks, p_namespace, p_name)@;
    END IF;
    IF NOT FOUND THEN
        r.namespace := p_namespace;
        r.name := p_name;
        r.version := 0;
        r.token := 0;
        r.permits := 0;
        r.declared := 0;
        r.changed_at := 0;
    END IF;
    RETURN r;
END
$function$;

-- One transition.
CREATE OR REPLACE FUNCTION @schema@.change_1(p_namespace bytea, p_name bytea, a @schema@.ask_1) RETURNS text
LANGUAGE plpgsql AS $function$
DECLARE
    v_now    float8;
    v_wall   bigint;
    v_before @schema@.locks;
    r        @schema@.locks;
    s        @schema@.step_1;
    v_victim @schema@.holder;
BEGIN
    FOR attempt IN 1 .. 100 LOOP
        v_before := @schema@.load_1(p_namespace, p_name, attempt > 1);
        v_now := @schema@.clock_1();
        v_wall := @schema@.wall_us_1(v_now);
        r := v_before;
        IF r.next_at <= v_now THEN
            r := @schema@.settle_1(r, v_now);
        END IF;
        IF a.op = 'acquire' THEN
            s := @schema@.acquiring_1(r, a, v_now, v_wall);
        ELSIF a.op IN ('release', 'withdraw') THEN
            s := @schema@.leaving_1(r, a, v_now);
        ELSIF a.op IN ('renew', 'stop', 'export', 'adopt', 'downgrade', 'set_value') THEN
            s := @schema@.holding_1(r, a, v_now, v_wall);
        ELSIF a.op = 'break' THEN
            s := @schema@.breaking_1(r, a, v_now, v_wall);
        ELSIF a.op IN ('resize', 'watch', 'unwatch') THEN
            s := @schema@.visiting_1(r, a, v_now);
        ELSIF a.op = 'inspect' THEN
            RETURN @schema@.snapshot_1(r, v_now);
        ELSE
            RAISE EXCEPTION 'no request is called %', a.op USING ERRCODE = 'feature_not_supported';
        END IF;
        IF NOT s.changed THEN
            RETURN s.reply;
        END IF;
        r := s.record;
        IF r.queue IS NOT NULL THEN
            r.queue := CASE WHEN cardinality(r.queue) > 0 THEN @schema@.turns_1(r, v_now) END;
        END IF;
        r.next_at := @schema@.next_at_1(r.holders, r.queue);
        CONTINUE WHEN NOT @schema@.store_1(v_before, r, s.news, v_now);
        IF s.victims IS NOT NULL THEN
            FOREACH v_victim IN ARRAY s.victims LOOP
                IF v_victim.client <> '' THEN
                    PERFORM pg_notify('holdfast_' || v_victim.client, v_victim.nonce);
                END IF;
            END LOOP;
        END IF;
        IF a.op = 'set_value' THEN
            INSERT INTO @schema@.values (namespace, name, data, token, forget_at_us)
            SELECT r.namespace, r.name, a.data, h.token, @schema@.forget_at_us_1(a, v_wall)
            FROM unnest(r.holders) h WHERE h.nonce = a.nonce
            ON CONFLICT (namespace, name) DO UPDATE
                SET data = excluded.data, token = excluded.token, forget_at_us = excluded.forget_at_us;
        END IF;
        RETURN coalesce(s.reply, @schema@.queued_1(r, @schema@.waiter_at_1(r.queue, a.nonce), v_now));
    END LOOP;
    RAISE EXCEPTION 'the record kept changing' USING ERRCODE = 'serialization_failure';
END
$function$;
