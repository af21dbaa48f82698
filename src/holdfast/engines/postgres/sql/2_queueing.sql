-- The queue: the counterpart of rules/queueing.py.

-- The server's clock. Never now(): that stands still for the length of a transaction.
CREATE OR REPLACE FUNCTION @schema@.clock_1() RETURNS float8
LANGUAGE sql VOLATILE AS $$ SELECT date_part('epoch', clock_timestamp()) $$;

-- Wall time in microseconds, the floor of tokens; here it is the same clock.
CREATE OR REPLACE FUNCTION @schema@.wall_us_1(p_now float8) RETURNS bigint
LANGUAGE sql VOLATILE AS $$ SELECT (p_now * 1000000)::bigint $$;

-- The one predicate by which primitives differ: is a mode admitted beside so many holders (writers)?
CREATE OR REPLACE FUNCTION @schema@.admits_1(
    p_kind text, p_held integer, p_writers integer, p_mode text, p_permits integer
) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE p_kind
        WHEN 'rwlock' THEN p_held = 0 OR (p_mode = 'read' AND p_writers = 0)
        WHEN 'semaphore' THEN p_held < p_permits
        ELSE p_held = 0
    END
$$;

-- The queue with turns assigned: to the longest front of it that can be admitted together.
CREATE OR REPLACE FUNCTION @schema@.turns_1(r @schema@.locks, p_at float8) RETURNS @schema@.waiter[]
LANGUAGE plpgsql IMMUTABLE AS $function$
DECLARE
    v_queue   @schema@.waiter[] := r.queue;
    v_held    integer := coalesce(cardinality(r.holders), 0);
    -- A writer is the only holder, so the first holder is enough.
    v_writers integer := CASE WHEN (r.holders[1]).mode = 'write' THEN 1 ELSE 0 END;
    v_open    boolean := true;
    w         @schema@.waiter;
BEGIN
    FOR i IN 1 .. coalesce(cardinality(v_queue), 0) LOOP
        w := v_queue[i];
        v_open := v_open AND @schema@.admits_1(r.kind, v_held, v_writers, w.mode, r.permits);
        IF v_open THEN
            v_held := v_held + 1;
            IF w.mode = 'write' THEN
                v_writers := v_writers + 1;
            END IF;
            IF w.turn_at IS NULL THEN
                w.turn_at := p_at;
                v_queue[i] := w;
            END IF;
        ELSIF w.turn_at IS NOT NULL THEN
            w.turn_at := NULL;
            v_queue[i] := w;
        ELSE
            EXIT;  -- Only a front of the queue has turns: behind the first waiter without one there is none.
        END IF;
    END LOOP;
    RETURN v_queue;
END
$function$;

-- When time alone next changes the record; NULL: never.
CREATE OR REPLACE FUNCTION @schema@.next_at_1(p_holders @schema@.holder[], p_queue @schema@.waiter[])
RETURNS float8
LANGUAGE plpgsql IMMUTABLE AS $function$
DECLARE
    v_at float8;
    h    @schema@.holder;
    w    @schema@.waiter;
BEGIN
    IF p_holders IS NOT NULL THEN
        FOREACH h IN ARRAY p_holders LOOP
            v_at := least(v_at, h.expires_at);
        END LOOP;
    END IF;
    IF p_queue IS NOT NULL THEN
        FOREACH w IN ARRAY p_queue LOOP
            v_at := least(v_at, w.expires_at, w.turn_at + 2.0);
        END LOOP;
    END IF;
    RETURN v_at;
END
$function$;

-- The record at this moment: expired leases and missed turns are removed, turns are assigned.
CREATE OR REPLACE FUNCTION @schema@.settle_1(r @schema@.locks, p_now float8) RETURNS @schema@.locks
LANGUAGE plpgsql IMMUTABLE AS $function$
DECLARE
    v_late text[];
BEGIN
    WHILE r.next_at <= p_now LOOP
        -- A missed turn removes every entry of that client: a dead process costs one turn.
        v_late := ARRAY(SELECT w.client FROM unnest(r.queue) w WHERE w.turn_at + 2.0 <= r.next_at);
        r.holders := ARRAY(SELECT h FROM unnest(r.holders) h WHERE h.expires_at > r.next_at);
        r.queue := ARRAY(
            SELECT w FROM unnest(r.queue) w WHERE w.expires_at > r.next_at AND w.client <> ALL (v_late)
        );
        IF cardinality(r.holders) = 0 THEN
            r.holders := NULL;
        END IF;
        IF cardinality(r.queue) = 0 THEN
            r.queue := NULL;
        ELSE
            r.queue := @schema@.turns_1(r, r.next_at);
        END IF;
        r.next_at := @schema@.next_at_1(r.holders, r.queue);
    END LOOP;
    RETURN r;
END
$function$;
