-- Privileges: a role that locks may call the functions of clients, and needs no privilege on a table. So these
-- run with the privileges of the role that installed them, and look names up where no other role can add any.
--
-- The others run with the privileges of their caller. Two of them must: session_end_1 and session_cancel_1 signal
-- other sessions, which the caller may do to those of its own role (or with pg_signal_backend). And
-- session_wait_1 commits half-way, which a SECURITY DEFINER procedure cannot.

DO $do$
DECLARE
    f regprocedure;
BEGIN
    FOR f IN
        SELECT p.oid FROM pg_catalog.pg_proc p
        WHERE p.pronamespace = '@schema@'::regnamespace AND p.prokind = 'f' AND p.proname = ANY (ARRAY[
            'hello_1', 'acquire_1', 'release_1', 'apply_1', 'apply_in_order_1', 'tend_1', 'list_1', 'missing_1',
            'read_cell_1', 'swap_cell_1',
            'session_take_1', 'session_waits_1', 'session_release_1', 'session_undo_1', 'session_beat_1',
            'session_extend_1', 'session_downgrade_1', 'session_set_value_1', 'session_gone_1',
            'session_look_1', 'session_list_1', 'session_break_1', 'session_standing_1'
        ])
    LOOP
        EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp', f);
    END LOOP;
END
$do$;

REVOKE ALL ON ALL ROUTINES IN SCHEMA @schema@ FROM PUBLIC;
