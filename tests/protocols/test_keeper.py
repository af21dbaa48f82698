"""The keeper and the timer: renewing, reporting losses, cleaning up, and no needless wake-ups."""

from __future__ import annotations

import pytest

from holdfast.core.effects import Apply, Effect, RenewBatch, SleepUntil
from holdfast.protocols import records
from holdfast.protocols.client_state import CleanupTask
from holdfast.protocols.records.acquisition import lease_of
from holdfast.rules.record import REFRESH_SECONDS
from holdfast.rules.requests import Granted, Refresh, Release, Renew, Stop, Withdraw
from protocols.driver import (
    DOWN,
    HANGS,
    LOST_REPLY,
    REFUSED,
    SPEC,
    Client,
    Fault,
    World,
    a_spec,
    always,
    late_copy,
    once,
)

TTL = SPEC.ttl


def tend_times(client: Client) -> int:
    return len(client.tended())


# --- renewing ---------------------------------------------------------------------------------


def test_a_lease_is_renewed_when_a_third_of_its_ttl_has_passed() -> None:
    world = World()
    a = world.client("a")
    state = a.acquire()
    world.pass_time(TTL / 3 - 0.1)
    assert tend_times(a) == 0
    world.pass_time(0.2)
    assert a.tended() == [(("x", Renew(state.nonce, TTL)),)]
    world.pass_time(10 * TTL)
    assert 28 <= tend_times(a) <= 31
    assert state.loss(world.now) is None
    assert world.holders() == [state.nonce]
    assert a.signals == []


def test_many_leases_are_renewed_together() -> None:
    world = World()
    a = world.client("a")
    for number in range(200):
        a.acquire(a_spec(f"x{number}"))
        world.pass_time(0.01)
    world.pass_time(TTL)
    assert tend_times(a) <= 4
    assert max(len(steps) for steps in a.tended()) == 200


@pytest.mark.parametrize(
    "fault", [REFUSED, LOST_REPLY, DOWN, late_copy(1.0)], ids=["refused", "reply lost", "down", "late"]
)
def test_a_renewal_that_fails_is_tried_again_until_it_gets_through(fault: Fault) -> None:
    world = World()
    a = world.client("a")
    state = a.acquire()
    a.faults = always(fault, RenewBatch)
    world.pass_time(TTL - 2.0)
    assert tend_times(a) >= 10, "once a second"
    assert state.loss(world.now) is None
    a.faults = None
    world.pass_time(TTL)
    assert state.loss(world.now) is None
    assert a.signals == []


@pytest.mark.parametrize("fault", [REFUSED, HANGS], ids=["refused", "hangs"])
def test_at_the_deadline_the_loss_is_signalled_exactly_once(fault: Fault) -> None:
    world = World()
    a = world.client("a")
    state = a.acquire()
    heard: list[float] = []
    state.loss_callbacks.append(lambda: heard.append(world.now))
    a.faults = always(fault, RenewBatch)
    world.pass_time(5 * TTL)
    assert heard == [pytest.approx(state.deadline)]
    assert [lease for _, lease in a.signals] == [state]
    assert state.reason == "unreachable"
    assert a.client_state.leases == {}


def test_a_loss_is_final() -> None:
    """Renewals get through again after the deadline: nothing comes back."""
    world = World()
    a = world.client("a")
    state = a.acquire()
    a.faults = always(REFUSED)
    world.pass_time(TTL)
    a.faults = None
    world.pass_time(TTL)
    assert state.loss(world.now) == "unreachable"
    assert state.remaining(world.now) == 0.0
    assert world.is_free(), "what was lost is given back, so that others need not wait"
    state.extend(world.now + 100.0, world.now)
    assert state.loss(world.now) == "unreachable"


def test_a_renewal_that_is_answered_after_the_deadline_does_not_revive() -> None:
    world = World()
    a = world.client("a")
    state = a.acquire()
    a.faults = once(Fault(answered_in=TTL), RenewBatch)
    world.pass_time(2 * TTL)
    assert state.reason == "unreachable"
    assert len(a.signals) == 1


def test_without_renewal_it_ends_with_its_ttl() -> None:
    world = World()
    a = world.client("a")
    state = a.acquire(a_spec(renew=False))
    world.pass_time(TTL + 1.0)
    assert tend_times(a) == 0
    assert (state.reason, len(a.signals)) == ("expired", 1)
    assert world.is_free()


def test_looking_at_one_that_does_not_renew_gives_it_no_time() -> None:
    """Something may have happened to it: that is asked, and nothing else."""
    world = World()
    a = world.client("a")
    state = a.acquire(a_spec(renew=False))
    (before,) = world.records["x"].holders
    world.pass_time(TTL / 2)
    a.post(state.nonce)
    world.pass_time(0.1)
    (after,) = world.records["x"].holders
    assert (after.expires_at, after.ttl) == (before.expires_at, before.ttl)
    assert state.loss(world.now) is None
    del world.records["x"]
    a.post(state.nonce)
    world.pass_time(0.1)
    assert (state.reason, len(a.signals)) == ("expired", 1)


def test_many_that_do_not_renew_are_looked_at_while_others_are_renewed() -> None:
    world = World()
    a = world.client("a")
    kept = a.acquire(a_spec("kept"))
    looked_at = [a.acquire(a_spec(f"name {number}", renew=False)) for number in range(100)]
    world.pass_time(TTL / 3 - 0.05)
    for state in looked_at:
        a.post(state.nonce)
    world.pass_time(1.0)
    assert a.tended()[0] == (("kept", Renew(kept.nonce, TTL)),)
    asked = [op for op in a.services["keeper"].ops if isinstance(op, Apply | RenewBatch)]
    stops = [isinstance(op, Apply) and isinstance(op.request, Stop) for op in asked]
    assert sum(stops) == 100
    assert not all(stops[:100]), "it is renewed in between"


def test_max_hold_as_long_as_the_ttl_is_the_reason_however_it_is_rounded() -> None:
    sent, now = 6348.328898424921, 6348.329538518227
    reply = Granted(7, (), "lock", "exclusive", 0.3, (now + 0.3) - now, {}, 0.0)
    state = lease_of(a_spec(ttl=0.3, max_hold=0.3), "n", "o", reply, sent)
    assert state.loss(now + 1.0) == "max_hold"


def test_max_hold_ends_it_whatever_is_renewed() -> None:
    world = World()
    a = world.client("a")
    granted_at = world.now
    state = a.acquire(a_spec(max_hold=100.0))
    world.pass_time(200.0)
    ((told_at, _),) = a.signals
    assert (state.reason, world.is_free()) == ("max_hold", True)
    assert granted_at + 98.0 <= told_at <= granted_at + 100.0


def test_the_warning_comes_a_grace_before_the_deadline() -> None:
    world = World()
    a = world.client("a")
    state = a.acquire(a_spec(grace=10.0))
    deadline = state.deadline
    a.faults = always(REFUSED, RenewBatch)
    world.pass_time(TTL - 10.0 - 1.0)
    assert a.signals == []
    world.pass_time(1.0)
    ((told_at, _),) = a.signals
    assert told_at == pytest.approx(deadline - 10.0)
    assert state.loss(world.now) == "unreachable"
    assert 9.0 < state.remaining(world.now) <= 10.0, "time is left to stop what is under way"
    a.faults = None
    world.pass_time(5.0)
    assert world.holders() == [state.nonce], "nobody else may have it before the deadline"
    world.pass_time(6.0)
    assert world.is_free()
    assert len(a.signals) == 1


def test_one_that_is_taken_away_is_reported_at_once() -> None:
    world = World()
    a, b = world.client("a"), world.client("b")
    state = a.acquire()
    world.pass_time(1.0)
    b.run(records.break_lock(b.client_state, "x", state.token, "stuck"))
    world.pass_time(0.1)
    assert (state.reason, state.note, len(a.signals)) == ("broken", "stuck", 1)


def test_one_that_is_deleted_is_noticed_by_the_next_renewal() -> None:
    world = World()
    a = world.client("a")
    state = a.acquire()
    del world.records["x"]
    world.pass_time(TTL / 3 + 0.1)
    assert (state.reason, len(a.signals)) == ("expired", 1)
    assert world.is_free(), "the renewal did not create it again"


def test_extending_renews_at_once_and_from_then_on_with_the_new_ttl() -> None:
    world = World()
    a = world.client("a")
    state = a.acquire()
    world.pass_time(1.0)
    a.run(records.extend(a.client_state, state, 90.0))
    assert state.remaining(world.now) == pytest.approx(90.0 * 0.99, abs=0.1)
    deadline = state.deadline
    a.run(records.extend(a.client_state, state, 3.0))
    assert state.deadline == deadline, "nothing shortens what is granted"
    world.pass_time(1.2)
    assert a.tended()[-1] == (("x", Renew(state.nonce, 3.0)),)
    world.pass_time(100.0)
    assert state.loss(world.now) is None


# --- refreshing -------------------------------------------------------------------------------


def test_waiters_are_refreshed_once_a_second() -> None:
    world = World()
    a, b = world.client("a"), world.client("b")
    a.acquire()
    b.start(records.acquire(b.client_state, SPEC, "o", None))
    world.pass_time(10.5)
    refreshes = [steps for steps in b.tended() if isinstance(steps[0][1], Refresh)]
    assert 9 <= len(refreshes) <= 11
    assert len(world.queue()) == 1


def test_a_place_that_was_lost_is_noticed_and_taken_again() -> None:
    """It was paused for longer than its place lives."""
    world = World()
    a, b = world.client("a"), world.client("b")
    held = a.acquire()
    waiting = b.start(records.acquire(b.client_state, SPEC, "o", None))
    world.pass_time(0.5)
    world.records["x"] = world.records["x"]._replace(queue=())
    world.pass_time(REFRESH_SECONDS + 0.1)
    assert len(world.queue()) == 1
    a.run(records.release(a.client_state, held, 0.0))
    world.finish(waiting, within=0.1)


# --- cleaning up ------------------------------------------------------------------------------


def test_what_is_to_be_cleaned_up_is_tried_until_it_gets_through() -> None:
    world = World()
    a, b = world.client("a"), world.client("b")
    state = b.acquire()
    a.faults = always(REFUSED)
    a.client_state.queue_cleanup(CleanupTask("x", Release(state.nonce), "job", give_up_at=world.now + 60.0))
    world.pass_time(10.0)
    assert not world.is_free()
    a.faults = None
    world.pass_time(1.0)
    assert world.is_free()
    assert not a.client_state.cleanup_tasks


def test_what_cannot_be_cleaned_up_is_given_up_in_time() -> None:
    world = World()
    a = world.client("a")
    a.faults = always(REFUSED)
    a.client_state.queue_cleanup(CleanupTask("x", Withdraw("n"), "job", give_up_at=world.now + 60.0))
    world.pass_time(59.0)
    assert a.client_state.cleanup_tasks
    world.pass_time(3.0)
    assert not a.client_state.cleanup_tasks
    tries = [op for op in a.services["keeper"].ops if isinstance(op, Apply)]
    assert 100 <= len(tries) <= 140, "twice a second"


def test_where_nothing_expires_by_itself_cleaning_up_is_not_given_up() -> None:
    """It would block all others for as long as its client lives."""
    world = World()
    a, b = world.client("a"), world.client("b")
    state = b.acquire()
    a.client_state.session_bound = True
    a.faults = always(REFUSED)
    a.client_state.queue_cleanup(CleanupTask("x", Release(state.nonce), "job", give_up_at=world.now + 60.0))
    world.pass_time(600.0)
    a.faults = None
    world.pass_time(1.0)
    assert world.is_free()
    assert not a.client_state.cleanup_tasks


def test_where_it_is_not_given_up_much_to_clean_up_does_not_keep_the_client_busy() -> None:
    """The engine may be away for hours. When it is back, all of it is done at once."""
    world = World()
    a = world.client("a")
    a.client_state.session_bound = True
    a.faults = always(REFUSED)
    for number in range(200):
        a.client_state.queue_cleanup(
            CleanupTask("x", Withdraw(f"n{number}"), "job", give_up_at=world.now + 60.0)
        )
    world.pass_time(60.0)
    tries = [op for op in a.services["keeper"].ops if isinstance(op, Apply)]
    assert 100 <= len(tries) <= 140, "twice a second"
    a.faults = None
    world.pass_time(1.0)
    assert not a.client_state.cleanup_tasks


def test_cleaning_up_that_hangs_does_not_keep_leases_from_being_renewed() -> None:
    """One server of many does not answer: what is held on the others lives on."""

    def faults(op: Effect) -> Fault | None:
        if isinstance(op, Apply) and op.name == "gone":
            return Fault(REFUSED.error, arrives=False, answered_in=5.0)
        return None

    world = World()
    a = world.client("a")
    state = a.acquire()
    a.faults = faults
    for number in range(20):
        a.client_state.queue_cleanup(
            CleanupTask("gone", Withdraw(f"n{number}"), "job", give_up_at=world.now + 600.0)
        )
    world.pass_time(5 * TTL)
    assert state.loss(world.now) is None
    assert a.signals == []


# --- no needless wake-ups ---------------------------------------------------------------------


def test_pairs_of_acquire_and_release_ring_once_in_a_while() -> None:
    """A thousand pairs within a third of the ttl: the keeper and the timer are woken a few times at most."""
    world = World()
    a = world.client("a")
    for _ in range(1000):
        a.run(records.release(a.client_state, a.acquire(), 0.0))
    assert world.now - 1000.0 < TTL / 3
    assert len(a.rings) <= 4
    world.pass_time(TTL / 3)
    a.rings.clear()
    for _ in range(1000):
        a.run(records.release(a.client_state, a.acquire(), 0.0))
    assert len(a.rings) <= 4


def test_an_idle_client_sleeps() -> None:
    world = World()
    a = world.client("a")
    a.run(records.release(a.client_state, a.acquire(), 0.0))
    world.pass_time(1000.0)
    for service in a.services.values():
        assert len([op for op in service.ops if isinstance(op, SleepUntil)]) <= 4
        last = service.ops[-1]
        assert isinstance(last, SleepUntil)
        assert last.until is None


def test_a_shorter_lease_wakes_a_keeper_that_sleeps_for_a_longer_one() -> None:
    world = World()
    a = world.client("a")
    a.acquire(a_spec("long", ttl=300.0))
    world.pass_time(1.0)
    state = a.acquire(a_spec("short", ttl=3.0))
    world.pass_time(30.0)
    assert state.loss(world.now) is None


def test_the_keeper_ends_with_its_client() -> None:
    world = World()
    a = world.client("a")
    state = a.acquire()
    world.pass_time(1.0)
    a.run(records.close(a.client_state))
    assert (state.ended, world.is_free()) == ("released", True)
    a.client_state.closing = True
    a.ring("keeper")
    a.ring("timer")
    world.pass_time(1.0)
    assert all(service.done and service.error is None for service in a.services.values())
