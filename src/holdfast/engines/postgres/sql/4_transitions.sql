-- The rule: what each request does to a settled record. The counterpart of rules/transitions.py, compared with
-- it reply by reply. These functions read and write no table, except for the value of a name.

CREATE OR REPLACE FUNCTION @schema@.holder_at_1(p_holders @schema@.holder[], p_nonce text) RETURNS integer
LANGUAGE plpgsql IMMUTABLE AS $function$
BEGIN
    FOR i IN 1 .. coalesce(cardinality(p_holders), 0) LOOP
        IF (p_holders[i]).nonce = p_nonce THEN
            RETURN i;
        END IF;
    END LOOP;
    RETURN NULL;
END
$function$;

CREATE OR REPLACE FUNCTION @schema@.waiter_at_1(p_queue @schema@.waiter[], p_nonce text) RETURNS integer
LANGUAGE plpgsql IMMUTABLE AS $function$
BEGIN
    FOR i IN 1 .. coalesce(cardinality(p_queue), 0) LOOP
        IF (p_queue[i]).nonce = p_nonce THEN
            RETURN i;
        END IF;
    END LOOP;
    RETURN NULL;
END
$function$;

-- Larger than every earlier token, and, if the counter is lost, larger than those before the loss. NULL: no
-- number below 2^53 is left.
CREATE OR REPLACE FUNCTION @schema@.next_token_1(r @schema@.locks, p_wall bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $function$
DECLARE
    v_token bigint := greatest(r.token + 1, p_wall);
BEGIN
    IF r.version = 0 THEN
        v_token := greatest(v_token, @schema@.floor_1() + 1);
    END IF;
    RETURN CASE WHEN v_token < 9007199254740992 THEN v_token END;
END
$function$;

-- Remember that an attempt is over, so that a copy of it that arrives late is refused.
CREATE OR REPLACE FUNCTION @schema@.remembering_1(
    p_ended @schema@.ended[], p_nonce text, p_linger float8, p_now float8
) RETURNS @schema@.ended[]
LANGUAGE plpgsql IMMUTABLE AS $function$
DECLARE
    v_over   @schema@.ended;
    v_others @schema@.ended[] := '{}';
    e        @schema@.ended;
BEGIN
    IF p_linger <= 0 THEN
        RETURN p_ended;
    END IF;
    v_over := ROW (p_nonce, 'withdrawn', '', p_now + p_linger);
    FOREACH e IN ARRAY coalesce(p_ended, '{}') LOOP
        IF e.nonce <> p_nonce THEN
            v_others := v_others || e;
        ELSIF e.forget_at >= v_over.forget_at THEN
            RETURN p_ended;
        ELSE
            e.forget_at := v_over.forget_at;
            v_over := e;
        END IF;
    END LOOP;
    RETURN v_others || v_over;
END
$function$;

-- Acquiring ----------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION @schema@.acquiring_1(
    r @schema@.locks, a @schema@.ask_1, p_now float8, p_wall bigint
) RETURNS @schema@.step_1
LANGUAGE plpgsql AS $function$
DECLARE
    s         @schema@.step_1;
    v_index   integer;
    v_place   integer;
    v_held    integer := coalesce(cardinality(r.holders), 0);
    v_writers integer := CASE WHEN (r.holders[1]).mode = 'write' THEN 1 ELSE 0 END;
    v_may     boolean := true;
    v_token   bigint;
    v_until   float8;
    h         @schema@.holder;
    w         @schema@.waiter;
    e         @schema@.ended;
BEGIN
    s.changed := false;
    IF r.kind <> a.kind OR (r.kind = 'semaphore' AND a.permits NOT IN (r.declared, r.permits)) THEN
        s.reply := 'M' || json_build_array(r.kind, r.declared);
        RETURN s;
    END IF;
    v_index := @schema@.holder_at_1(r.holders, a.nonce);
    IF v_index IS NOT NULL THEN
        h := r.holders[v_index];
        s.reply := @schema@.granted_1(r, h, p_now, greatest(p_now - h.since, 0.0));
        RETURN s;
    END IF;
    IF r.ended IS NOT NULL THEN
        FOREACH e IN ARRAY r.ended LOOP
            IF e.nonce = a.nonce THEN
                s.reply := 'X' || json_build_array(e.reason, e.note);
                RETURN s;
            END IF;
        END LOOP;
    END IF;
    IF r.kind IS NULL THEN
        s.changed := true;
        r.kind := a.kind;
        r.permits := a.permits;
        r.declared := a.permits;
    END IF;

    v_place := @schema@.waiter_at_1(r.queue, a.nonce);
    IF v_place IS NULL THEN
        -- An attempt that is not in the queue comes behind all waiters, unless it barges.
        IF a.fair AND r.queue IS NOT NULL THEN
            FOREACH w IN ARRAY r.queue LOOP
                v_may := w.turn_at IS NOT NULL;
                EXIT WHEN NOT v_may;
                v_held := v_held + 1;
                v_writers := v_writers + CASE WHEN w.mode = 'write' THEN 1 ELSE 0 END;
            END LOOP;
        END IF;
        v_may := v_may AND @schema@.admits_1(r.kind, v_held, v_writers, a.mode, r.permits);
    ELSE
        v_may := (r.queue[v_place]).turn_at IS NOT NULL
            OR (NOT a.fair AND @schema@.admits_1(r.kind, v_held, v_writers, a.mode, r.permits));
    END IF;

    IF v_may THEN
        v_token := @schema@.next_token_1(r, p_wall);
        IF v_token IS NULL THEN
            s.reply := 'E';
        ELSE
            v_until := p_now + a.max_hold;
            h := ROW (
                a.nonce, a.client, a.owner, a.mode, v_token, p_now, least(p_now + a.ttl, v_until), a.ttl,
                a.renews, v_until, a.metadata
            );
            r.token := v_token;
            r.holders := r.holders || h;
            IF v_place IS NOT NULL THEN
                r.queue := r.queue[: v_place - 1] || r.queue[v_place + 1 :];
            END IF;
            s.changed := true;
            s.reply := @schema@.granted_1(r, h, p_now, 0.0);
        END IF;
    ELSIF NOT a.wait THEN
        s.reply := 'B' || json_build_array(r.holders, p_now);
    ELSE
        IF v_place IS NULL THEN
            w := ROW (a.nonce, a.client, a.owner, a.mode, p_now, p_now + 5.0, NULL);
            r.queue := r.queue || w;
        ELSE
            w := r.queue[v_place];
            w.expires_at := p_now + 5.0;
            r.queue[v_place] := w;
        END IF;
        s.changed := true;
    END IF;
    s.record := r;
    RETURN s;
END
$function$;

-- Releasing ----------------------------------------------------------------------------------------------

-- A release or a withdrawal: nothing of the attempt remains.
CREATE OR REPLACE FUNCTION @schema@.leaving_1(
    r @schema@.locks, a @schema@.ask_1, p_now float8
) RETURNS @schema@.step_1
LANGUAGE plpgsql AS $function$
DECLARE
    s       @schema@.step_1;
    v_index integer := @schema@.holder_at_1(r.holders, a.nonce);
    v_place integer;
    v_ended @schema@.ended[] := @schema@.remembering_1(r.ended, a.nonce, a.linger, p_now);
BEGIN
    IF a.op = 'withdraw' OR v_index IS NOT NULL THEN
        v_place := @schema@.waiter_at_1(r.queue, a.nonce);
    END IF;
    IF v_index IS NULL AND a.op = 'release' THEN
        s.reply := @schema@.gone_1(r, a.nonce);
    END IF;
    s.changed := v_index IS NOT NULL OR v_place IS NOT NULL OR v_ended IS DISTINCT FROM r.ended;
    IF v_index IS NOT NULL THEN
        r.holders := r.holders[: v_index - 1] || r.holders[v_index + 1 :];
        r.holders := CASE WHEN cardinality(r.holders) > 0 THEN r.holders END;
    END IF;
    IF v_place IS NOT NULL THEN
        r.queue := r.queue[: v_place - 1] || r.queue[v_place + 1 :];
    END IF;
    r.ended := v_ended;
    IF a.op = 'withdraw' THEN
        s.reply := 'W' || json_build_array(r.holders, p_now);
    ELSIF v_index IS NOT NULL THEN
        s.reply := 'D';
    END IF;
    s.record := r;
    RETURN s;
END
$function$;

CREATE OR REPLACE FUNCTION @schema@.breaking_1(
    r @schema@.locks, a @schema@.ask_1, p_now float8, p_wall bigint
) RETURNS @schema@.step_1
LANGUAGE plpgsql AS $function$
DECLARE
    s       @schema@.step_1;
    v_token bigint;
BEGIN
    s.changed := false;
    s.victims := ARRAY(SELECT h FROM unnest(r.holders) h WHERE a.token IS NULL OR h.token = a.token);
    IF cardinality(s.victims) = 0 THEN
        s.reply := 'K' || json_build_array(NULL, NULL);
        RETURN s;
    END IF;
    v_token := @schema@.next_token_1(r, p_wall);
    IF v_token IS NULL THEN
        s.victims := NULL;
        s.reply := 'E';
        RETURN s;
    END IF;
    r.token := v_token;
    r.holders := ARRAY(SELECT h FROM unnest(r.holders) h WHERE a.token IS NOT NULL AND h.token <> a.token);
    r.holders := CASE WHEN cardinality(r.holders) > 0 THEN r.holders END;
    -- Kept for an hour beyond its ttl, so that its holder learns why it is gone.
    r.ended := r.ended || ARRAY(
        SELECT ROW (v.nonce, 'broken', a.reason, p_now + v.ttl + 3600.0)::@schema@.ended
        FROM unnest(s.victims) v
    );
    s.changed := true;
    s.record := r;
    s.reply := 'K' || json_build_array(v_token, s.victims);
    RETURN s;
END
$function$;

-- Renewing -----------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION @schema@.forget_at_us_1(a @schema@.ask_1, p_wall bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT p_wall + trunc(a.retention * 1000000)::bigint $$;

-- Renew, stop, export, adopt, downgrade, set a value: requests of the holder.
CREATE OR REPLACE FUNCTION @schema@.holding_1(
    r @schema@.locks, a @schema@.ask_1, p_now float8, p_wall bigint
) RETURNS @schema@.step_1
LANGUAGE plpgsql AS $function$
DECLARE
    s       @schema@.step_1;
    v_index integer := @schema@.holder_at_1(r.holders, a.nonce);
    v_other integer;
    h       @schema@.holder;
BEGIN
    s.changed := false;
    IF a.op = 'downgrade' THEN
        v_other := @schema@.holder_at_1(r.holders, a.reader_nonce);
        IF v_other IS NOT NULL THEN
            s.reply := @schema@.granted_1(r, r.holders[v_other], p_now, 0.0);
            RETURN s;
        END IF;
        IF EXISTS (SELECT FROM unnest(r.ended) e WHERE e.nonce = a.reader_nonce) THEN
            s.reply := @schema@.gone_1(r, a.reader_nonce);
            RETURN s;
        END IF;
        IF (r.holders[v_index]).mode <> 'write' THEN
            v_index := NULL;
        END IF;
    END IF;
    IF v_index IS NULL THEN
        s.reply := @schema@.gone_1(r, a.nonce);
        RETURN s;
    END IF;
    h := r.holders[v_index];
    IF a.op = 'adopt' AND h.client <> a.client AND (h.client = '' AND h.owner = a.seal) IS NOT TRUE THEN
        s.reply := 'X' || json_build_array('stolen', 'it was not exported with this secret, or another client adopted it');
        RETURN s;
    END IF;

    s.reply := 'D';
    IF a.op = 'renew' THEN
        h.expires_at := greatest(h.expires_at, least(p_now + a.ttl, h.until));
        h.ttl := a.ttl;
    ELSIF a.op = 'stop' THEN
        h.renews := false;
    ELSIF a.op = 'set_value' THEN
        s.news := NOT EXISTS (
            SELECT FROM @schema@.values v
            WHERE v.namespace = r.namespace AND v.name = r.name
                AND v.data = a.data AND v.token = h.token AND v.forget_at_us = @schema@.forget_at_us_1(a, p_wall)
        );
    ELSE
        h.expires_at := greatest(h.expires_at, least(p_now + h.ttl, h.until));
        IF a.op = 'export' THEN
            h.client := '';
            h.owner := a.seal;
            h.renews := false;
        ELSIF a.op = 'adopt' THEN
            h.client := a.client;
            h.owner := a.owner;
            h.renews := a.renews;
        ELSE
            h.token := @schema@.next_token_1(r, p_wall);
            IF h.token IS NULL THEN
                s.reply := 'E';
                RETURN s;
            END IF;
            h.nonce := a.reader_nonce;
            h.mode := 'read';
            h.since := p_now;
            r.token := h.token;
        END IF;
    END IF;
    r.holders[v_index] := h;
    IF a.op IN ('adopt', 'downgrade') THEN
        s.reply := @schema@.granted_1(r, h, p_now, 0.0);
    END IF;
    s.changed := true;
    s.record := r;
    RETURN s;
END
$function$;

-- Administration --------------------------------------------------------------------------------------------

-- Resize, watch, unwatch: requests that need no grant.
CREATE OR REPLACE FUNCTION @schema@.visiting_1(
    r @schema@.locks, a @schema@.ask_1, p_now float8
) RETURNS @schema@.step_1
LANGUAGE plpgsql AS $function$
DECLARE
    s        @schema@.step_1;
    v_others @schema@.watcher[];
    v_me     @schema@.watcher;
BEGIN
    s.changed := true;
    s.reply := 'D';
    IF a.op = 'resize' THEN
        IF r.kind <> 'semaphore' OR (r.kind = 'semaphore' AND a.declared NOT IN (r.declared, r.permits)) THEN
            s.reply := 'M' || json_build_array(r.kind, r.declared);
            s.changed := false;
            RETURN s;
        END IF;
        r.kind := 'semaphore';
        r.declared := CASE WHEN r.declared = 0 THEN a.declared ELSE r.declared END;
        r.permits := a.permits;
        ELSE
        v_others := ARRAY(SELECT o FROM unnest(r.watchers) o WHERE o.nonce <> a.nonce);
        IF a.op = 'watch' THEN
            v_me := ROW (a.nonce, a.client, p_now + 5.0);
            r.watchers := v_others || v_me;
            s.reply := @schema@.snapshot_1(r, p_now);
        ELSE
            s.changed := cardinality(v_others) < coalesce(cardinality(r.watchers), 0);
            r.watchers := v_others;
        END IF;
    END IF;
    s.record := r;
    RETURN s;
END
$function$;
