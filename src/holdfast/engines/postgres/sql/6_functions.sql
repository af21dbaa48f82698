-- The functions that clients call. Each call is one statement and one transaction.

-- A change that a crash of the server may undo without harm does not wait for the disk: a place in the queue,
-- and a release (its lease reappears then, until it expires). A later grant reaches the disk only after it.
CREATE OR REPLACE FUNCTION @schema@.lazily_1(p_reply text) RETURNS text
LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('synchronous_commit', 'off', true); RETURN p_reply; END $$;

CREATE OR REPLACE FUNCTION @schema@.acquire_1(
    p_namespace bytea, p_name bytea, p_nonce text, p_client text, p_owner text, p_kind text, p_mode text,
    p_ttl float8, p_wait boolean, p_fair boolean, p_renews boolean, p_max_hold float8, p_permits integer,
    p_metadata text
) RETURNS text
LANGUAGE plpgsql AS $function$
DECLARE
    v_now     float8;
    v_wall    bigint;
    v_until   float8;
    v_expires float8;
    v_token   bigint;
    v_reply   text;
BEGIN
    IF NOT p_wait THEN
        -- The usual case in one statement: the row exists, without holders and waiters.
        v_now := @schema@.clock_1();
        v_wall := @schema@.wall_us_1(v_now);
        v_until := v_now + p_max_hold;
        v_expires := least(v_now + p_ttl, v_until);
        UPDATE @schema@.locks l SET
            version = l.version + 1,
            token = greatest(l.token + 1, v_wall),
            holders = ARRAY[ROW (
                p_nonce, p_client, p_owner, p_mode, greatest(l.token + 1, v_wall), v_now, v_expires, p_ttl,
                p_renews, v_until, p_metadata
            )::@schema@.holder],
            next_at = v_expires,
            changed_at = v_now
        WHERE l.ctid = @newest(locks, p_namespace, p_name)@
            AND l.holders IS NULL AND l.queue IS NULL AND l.ended IS NULL AND l.watchers IS NULL
            AND l.kind = p_kind AND (p_kind <> 'semaphore' OR p_permits IN (l.declared, l.permits))
            AND l.token + 1 < 9007199254740992 AND v_wall < 9007199254740992
        RETURNING l.token INTO v_token;
        IF FOUND THEN
            RETURN CASE WHEN p_max_hold IS NULL THEN 'G' || v_token ELSE 'G' || v_token || ' ' || v_until - v_now END;
        END IF;
    END IF;
    v_reply := @schema@.change_1(p_namespace, p_name, ROW (
        'acquire', p_nonce, p_client, p_owner, p_kind, p_mode, p_ttl, p_wait, p_fair, p_renews, p_max_hold,
        p_permits, p_metadata, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    )::@schema@.ask_1);
    RETURN CASE WHEN v_reply LIKE 'Q%' THEN @schema@.lazily_1(v_reply) ELSE v_reply END;
END
$function$;

CREATE OR REPLACE FUNCTION @schema@.release_1(p_namespace bytea, p_name bytea, p_nonce text, p_linger float8)
RETURNS text
LANGUAGE plpgsql AS $function$
DECLARE
    v_now float8 := @schema@.clock_1();
BEGIN
    IF p_linger <= 0 THEN
        UPDATE @schema@.locks l SET version = l.version + 1, holders = NULL, next_at = NULL, changed_at = v_now
        WHERE l.ctid = @newest(locks, p_namespace, p_name)@
            AND l.next_at > v_now AND cardinality(l.holders) = 1 AND (l.holders[1]).nonce = p_nonce
            AND l.queue IS NULL AND l.ended IS NULL AND l.watchers IS NULL;
        IF FOUND THEN
            RETURN @schema@.lazily_1('D');
        END IF;
    END IF;
    RETURN @schema@.lazily_1(@schema@.change_1(p_namespace, p_name, ROW (
        'release', p_nonce, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, p_linger, NULL,
        NULL, NULL, NULL, NULL, NULL, NULL
    )::@schema@.ask_1));
END
$function$;

-- Any other request.
CREATE OR REPLACE FUNCTION @schema@.apply_1(p_namespace bytea, p_name bytea, p_ask json, p_data bytea)
RETURNS text
LANGUAGE plpgsql AS $function$
DECLARE
    v_reply text := @schema@.dispatch_1(p_namespace, p_name, p_ask, p_data);
BEGIN
    IF p_ask ->> 'op' IN ('release', 'withdraw', 'stop', 'refresh', 'watch', 'unwatch') THEN
        RETURN @schema@.lazily_1(v_reply);
    END IF;
    RETURN v_reply;
END
$function$;

CREATE OR REPLACE FUNCTION @schema@.dispatch_1(p_namespace bytea, p_name bytea, p_ask json, p_data bytea)
RETURNS text
LANGUAGE plpgsql AS $function$
DECLARE
    a @schema@.ask_1 := json_populate_record(NULL::@schema@.ask_1, p_ask);
BEGIN
    IF a.op = 'refresh' THEN
        RETURN (@schema@.refresh_1(p_namespace, p_name, ARRAY[a.nonce]))[1];
    END IF;
    a.data := p_data;
    RETURN @schema@.change_1(p_namespace, p_name, a);
END
$function$;

-- Several names in one step, in the given order; may end with the first that is not granted. Rows are locked in
-- the order of their names, so that two such calls do not deadlock.
CREATE OR REPLACE FUNCTION @schema@.apply_in_order_1(
    p_namespace bytea, p_names bytea[], p_asks json[], p_stop boolean
) RETURNS text
LANGUAGE plpgsql AS $function$
DECLARE
    v_floor   bigint := @schema@.floor_1();
    v_replies text[] := '{}';
    v_reply   text;
BEGIN
    INSERT INTO @schema@.locks (namespace, name, version, token, permits, declared, changed_at)
    SELECT p_namespace, n, greatest(@schema@.wall_us_1(@schema@.clock_1()), 1), v_floor, 0, 0, @schema@.clock_1()
    FROM (SELECT DISTINCT unnest(p_names)) names (n) ORDER BY n
    ON CONFLICT DO NOTHING;
    IF @schema@.floor_1() > v_floor THEN
        RAISE EXCEPTION 'the floor of tokens was raised meanwhile' USING ERRCODE = 'serialization_failure';
    END IF;
    PERFORM 1 FROM @schema@.locks l WHERE l.namespace = p_namespace AND l.name = ANY (p_names)
    ORDER BY l.name FOR UPDATE;
    FOR i IN 1 .. cardinality(p_names) LOOP
        v_reply := @schema@.dispatch_1(p_namespace, p_names[i], p_asks[i], NULL);
        v_replies := v_replies || v_reply;
        EXIT WHEN p_stop AND v_reply NOT LIKE 'g%' AND p_asks[i] ->> 'op' = 'acquire';
    END LOOP;
    RETURN array_to_json(v_replies)::text;
END
$function$;

-- The keeper's batch: a renewal where there is a ttl, otherwise a refresh. Names are sorted, so that the
-- batches of two clients do not deadlock.
CREATE OR REPLACE FUNCTION @schema@.tend_1(
    p_namespace bytea, p_names bytea[], p_nonces text[], p_ttls float8[]
) RETURNS text
LANGUAGE plpgsql AS $function$
DECLARE
    v_replies text[] := '{}';
    v_count   integer := cardinality(p_names);
    i         integer := 1;
    j         integer;
BEGIN
    WHILE i <= v_count LOOP
        IF p_ttls[i] IS NULL THEN
            -- All waiters for one name are refreshed at once.
            j := i;
            WHILE j < v_count AND p_names[j + 1] = p_names[i] AND p_ttls[j + 1] IS NULL LOOP
                j := j + 1;
            END LOOP;
            v_replies := v_replies || @schema@.refresh_1(p_namespace, p_names[i], p_nonces[i : j]);
            i := j + 1;
        ELSE
            v_replies := v_replies || @schema@.renew_1(p_namespace, p_names[i], p_nonces[i], p_ttls[i]);
            i := i + 1;
        END IF;
    END LOOP;
    IF cardinality(array_remove(p_ttls, NULL)) = 0 THEN
        PERFORM @schema@.lazily_1(NULL);
    END IF;
    RETURN array_to_json(v_replies)::text;
END
$function$;

CREATE OR REPLACE FUNCTION @schema@.renew_1(p_namespace bytea, p_name bytea, p_nonce text, p_ttl float8)
RETURNS text
LANGUAGE plpgsql AS $function$
DECLARE
    v_now float8 := @schema@.clock_1();
BEGIN
    -- The usual case in one statement: one holder, and no waiter.
    UPDATE @schema@.locks l SET
        version = l.version + 1,
        holders[1].ttl = p_ttl,
        holders[1].expires_at = greatest(l.next_at, least(v_now + p_ttl, (l.holders[1]).until)),
        next_at = greatest(l.next_at, least(v_now + p_ttl, (l.holders[1]).until)),
        changed_at = v_now
    WHERE l.ctid = @newest(locks, p_namespace, p_name)@
        AND l.next_at > v_now AND cardinality(l.holders) = 1 AND (l.holders[1]).nonce = p_nonce
        AND l.queue IS NULL AND l.ended IS NULL AND l.watchers IS NULL;
    IF FOUND THEN
        RETURN 'D';
    END IF;
    RETURN @schema@.change_1(p_namespace, p_name, ROW (
        'renew', p_nonce, NULL, NULL, NULL, NULL, p_ttl, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, NULL
    )::@schema@.ask_1);
END
$function$;

-- Keep waiters (or watchers) in their places; returns the position of each.
CREATE OR REPLACE FUNCTION @schema@.refresh_1(p_namespace bytea, p_name bytea, p_nonces text[]) RETURNS text[]
LANGUAGE plpgsql AS $function$
DECLARE
    v_now     float8;
    v_before  @schema@.locks;
    r         @schema@.locks;
    v_places  integer[];
    v_watches text[];
BEGIN
    FOR attempt IN 1 .. 100 LOOP
        v_before := @schema@.load_1(p_namespace, p_name, attempt > 1);
        v_now := @schema@.clock_1();
        r := v_before;
        IF r.next_at <= v_now THEN
            r := @schema@.settle_1(r, v_now);
        END IF;
        v_places := ARRAY(
            SELECT w.place FROM unnest(p_nonces) WITH ORDINALITY n (nonce, i)
            LEFT JOIN (
                SELECT q.nonce, q.place::integer FROM unnest(r.queue) WITH ORDINALITY
                    q (nonce, client, owner, mode, since, expires_at, turn_at, place)
            ) w ON w.nonce = n.nonce
            ORDER BY n.i
        );
        v_watches := ARRAY(
            SELECT o.nonce FROM unnest(r.watchers) o WHERE o.nonce = ANY (p_nonces) AND o.expires_at > v_now
        );
        IF cardinality(v_watches) > 0 OR cardinality(array_remove(v_places, NULL)) > 0 THEN
            FOR i IN 1 .. cardinality(v_places) LOOP
                IF v_places[i] IS NOT NULL THEN
                    r.queue[v_places[i]].expires_at := v_now + 5.0;
                END IF;
            END LOOP;
            FOR i IN 1 .. coalesce(cardinality(r.watchers), 0) LOOP
                IF (r.watchers[i]).nonce = ANY (v_watches) THEN
                    r.watchers[i].expires_at := v_now + 5.0;
                END IF;
            END LOOP;
            r.next_at := @schema@.next_at_1(r.holders, r.queue);
            CONTINUE WHEN NOT @schema@.store_1(v_before, r, false, v_now);
        END IF;
        RETURN ARRAY(
            SELECT CASE
                WHEN place IS NOT NULL THEN @schema@.queued_1(r, place, v_now)
                WHEN nonce = ANY (v_watches) THEN 'D'
                ELSE 'A'
            END
            FROM unnest(p_nonces, v_places) WITH ORDINALITY t (nonce, place, i) ORDER BY i
        );
    END LOOP;
    RAISE EXCEPTION 'the record kept changing' USING ERRCODE = 'serialization_failure';
END
$function$;

-- The names with a prefix that are in use, with their snapshots: one page, after a given name.
CREATE OR REPLACE FUNCTION @schema@.list_1(
    p_namespace bytea, p_prefix bytea, p_after bytea, p_count integer
)
RETURNS TABLE (name bytea, told text)
LANGUAGE plpgsql STABLE AS $function$
DECLARE
    v_now float8 := @schema@.clock_1();
    r     @schema@.locks;
BEGIN
    FOR r IN
        SELECT l.* FROM @schema@.locks l
        WHERE l.namespace = p_namespace AND l.name >= p_prefix AND l.name > p_after
        ORDER BY l.name
    LOOP
        EXIT WHEN p_count = 0 OR substring(r.name FOR length(p_prefix)) <> p_prefix;
        r := @schema@.settle_1(r, v_now);
        CONTINUE WHEN r.holders IS NULL AND r.queue IS NULL AND NOT EXISTS (
            SELECT FROM @schema@.values v
            WHERE v.namespace = r.namespace AND v.name = r.name
                AND v.forget_at_us > @schema@.wall_us_1(v_now)
        );
        name := r.name;
        told := @schema@.snapshot_1(r, v_now);
        RETURN NEXT;
        p_count := p_count - 1;
    END LOOP;
END
$function$;

-- A cell is the value of its name, without a row in the table of locks: read it, or store it on condition of its
-- version. Its expiry is beyond every clock.
CREATE OR REPLACE FUNCTION @schema@.read_cell_1(p_namespace bytea, p_name bytea) RETURNS text
LANGUAGE plpgsql STABLE AS $function$
DECLARE
    v_state json;
BEGIN
    SELECT json_build_array(v.token, false, encode(v.data, 'base64')) INTO v_state
    FROM @schema@.values v WHERE v.ctid = @newest(values, p_namespace, p_name)@;
    RETURN 'C' || coalesce(v_state, json_build_array(0, false, NULL));
END
$function$;

CREATE OR REPLACE FUNCTION @schema@.swap_cell_1(
    p_namespace bytea, p_name bytea, p_expected bigint, p_data bytea
) RETURNS text
LANGUAGE plpgsql AS $function$
DECLARE
    v_wall    bigint := @schema@.wall_us_1(@schema@.clock_1());
    v_version bigint;
BEGIN
    IF greatest(p_expected + 1, v_wall) >= 9007199254740992 THEN
        RETURN 'E';
    END IF;
    IF p_expected = 0 THEN
        INSERT INTO @schema@.values (namespace, name, data, token, forget_at_us)
        VALUES (p_namespace, p_name, p_data, greatest(v_wall, @schema@.floor_1() + 1), 9007199254740992)
        ON CONFLICT DO NOTHING
        RETURNING token INTO v_version;
    ELSE
        UPDATE @schema@.values v SET data = p_data, token = greatest(v.token + 1, v_wall)
        WHERE v.ctid = @newest(values, p_namespace, p_name)@ AND v.token = p_expected
        RETURNING v.token INTO v_version;
    END IF;
    IF v_version IS NULL THEN
        RETURN @schema@.read_cell_1(p_namespace, p_name);
    END IF;
    RETURN 'C' || json_build_array(v_version, true, NULL);
END
$function$;

-- Those of these grants that no longer exist: probably broken, without a notification that arrived.
CREATE OR REPLACE FUNCTION @schema@.missing_1(p_namespace bytea, p_names bytea[], p_nonces text[])
RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT coalesce(json_agg(asked.nonce), '[]')::text
    FROM unnest(p_names, p_nonces) asked (name, nonce)
    WHERE NOT EXISTS (
        SELECT FROM @schema@.locks l, unnest(l.holders) h
        WHERE l.namespace = p_namespace AND l.name = asked.name AND h.nonce = asked.nonce
    )
$$;

-- The handshake: the source of the tokens, the pid of this backend, and whether it is a standby.
CREATE OR REPLACE FUNCTION @schema@.hello_1() RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT json_build_array(m.source, pg_backend_pid(), pg_is_in_recovery())::text FROM @schema@.meta m
$$;
