"""Single cases of the rules worth a test of their own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from holdfast.rules.record import EMPTY, MAX_TOKEN, PATIENCE_SECONDS, TURN_SECONDS, Record
from holdfast.rules.requests import (
    Absent,
    Acquire,
    Adopt,
    Break,
    Broken,
    Busy,
    Done,
    Downgrade,
    Exhausted,
    Export,
    Gone,
    Granted,
    Inspect,
    Mismatch,
    Queued,
    Refresh,
    Release,
    Renew,
    Reply,
    Request,
    Resize,
    SetValue,
    Snapshot,
    Unwatch,
    Wake,
    Watch,
    Withdraw,
    Withdrawn,
)
from holdfast.rules.transitions import ENDED_KEPT, apply


@dataclass
class Name:
    """One record and its clock."""

    kind: str = "lock"
    record: Record = EMPTY
    now: float = 100.0
    wall_us: int = 0
    limit: int = 0
    woken: tuple[Wake, ...] = ()

    def ask(self, request: Request, dead: tuple[str, ...] = ()) -> Reply:
        step = apply(self.record, request, self.now, self.wall_us, dead)
        self.record, self.woken = step.record, step.wake
        return step.reply

    def acquire(
        self,
        nonce: str,
        mode: str = "exclusive",
        ttl: float = 10.0,
        wait: bool = True,
        fair: bool = True,
        max_hold: float | None = None,
        dead: tuple[str, ...] = (),
    ) -> Reply:
        ask = Acquire(nonce, nonce[0], nonce, self.kind, mode, ttl, wait, fair, True, max_hold, self.limit)
        return self.ask(ask, dead)

    def granted(self, nonce: str, mode: str = "exclusive", ttl: float = 10.0) -> Granted:
        reply = self.acquire(nonce, mode, ttl)
        assert isinstance(reply, Granted), reply
        return reply

    def look(self) -> Record:
        snapshot = self.ask(Inspect())
        assert isinstance(snapshot, Snapshot)
        return snapshot.record

    def waiting(self) -> list[str]:
        return [w.nonce for w in self.look().queue]

    def woken_names(self) -> list[str]:
        return [wake.nonce for wake in self.woken]


# --- whose turn it is -------------------------------------------------------------------------


def test_a_release_wakes_the_head_only() -> None:
    name = Name()
    name.granted("a1")
    for waiter in ("b1", "c1", "d1"):
        assert isinstance(name.acquire(waiter), Queued)
        assert name.woken == ()
    name.ask(Release("a1"))
    assert name.woken == (Wake("b", "b1"),)


@pytest.mark.parametrize(
    "request_", [Withdraw("b1"), Withdraw("b1", 60.0)], ids=["withdrawn", "withdrawn-with-linger"]
)
def test_withdrawing_the_head_wakes_the_next_in_the_same_step(request_: Request) -> None:
    name = Name()
    name.granted("a1")
    name.acquire("b1")
    name.acquire("c1")
    name.ask(Release("a1"))
    assert isinstance(name.ask(request_), Withdrawn)
    assert name.woken == (Wake("c", "c1"),)


def test_withdrawing_one_behind_wakes_nobody() -> None:
    name = Name()
    name.granted("a1")
    name.acquire("b1")
    name.acquire("c1")
    name.ask(Withdraw("c1"))
    assert name.woken == ()
    assert name.waiting() == ["b1"]


def test_breaking_wakes_the_head_and_tells_the_victim() -> None:
    name = Name()
    name.granted("a1")
    name.acquire("b1")
    name.acquire("c1")
    reply = name.ask(Break(None, "stuck"))
    assert isinstance(reply, Broken)
    assert name.woken_names() == ["b1", "a1"]
    assert name.ask(Renew("a1", 10.0)) == Gone("broken", "stuck")


def test_downgrading_wakes_the_readers_up_to_the_first_writer() -> None:
    name = Name("rwlock")
    name.granted("a1", "write")
    for waiter, mode in (("b1", "read"), ("c1", "read"), ("d1", "write"), ("e1", "read")):
        name.acquire(waiter, mode)
    assert isinstance(name.ask(Downgrade("a1", "a2")), Granted)
    assert name.woken_names() == ["b1", "c1"]


def test_a_larger_limit_wakes_as_many_as_it_admits() -> None:
    name = Name("semaphore", limit=1)
    name.granted("a1", "permit")
    for waiter in ("b1", "c1", "d1"):
        name.acquire(waiter, "permit")
    assert name.ask(Resize(1, 3)) == Done()
    assert name.woken_names() == ["b1", "c1"]


def test_a_smaller_limit_takes_back_turns_and_gives_them_again() -> None:
    name = Name("semaphore", limit=2)
    name.granted("a1", "permit")
    name.granted("b1", "permit")
    name.acquire("c1", "permit")
    name.ask(Release("a1"))
    assert name.woken_names() == ["c1"]
    name.ask(Resize(2, 1))
    assert isinstance(name.acquire("c1", "permit"), Queued)
    name.ask(Release("b1"))
    assert name.woken_names() == ["c1"]
    name.granted("c1", "permit")


def test_below_what_is_held_nobody_is_revoked_and_nobody_admitted() -> None:
    name = Name("semaphore", limit=3)
    for holder in ("a1", "b1", "c1"):
        name.granted(holder, "permit")
    name.ask(Resize(3, 1))
    assert len(name.look().holders) == 3
    for holder in ("a1", "b1"):
        name.ask(Release(holder))
        assert isinstance(name.acquire("d1", "permit", wait=False), Busy)
    name.ask(Release("c1"))
    name.granted("d1", "permit")


def test_a_try_applies_the_same_purge() -> None:
    """A head that died before its turn was over does not block those who only try."""
    name = Name()
    name.granted("a1", ttl=3.0)
    name.acquire("b1")
    name.now += 3.0 + TURN_SECONDS - 0.01
    assert isinstance(name.acquire("c1", wait=False), Busy)
    name.now += 0.02
    assert isinstance(name.acquire("c1", wait=False), Granted)


def test_a_missed_turn_drops_all_entries_of_that_client_and_no_others() -> None:
    name = Name()
    name.granted("a1", ttl=1.0)
    for waiter in ("b1", "c1", "b2", "d1", "b3"):
        name.acquire(waiter)
    name.now += 1.0 + TURN_SECONDS
    assert name.waiting() == ["c1", "d1"]
    assert name.ask(Refresh("b2")) == Absent()


def test_a_place_expires_without_refresh_and_lives_with_it() -> None:
    name = Name()
    name.granted("a1", ttl=100.0)
    name.acquire("b1")
    name.acquire("c1")
    for _ in range(3):
        name.now += PATIENCE_SECONDS - 0.5
        name.ask(Refresh("c1"))
    assert name.waiting() == ["c1"]


def test_noticing_a_death_does_not_cost_the_living_their_turn() -> None:
    """The head is found dead long after the lease ran out: the next one's turn begins now, not back then."""
    name = Name()
    name.granted("a1", ttl=1.0)
    name.acquire("b1")
    name.acquire("c1")
    name.acquire("d1")
    name.now += 1.0 + TURN_SECONDS + 0.5
    assert isinstance(name.ask(Refresh("d1"), dead=("b",)), Queued)
    assert name.woken_names() == ["c1"]
    name.now += 1.0
    assert isinstance(name.acquire("c1", dead=("b",)), Granted)


def test_a_barger_takes_the_turn_of_the_head_and_the_head_gets_it_back() -> None:
    name = Name()
    name.granted("a1")
    name.acquire("b1")
    name.ask(Release("a1"))
    assert name.woken_names() == ["b1"]
    assert isinstance(name.acquire("c1", fair=False), Granted)
    assert isinstance(name.acquire("b1"), Queued)
    name.ask(Release("c1"))
    assert name.woken_names() == ["b1"]
    name.granted("b1")


def test_a_barger_in_the_queue_passes_those_before_it() -> None:
    name = Name()
    name.granted("a1")
    name.acquire("b1")
    name.acquire("c1", fair=False)
    name.ask(Release("a1"))
    assert isinstance(name.acquire("c1", fair=False), Granted)
    assert name.waiting() == ["b1"]


def test_a_try_that_fails_leaves_nothing() -> None:
    name = Name()
    name.granted("a1")
    before = name.record
    reply = name.acquire("b1", wait=False)
    assert isinstance(reply, Busy)
    assert [h.nonce for h in reply.holders] == ["a1"]
    assert name.record is before


# --- attempts ---------------------------------------------------------------------------------


def test_a_retry_is_recognised_and_does_not_extend() -> None:
    """Its asker counts from the first time it asked."""
    name = Name()
    first = name.granted("a1")
    held = name.record.holders
    name.now += 5.0
    assert name.granted("a1").token == first.token
    assert name.record.holders == held


def test_a_late_copy_of_an_ended_attempt_is_refused() -> None:
    for end in (Release("a1", 60.0), Withdraw("a1", 60.0)):
        name = Name()
        name.granted("a1")
        name.ask(end)
        name.now += 59.0
        assert name.acquire("a1") == Gone("withdrawn")
        assert name.look().holders == ()


def test_an_attempt_withdrawn_before_it_arrived_is_refused_when_it_does() -> None:
    name = Name()
    name.ask(Withdraw("a1", 60.0))
    assert name.acquire("a1") == Gone("withdrawn")
    name.granted("b1")


def test_ending_an_attempt_again_is_remembered_for_as_long_as_was_asked() -> None:
    name = Name()
    name.ask(Withdraw("a1", 1.0))
    name.now += 2.0
    name.ask(Withdraw("a1", 60.0))
    name.now += 10.0
    assert name.acquire("a1") == Gone("withdrawn")
    name.ask(Withdraw("a1", 1.0))
    name.now += 40.0
    assert name.acquire("a1") == Gone("withdrawn"), "and never shorter than was asked before"


def test_ended_attempts_are_forgotten_in_time_and_never_too_many() -> None:
    name = Name()
    for number in range(ENDED_KEPT + 20):
        name.ask(Withdraw(f"a{number}", 60.0))
    assert len(name.record.ended) == ENDED_KEPT
    assert name.record.ended[-1].nonce == f"a{ENDED_KEPT + 19}"
    name.now += 61.0
    name.granted("b1")
    assert name.record.ended == ()


def test_a_release_by_another_changes_nothing() -> None:
    name = Name()
    name.granted("a1")
    before = name.record
    assert name.ask(Release("b1")) == Gone("stolen")
    assert name.record is before


def test_a_renewal_never_brings_back_what_is_gone() -> None:
    name = Name()
    name.granted("a1")
    name.now += 10.0
    assert name.ask(Renew("a1", 10.0)) == Gone("expired")
    name.granted("b1")
    assert name.ask(Renew("a1", 10.0)) == Gone("stolen")
    assert [h.nonce for h in name.look().holders] == ["b1"]


def test_no_renewal_goes_beyond_max_hold() -> None:
    name = Name()
    name.acquire("a1", max_hold=15.0)
    for _ in range(5):
        name.now += 2.9
        assert name.ask(Renew("a1", 10.0)) == Done()
    name.now += 0.6
    assert name.ask(Renew("a1", 10.0)) == Gone("expired")


@pytest.mark.parametrize(
    "request_", [Acquire("b1", "b", "b", "lock", "exclusive", 1.0, True), Break(None, "x")]
)
def test_no_number_beyond_the_largest_exact_one(request_: Request) -> None:
    name = Name(record=EMPTY._replace(kind="lock", token=MAX_TOKEN - 2))
    name.granted("a1")
    assert name.record.token == MAX_TOKEN - 1
    if isinstance(request_, Acquire):
        name.ask(Release("a1"))
    before = name.record
    assert name.ask(request_) == Exhausted()
    assert name.record is before


def test_a_clock_that_is_far_off_is_refused_and_does_no_harm() -> None:
    name = Name(wall_us=MAX_TOKEN)
    assert name.acquire("a1") == Exhausted()
    name.wall_us = 1_000
    assert name.granted("a1").token == 1_000


def test_tokens_run_ahead_of_a_clock_that_stands_or_goes_back() -> None:
    name = Name(wall_us=5_000)
    tokens = []
    for number in range(5):
        tokens.append(name.granted(f"a{number}").token)
        name.ask(Release(f"a{number}"))
        name.wall_us -= 1_000
    assert tokens == [5_000, 5_001, 5_002, 5_003, 5_004]


# --- more than holding ------------------------------------------------------------------------


def test_a_name_has_one_kind() -> None:
    name = Name()
    name.granted("a1")
    name.ask(Release("a1"))
    before = name.record
    name.kind = "rwlock"
    assert name.acquire("b1", "write") == Mismatch("lock", 0)
    assert name.ask(Resize(2, 3)) == Mismatch("lock", 0)
    assert name.record is before


def test_a_semaphore_is_asked_with_its_declared_or_its_present_limit() -> None:
    name = Name("semaphore", limit=2)
    name.granted("a1", "permit")
    name.ask(Resize(2, 5))
    for limit, fits in ((2, True), (5, True), (3, False)):
        name.limit = limit
        assert isinstance(name.acquire("b1", "permit"), Granted) == fits
        name.ask(Release("b1"))
    assert name.acquire("c1", "permit") == Mismatch("semaphore", 2)


def test_a_value_is_set_by_the_holder_stays_after_it_and_is_forgotten_in_time() -> None:
    name = Name(wall_us=1_000_000)
    token = name.granted("a1").token
    assert name.ask(SetValue("b1", b"no", 60.0)) == Gone("stolen")
    assert name.ask(SetValue("a1", b"yes", 60.0)) == Done()
    name.ask(Release("a1"))
    assert name.ask(SetValue("a1", b"late", 60.0)) == Gone("expired")
    value = name.look().value
    assert value is not None
    assert (value.data, value.token) == (b"yes", token)
    name.wall_us += 60_000_000
    assert name.look().value is None


def test_an_exported_grant_is_adopted_once() -> None:
    name = Name()
    token = name.granted("a1").token
    assert name.ask(Adopt("a1", "b", "b", "seal")) == Gone(
        "stolen", "it was not exported with this secret, or another client adopted it"
    )
    assert name.ask(Export("a1", "seal")) == Done()
    name.now += 9.0
    adopted = name.ask(Adopt("a1", "b", "b", "seal"))
    assert isinstance(adopted, Granted)
    assert adopted.token == token
    assert isinstance(name.ask(Adopt("a1", "c", "c", "seal")), Gone)
    assert name.record.holders[0].expires_at == name.now + 10.0
    assert (name.record.holders[0].client, name.record.holders[0].renews) == ("b", True)


def test_only_the_secret_of_the_latest_export_adopts() -> None:
    """An export whose outcome is unknown is done again, with another secret."""
    name = Name()
    name.granted("a1")
    name.ask(Export("a1", "first"))
    name.ask(Export("a1", "second"))
    stored = name.record
    for seal in ("first", "", "a1"):
        assert isinstance(name.ask(Adopt("a1", "b", "b", seal)), Gone)
        assert name.record is stored
    assert isinstance(name.ask(Adopt("a1", "b", "b", "second")), Granted)
    assert name.record.holders[0].owner == "b"
    name.ask(Export("a1", "third"))
    assert isinstance(name.ask(Adopt("a1", "c", "c", "second")), Gone)


def test_what_an_older_version_exported_is_read_and_not_adopted() -> None:
    """It kept the owner and knew of no secret: it runs out."""
    name = Name()
    name.granted("a1")
    (holder,) = name.record.holders
    name.record = name.record._replace(holders=(holder._replace(client="", renews=False),))
    assert isinstance(name.ask(Adopt("a1", "b", "b", "seal")), Gone)
    name.now += 11.0
    assert name.look().holders == ()


def test_a_confirmed_adoption_has_the_full_time() -> None:
    """Also the second time: its deadline is counted from before that request."""
    name = Name()
    name.granted("a1")
    name.ask(Export("a1", "seal"))
    name.ask(Adopt("a1", "b", "b", "seal"))
    name.now += 4.0
    reply = name.ask(Adopt("a1", "b", "b", "seal"))
    assert isinstance(reply, Granted)
    assert name.record.holders[0].expires_at == name.now + reply.ttl


def test_a_downgrade_that_was_withdrawn_does_not_come_back() -> None:
    name = Name("rwlock")
    name.granted("a1", "write")
    name.ask(Withdraw("a2", 60.0))
    assert isinstance(name.ask(Downgrade("a1", "a2")), Gone)
    assert [h.nonce for h in name.look().holders] == ["a1"]


def test_a_repeated_request_gets_the_age_of_the_grant() -> None:
    """A copy of its request may have won it long before: counted from the last one it would not be true."""
    name = Name()
    first = name.acquire("a1")
    assert isinstance(first, Granted)
    assert first.age == 0.0
    name.now += 2.5
    assert name.acquire("a1") == first._replace(age=2.5)
    name.now -= 10.0  # the clock was set
    assert name.acquire("a1") == first


def test_a_downgrade_asked_twice_is_one() -> None:
    name = Name("rwlock")
    writer = name.granted("a1", "write")
    first = name.ask(Downgrade("a1", "a2"))
    assert isinstance(first, Granted)
    assert first.token > writer.token
    assert name.ask(Downgrade("a1", "a2")) == first
    assert isinstance(name.ask(Downgrade("a2", "a3")), Gone), "a reader is not downgraded"


def test_peers_are_the_shared_grants_that_live_beside() -> None:
    name = Name("rwlock")
    first = name.granted("a1", "read")
    second = name.granted("b1", "read")
    assert (first.peers, second.peers) == ((), (first.token,))
    name = Name("semaphore", limit=3)
    tokens = [name.granted(n, "permit").token for n in ("a1", "b1")]
    assert name.granted("c1", "permit").peers == tuple(tokens)


def test_only_the_grant_of_the_given_token_is_broken() -> None:
    name = Name("semaphore", limit=2)
    first, second = name.granted("a1", "permit"), name.granted("b1", "permit")
    broken = name.ask(Break(first.token, "stuck"))
    assert isinstance(broken, Broken)
    assert broken.token is not None
    assert broken.token > second.token
    assert [h.nonce for h in name.look().holders] == ["b1"]
    assert name.ask(Break(first.token, "again")) == Broken(None, ())


# --- watching ---------------------------------------------------------------------------------


def test_watchers_are_notified_of_changes_and_of_nothing_else() -> None:
    name = Name()
    name.ask(Watch("w1", "w"))
    heard = []
    for request in (
        Acquire("a1", "a", "a", "lock", "exclusive", 10.0, True),
        Renew("a1", 10.0),
        Acquire("b1", "b", "b", "lock", "exclusive", 10.0, True),
        Refresh("b1"),
        SetValue("a1", b"x", 60.0),
        Inspect(),
        Release("a1"),
        Unwatch("w2"),
    ):
        name.now += 0.1
        name.ask(request)
        heard.append("w1" in name.woken_names())
    assert heard == [True, False, True, False, True, False, True, False]


def test_a_watcher_that_no_longer_says_so_is_forgotten() -> None:
    name = Name()
    name.ask(Watch("w1", "w"))
    name.ask(Watch("w2", "w"))
    name.now += PATIENCE_SECONDS - 1.0
    assert name.ask(Refresh("w2")) == Done()
    name.now += 2.0
    name.granted("a1")
    assert name.woken_names() == ["w2"]
    assert name.ask(Refresh("w1")) == Absent()


def test_a_late_request_to_watch_does_not_replace_an_earlier_watcher() -> None:
    name = Name()
    for watcher in ("w1", "w2"):
        name.ask(Watch(watcher, "w"))
    name.now += PATIENCE_SECONDS
    assert name.ask(Refresh("w1")) == Absent()
    assert name.ask(Refresh("w2")) == Absent()


def test_a_watcher_that_ended_is_not_notified() -> None:
    name = Name()
    name.ask(Watch("w1", "w"))
    name.ask(Watch("w1", "w"))
    assert len(name.record.watchers) == 1
    name.ask(Unwatch("w1"))
    name.granted("a1")
    assert name.woken == ()
