"""What jobs do, told on each database: put, claim, finish, fail, retry, cancel, lanes, limits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import holdfast.queue
from holdfast.errors import Conflict, InvalidArgument, StaleToken
from holdfast.queue import Backoff, Job, JobCancelled, NewJob, Queue
from holdfast.queue.calls import finish_many_call
from holdfast.queue.cron import Every, parse_schedule
from support import wait_until


def the_one(jobs: list[Job]) -> Job:
    assert len(jobs) == 1, jobs
    return jobs[0]


def state_of(queue: Queue, job: int) -> str | None:
    found = queue.get(job)
    return None if found is None else found.state


def expire(queue: Queue, kind: str) -> Job:
    """The next claim of a job, once its lease is over."""
    return the_one(wait_until(lambda: queue.claim(kind)))


def test_put_claim_finish(queue: Queue) -> None:
    id_ = queue.put("mail", {"to": "ann", "text": "\0 \ud7ff 'quoted' %s :name"})
    job = the_one(queue.claim(["mail"]))
    assert (job.id, job.kind, job.attempt, job.token) == (id_, "mail", 1, 1)
    assert job.payload == {"to": "ann", "text": "\0 \ud7ff 'quoted' %s :name"}
    assert queue.claim(["mail"]) == []
    job.check()
    job.extend()
    job.finish({"sent": True})
    job.finish({"sent": True})  # as after an answer that was lost
    found = queue.get(id_)
    assert found is not None
    assert (found.state, found.result) == ("finished", {"sent": True})
    with pytest.raises(StaleToken, match="it is finished"):
        job.fail("too late")


def test_the_best_first(queue: Queue) -> None:
    low, high, other = queue.put("a"), queue.put("a", priority=5), queue.put("b", priority=3)
    young = queue.put("a", priority=5)
    assert [job.id for job in queue.claim(limit=10)] == [high, young, other, low]


def test_one_by_one_the_best_of_several_kinds(queue: Queue) -> None:
    put = {queue.put(kind, priority=priority): priority for kind in "abc" for priority in (1, 3, 2)}
    claimed = [the_one(queue.claim(["a", "b", "c"])).id for _ in put]
    assert [put[id_] for id_ in claimed] == sorted(put.values(), reverse=True)
    assert queue.claim(["a", "b", "c"]) == []


def test_put_many_in_order(queue: Queue) -> None:
    ids = queue.put_many(NewJob("a", n, key="same" if n % 10 == 3 else None) for n in range(40))
    assert ids[3] == ids[13] == ids[33]
    assert len(set(ids)) == 37
    payloads = [job.payload for job in queue.claim("a", limit=100)]
    assert payloads == [n for n in range(40) if n == 3 or n % 10 != 3]


def test_a_later_job_does_not_block_a_ready_one(queue: Queue) -> None:
    later = queue.put("a", run_at=timedelta(hours=1), priority=9)
    fixed = queue.put("a", run_at=datetime(2200, 1, 1, tzinfo=UTC))
    soon = queue.put("a", run_at=timedelta(milliseconds=200))
    now = queue.put("a", run_at=datetime(2020, 1, 1, tzinfo=UTC))
    assert the_one(queue.claim("a")).id == now
    assert expire(queue, "a").id == soon
    assert {job.id for job in queue.jobs("scheduled")} == {later, fixed}


# --- tokens and leases


def test_a_zombie_is_refused(queue: Queue) -> None:
    id_ = queue.put("a")
    zombie = the_one(queue.claim("a", lease=0.05))
    successor = expire(queue, "a")
    assert (successor.id, successor.token, successor.attempt) == (id_, 2, 2)
    for act in (zombie.finish, zombie.extend, zombie.release, zombie.check, lambda: zombie.fail("x")):
        with pytest.raises(StaleToken) as refused:
            act()
        assert (refused.value.token, refused.value.newest) == (1, 2)
    with pytest.raises(StaleToken), zombie.transaction():
        pass
    assert state_of(queue, id_) == "running"
    successor.finish()
    with pytest.raises(StaleToken):
        zombie.finish()


def test_a_lease_that_nobody_took_is_still_the_claimants(queue: Queue) -> None:
    queue.put("a")
    job = the_one(queue.claim("a", lease=0.05))
    wait_until(lambda: (queue._store.run(holdfast.queue.plans.next_event) or 0) <= 0)
    job.extend(30)
    assert queue.claim("a") == []
    job.finish()


def test_a_job_that_kills_its_workers_is_dead_in_the_end(queue: Queue) -> None:
    id_ = queue.put("a", max_attempts=2)
    the_one(queue.claim("a", lease=0.05))
    wait_until(lambda: queue.claim("a", lease=0.05))
    wait_until(lambda: queue.claim("a") == [] and state_of(queue, id_) == "dead")
    found = queue.get(id_)
    assert found is not None
    assert "expired" in (found.error or "")


def test_release_costs_no_attempt(queue: Queue) -> None:
    queue.put("a", max_attempts=1)
    the_one(queue.claim("a")).release()
    job = the_one(queue.claim("a"))
    assert (job.attempt, job.token) == (1, 2)


def test_extend_many(queue: Queue) -> None:
    queue.put_many([NewJob("a", n) for n in range(3)])
    one, two, three = queue.claim("a", limit=3)
    one.finish()
    queue.cancel(two.id)
    assert queue.extend_many([one, two, three]) == {two.id: True, three.id: False}


# --- failing


def test_retries_back_off_and_end_dead(queue: Queue) -> None:
    id_ = queue.put("a", max_attempts=2, backoff=Backoff(100, 100))
    assert the_one(queue.claim("a")).fail(ValueError("once"), retry_in=0) == "scheduled"
    found = queue.get(id_)
    assert found is not None
    assert "ValueError: once" in (found.error or "")
    assert the_one(queue.claim("a")).fail("twice") == "dead"
    assert queue.retry(id_)
    job = the_one(queue.claim("a"))
    assert (job.attempt, job.token) == (1, 3)
    assert job.fail("for good", final=True) == "dead"


def test_the_pause_is_drawn_by_chance(queue: Queue) -> None:
    queue.put_many([NewJob("a", n, backoff=Backoff(1000, 1000)) for n in range(5)])
    for job in queue.claim("a", limit=5):
        job.fail("x")
    pauses = [job.run_at - job.created_at for job in queue.jobs("scheduled")]
    assert len(set(pauses)) == 5
    assert max(pauses) - min(pauses) > 1
    assert queue.claim("a") == []


# --- keys


def test_one_unfinished_job_of_a_key(queue: Queue) -> None:
    first = queue.put("a", 1, key="k")
    assert queue.put("a", 2, key="k") == first
    assert queue.put("b", 2, key="k") != first
    job = the_one(queue.claim("a"))
    assert queue.put("a", 3, key="k") == first
    job.fail("x", retry_in=0)
    assert queue.put("a", 4, key="k") == first
    the_one(queue.claim("a")).finish()
    assert queue.put("a", 5, key="k") != first


def test_one_queued_job_of_a_key(queue: Queue) -> None:
    first = queue.put("a", key="k", unique="queued")
    assert queue.put("a", key="k", unique="queued") == first
    the_one(queue.claim("a"))
    assert queue.put("a", key="k", unique="queued") != first


def test_one_running_job_of_a_key(queue: Queue) -> None:
    later = queue.put("a", "later", key="k", unique="running", run_at=timedelta(hours=1))
    low, high = (queue.put("a", n, key="k", unique="running", priority=n) for n in (0, 1))
    other = queue.put("a", key="other", unique="running")
    one = queue.claim("a", limit=9)
    assert {job.id for job in one} == {low, other}  # low came first, and was ready first
    assert queue.claim("a", limit=9) == []
    next(job for job in one if job.id == low).fail("x", retry_in=60)
    assert the_one(queue.claim("a")).id == high  # what waits for its next try blocks nobody
    assert state_of(queue, later) == "scheduled"


def test_in_order(queue: Queue) -> None:
    ids = [queue.put("a", n, key="k", ordered=True, max_attempts=2) for n in range(4)]
    assert queue.counts()["blocked"] == 3
    first = the_one(queue.claim("a", limit=9))
    first.fail("x", retry_in=60)
    assert queue.claim("a") == []  # strictly: those behind it wait for its next try
    assert queue.cancel(ids[0])
    assert queue.cancel(ids[1])
    job = the_one(queue.claim("a", limit=9))
    assert job.id == ids[2]
    job.release()
    the_one(queue.claim("a", limit=9)).finish()
    assert the_one(queue.claim("a", limit=9)).id == ids[3]


def test_a_dead_one_lets_the_next_go_on(queue: Queue) -> None:
    ids = [queue.put("a", n, key="k", ordered=True, max_attempts=1) for n in range(2)]
    the_one(queue.claim("a", lease=0.05))
    assert expire(queue, "a").id == ids[1]
    assert state_of(queue, ids[0]) == "dead"
    assert queue.retry(ids[0])
    assert queue.claim("a") == []
    assert state_of(queue, ids[0]) == "blocked"


def test_retry_of_one_whose_key_was_taken(queue: Queue) -> None:
    first = queue.put("a", key="k")
    queue.cancel(first)
    queue.put("a", key="k")
    with pytest.raises(Conflict, match="another job of its key"):
        queue.retry(first)


# --- kinds


def test_limits(queue: Queue) -> None:
    queue.limit("a", concurrency=2)
    queue.put_many([NewJob("a", n) for n in range(5)])
    queue.put("b", priority=-1)
    claimed = queue.claim(limit=9)
    assert [job.kind for job in claimed] == ["a", "a", "b"]
    assert queue.claim("a") == []
    claimed[0].finish()
    assert len(queue.claim(["a"], limit=9)) == 1
    queue.limit("a")
    assert len(queue.claim(["a"], limit=9)) == 2


def test_limits_of_keys(queue: Queue) -> None:
    queue.limit("a", key_concurrency=2)
    queue.put_many([NewJob("a", n, key=(n % 2 and "odd") or "even", unique=None) for n in range(10)])
    claimed = queue.claim("a", limit=20)
    assert [job.payload for job in claimed] == [0, 1, 2, 3]
    claimed[0].finish()
    assert the_one(queue.claim("a", limit=20)).payload == 4
    queue.limit("a", key_concurrency=3)
    assert [job.payload for job in queue.claim("a", limit=20)] == [5, 6]


def test_pause_and_resume(queue: Queue) -> None:
    queue.put("a")
    queue.pause("a")
    assert queue.claim("a") == queue.claim() == []
    assert [kind.paused for kind in queue.kinds()] == [True]
    queue.resume("a")
    assert len(queue.claim()) == 1


# --- cancelling


def test_cancel(queue: Queue) -> None:
    id_ = queue.put("a")
    assert queue.cancel(id_)
    assert not queue.cancel(id_)
    assert not queue.cancel(id_ + 1000)
    assert queue.claim() == []
    assert queue.retry(id_)
    job = the_one(queue.claim())
    assert queue.cancel(id_)
    for learns in (job.check, job.extend):
        with pytest.raises(JobCancelled):
            learns()
    assert job.fail("stopped") == "cancelled"


def test_cancelled_and_its_worker_is_dead(queue: Queue) -> None:
    id_ = queue.put("a")
    the_one(queue.claim("a", lease=0.05))
    queue.cancel(id_)
    wait_until(lambda: queue.claim("a") == [] and state_of(queue, id_) == "cancelled")


# --- the rest


def test_counts_jobs_prune(queue: Queue) -> None:
    ids = queue.put_many([NewJob("a", n) for n in range(4)])
    for job in queue.claim("a", limit=2):
        job.finish()
    assert queue.counts() == {**dict.fromkeys(queue.counts(), 0), "ready": 2, "finished": 2}
    assert queue.counts("b")["ready"] == 0
    assert [job.id for job in queue.jobs(after=ids[1])] == ids[2:]
    assert [job.id for job in queue.jobs(limit=1)] == ids[:1]
    assert queue.prune(older_than=3600) == 0
    assert queue.prune(older_than=0) == 2
    assert queue.get(ids[0]) is None


def test_what_is_old_is_removed_by_claimants(url: str) -> None:
    with holdfast.queue.connect(url, retention=0) as queue:
        queue.put("a")
        queue._store.removals.is_due()
        the_one(queue.claim("a")).finish()
        queue._store.removals._at = 0.0
        queue.claim("a")
        assert sum(queue.counts().values()) == 0


def test_claimants_remove_as_many_as_are_finished(url: str) -> None:
    """Not a thousand each half-minute: a fast queue would grow for ever."""
    with holdfast.queue.connect(url, retention=None) as queue:
        queue.put_many([NewJob("a") for _ in range(2500)])
        while jobs := queue.claim("a", limit=1000):
            queue._store.run(finish_many_call((job, None) for job in jobs))
        assert queue.counts()["finished"] == 2500
    with holdfast.queue.connect(url, retention=0) as queue:
        wait_until(lambda: not queue.claim("a") and not queue.counts()["finished"])


def test_namespaces_are_apart(url: str, queue: Queue) -> None:
    with holdfast.queue.connect(url, namespace="other") as other:
        id_ = other.put("a", key="k")
        assert queue.put("a", key="k") != id_
        assert queue.get(id_) is None
        assert not queue.cancel(id_)
        assert the_one(other.claim()).id == id_


def test_periodic(queue: Queue) -> None:
    queue.schedule("nightly", "clean", {"n": 1}, cron="0 3 * * *", key="clean")
    queue.schedule("often", "tick", every=1)
    job = wait_until(lambda: queue.claim("tick"))[0]
    queue.schedule("often", "tick", every=1)  # again, by the next process
    often = next(each for each in queue.scheduled() if each.name == "often")
    assert often.last_at is not None
    assert often.next_at > often.last_at
    job.finish()
    assert queue.unschedule("often")
    assert not queue.unschedule("often")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": ""}, "kind is empty"),
        ({"kind": "a\0b"}, "NUL"),
        ({"payload": object()}, "JSON"),
        ({"payload": float("nan")}, "JSON"),
        ({"priority": 1.5}, "priority"),
        ({"unique": "both"}, "give the key"),
        ({"key": "k", "unique": "once"}, "unique"),
        ({"key": "k", "unique": "both", "ordered": True}, "leave one"),
        ({"key": "k", "ordered": "no"}, "ordered is True or False"),
        ({"run_at": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001 - what is refused
        ({"run_at": timedelta(-1)}, "run_at"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"backoff": -1}, "backoff"),
    ],
)
def test_bad_jobs_are_refused_without_io(given: dict[str, object], message: str) -> None:
    queue = holdfast.queue.connect("postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(InvalidArgument, match=message):
        queue.put(**{"kind": "a", **given})  # type: ignore[arg-type]  # that is what is tested


def test_a_schedule_has_no_time_of_its_own() -> None:
    queue = holdfast.queue.connect("sqlite:///never-made.db")
    with pytest.raises(InvalidArgument, match="cannot have a run_at"):
        queue.schedule("s", "a", every=60, run_at=timedelta(hours=1))


@pytest.mark.parametrize("seconds", [60, 1_234_567, 0.1 + 0.2 + 86_400, 1e9 + 0.5])
def test_a_period_is_stored_with_all_its_digits(seconds: float) -> None:
    every = Every(float(seconds))
    assert parse_schedule(every.text) == every
