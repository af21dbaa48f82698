-- The tables of the queue. Times are seconds since 1970 on the machine's clock; payloads and results are JSON texts.
--
-- `state` is materialised, so that each question a claimant asks is one short walk on a partial index: jobs that are
-- over, that wait for their time or for their predecessor are in none of the ready ones.
--
-- This file may be run again.

CREATE TABLE IF NOT EXISTS holdfast_queue_versions (
    version      integer PRIMARY KEY,
    installed_at text NOT NULL DEFAULT CURRENT_TIMESTAMP
);

CREATE TABLE IF NOT EXISTS holdfast_queue_kinds (
    namespace       text NOT NULL,
    kind            text NOT NULL,
    paused          integer NOT NULL DEFAULT 0,
    concurrency     integer,    -- how many may run at once, everywhere; NULL: any number
    key_concurrency integer,    -- the same for jobs of one key
    PRIMARY KEY (namespace, kind)
);

CREATE TABLE IF NOT EXISTS holdfast_queue_jobs (
    id               integer PRIMARY KEY AUTOINCREMENT,
    namespace        text NOT NULL,
    kind             text NOT NULL,
    key              text,
    lane             integer NOT NULL,    -- 0: none; its key's jobs run 1: one at a time, 2: in order, 3: by limit
    lane_rank        integer NOT NULL,    -- within a lane: what is promoted first
    uniqueness       integer NOT NULL,    -- 0: any number of its key; 1: one queued; 2: one unfinished
    holds_key        integer NOT NULL,    -- whether this is that one
    state            text NOT NULL,    -- scheduled blocked ready running, finished dead cancelled
    priority         integer NOT NULL,
    run_at           real NOT NULL,
    payload          text NOT NULL,
    max_attempts     integer NOT NULL,
    backoff_first    real NOT NULL,
    backoff_maximum  real NOT NULL,
    attempt          integer NOT NULL DEFAULT 0,
    token            integer NOT NULL DEFAULT 0,    -- counts claims: what tells the present claimant from earlier ones
    lease_seconds    real,
    lease_until      real,
    owner            text,
    cancel_requested integer NOT NULL DEFAULT 0,
    result           text,
    error            text,
    created_at       real NOT NULL,
    started_at       real,
    ended_at         real
);

CREATE INDEX IF NOT EXISTS holdfast_queue_jobs_ready ON holdfast_queue_jobs (namespace, kind, priority DESC, id)
    WHERE state = 'ready';
CREATE INDEX IF NOT EXISTS holdfast_queue_jobs_scheduled ON holdfast_queue_jobs (namespace, run_at)
    WHERE state = 'scheduled';
CREATE INDEX IF NOT EXISTS holdfast_queue_jobs_running ON holdfast_queue_jobs (namespace, lease_until)
    WHERE state = 'running';
CREATE UNIQUE INDEX IF NOT EXISTS holdfast_queue_jobs_key ON holdfast_queue_jobs (namespace, kind, key)
    WHERE holds_key = 1;
CREATE INDEX IF NOT EXISTS holdfast_queue_jobs_blocked ON holdfast_queue_jobs (namespace, kind, key, lane_rank, id)
    WHERE state = 'blocked';
CREATE INDEX IF NOT EXISTS holdfast_queue_jobs_lane ON holdfast_queue_jobs (namespace, kind, key)
    WHERE lane > 0 AND (state = 'ready' OR state = 'running' OR state = 'scheduled' AND lane = 2);
CREATE INDEX IF NOT EXISTS holdfast_queue_jobs_ended ON holdfast_queue_jobs (namespace, state, ended_at)
    WHERE ended_at IS NOT NULL;

CREATE TABLE IF NOT EXISTS holdfast_queue_periodic (
    namespace text NOT NULL,
    name      text NOT NULL,
    kind      text NOT NULL,
    payload   text NOT NULL,
    schedule  text NOT NULL,
    options   text NOT NULL,
    next_at   real NOT NULL,
    last_at   real,
    PRIMARY KEY (namespace, name)
);
CREATE INDEX IF NOT EXISTS holdfast_queue_periodic_next ON holdfast_queue_periodic (namespace, next_at);
