-- Replies: a letter that says which reply it is, and its fields as JSON.

CREATE OR REPLACE FUNCTION @schema@.granted_1(
    r @schema@.locks, h @schema@.holder, p_now float8, p_age float8
) RETURNS text
LANGUAGE plpgsql STABLE AS $function$
DECLARE
    v_peers bigint[];
BEGIN
    IF h.mode IN ('read', 'permit') THEN
        v_peers := ARRAY(
            SELECT o.token FROM unnest(r.holders) o WHERE o.mode IN ('read', 'permit') AND o.nonce <> h.nonce
        );
    END IF;
    RETURN 'g' || json_build_array(
        h.token, v_peers, coalesce(r.kind, 'lock'), h.mode, h.ttl, h.until - p_now, h.metadata, p_age
    );
END
$function$;

CREATE OR REPLACE FUNCTION @schema@.gone_1(r @schema@.locks, p_nonce text) RETURNS text
LANGUAGE plpgsql STABLE AS $function$
DECLARE
    e @schema@.ended;
BEGIN
    IF r.ended IS NOT NULL THEN
        FOREACH e IN ARRAY r.ended LOOP
            IF e.nonce = p_nonce THEN
                RETURN 'X' || json_build_array(e.reason, e.note);
            END IF;
        END LOOP;
    END IF;
    RETURN 'X' || json_build_array(CASE WHEN r.holders IS NULL THEN 'expired' ELSE 'stolen' END, '');
END
$function$;

-- The position of a waiter, when to poll again, and the clients whose death would move it. The waiters at the
-- front, those that have a turn, delay the others for no longer than their own turns.
CREATE OR REPLACE FUNCTION @schema@.queued_1(r @schema@.locks, p_place integer, p_now float8) RETURNS text
LANGUAGE plpgsql STABLE AS $function$
DECLARE
    v_look_in  float8 := 0.0;
    v_ahead    integer := p_place - 1;
    v_blockers text[] := '{}';
    v_client   text;
    h          @schema@.holder;
BEGIN
    IF (r.queue[p_place]).turn_at IS NULL THEN
        FOR i IN 1 .. p_place - 1 LOOP
            EXIT WHEN (r.queue[i]).turn_at IS NULL;
            v_ahead := v_ahead - 1;
        END LOOP;
        v_look_in := greatest(r.next_at - p_now, 0.0) + v_ahead * 2.0;
    END IF;
    IF r.holders IS NOT NULL THEN
        FOREACH h IN ARRAY r.holders LOOP
            IF h.client <> '' AND h.client <> ALL (v_blockers) THEN
                v_blockers := v_blockers || h.client;
            END IF;
        END LOOP;
    END IF;
    v_client := (r.queue[p_place - 1]).client;
    IF p_place > 1 AND v_client <> ALL (v_blockers) THEN
        v_blockers := v_blockers || v_client;
    END IF;
    RETURN 'Q' || json_build_array(p_place - 1, v_look_in, v_blockers);
END
$function$;

-- The whole record, with the value of the name.
CREATE OR REPLACE FUNCTION @schema@.snapshot_1(r @schema@.locks, p_now float8) RETURNS text
LANGUAGE plpgsql STABLE AS $function$
DECLARE
    v_value json;
BEGIN
    SELECT json_build_array(encode(v.data, 'base64'), v.token, v.forget_at_us) INTO v_value
    FROM @schema@.values v
    WHERE v.namespace = r.namespace AND v.name = r.name AND v.forget_at_us > @schema@.wall_us_1(p_now);
    RETURN 'S' || json_build_array(
        r.kind, r.token, r.holders, r.queue, r.permits, r.declared, v_value, r.ended, r.watchers, p_now
    );
END
$function$;
