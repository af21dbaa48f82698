"""No error of one renewal ends the keeper or the timer, or costs another lease; what fails is reported."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from holdfast.core.effects import (
    Apply,
    Effect,
    NotApplied,
    Notify,
    Now,
    Pause,
    RenewBatch,
    Signal,
    SleepUntil,
)
from holdfast.protocols import records
from holdfast.protocols.reports import Reports
from holdfast.rules.requests import Release, Stop
from protocols.driver import HANGS, REFUSED, SPEC, Client, Fault, World, a_spec, always

TTL = SPEC.ttl


class Strange(BaseException):
    """Neither an Exception nor an exit."""


class Mute(Exception):
    """Cannot even be written down."""

    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


ERRORS = [
    ValueError("bad"),
    KeyError(1),
    RecursionError(),
    MemoryError(),
    AssertionError(),
    Mute(),
    Strange(),
]


def names(errors: list[BaseException]) -> list[str]:
    return [type(error).__name__ for error in errors]


def steps_of(op: Effect, nonce: str) -> bool:
    return isinstance(op, RenewBatch) and any(nonce in request for _, request in op.steps)


@pytest.mark.parametrize("error", ERRORS, ids=names(ERRORS))
@pytest.mark.parametrize("others", [0, 1, 30])
def test_a_renewal_that_ends_unexpectedly_is_the_loss_of_that_lease_alone(
    error: BaseException, others: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    a = world.client("a")
    first = [a.acquire(a_spec(f"a{number}")) for number in range(others)]
    bad = a.acquire(a_spec("bad"))
    last = [a.acquire(a_spec(f"z{number}")) for number in range(others)]
    a.faults = lambda op: Fault(error, arrives=False) if steps_of(op, bad.nonce) else None
    world.pass_time(5 * TTL)
    assert (bad.reason, [lease for _, lease in a.signals]) == ("unreachable", [bad])
    assert type(error).__name__ in str(bad.lost_error())
    assert all(state.loss(world.now) is None for state in first + last)
    assert not a.services["keeper"].done
    assert any("'bad'" in record.getMessage() and record.exc_info for record in caplog.records)
    assert world.is_free("bad"), "others need not wait"


def test_an_error_that_comes_once_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    a = world.client("a")
    state = a.acquire()
    left = [1]

    def faults(op: Effect) -> Fault | None:
        if isinstance(op, RenewBatch) and left[0]:
            left[0] -= 1
            return Fault(ValueError("bad"), arrives=False)
        return None

    a.faults = faults
    world.pass_time(3 * TTL)
    assert state.loss(world.now) is None


@pytest.mark.parametrize("error", ERRORS, ids=names(ERRORS))
def test_a_look_at_one_that_is_not_renewed(error: BaseException) -> None:
    world = World()
    a = world.client("a")
    state, other = a.acquire(a_spec(renew=False)), a.acquire(a_spec("y"))
    a.faults = always(Fault(error, arrives=False), Stop)
    a.post(state.nonce)
    world.pass_time(1.0)
    assert state.reason == "unreachable"
    world.pass_time(3 * TTL)
    assert other.loss(world.now) is None


@pytest.mark.parametrize("error", ERRORS, ids=names(ERRORS))
def test_cleaning_up(error: BaseException) -> None:
    """It is tried again a few times, then given up; meanwhile everything else goes on."""
    world = World()
    a = world.client("a")
    state, other = a.acquire(), a.acquire(a_spec("y"))
    a.faults = always(Fault(error, arrives=False), Release)
    a.run(records.abandon(a.client_state, state))
    world.pass_time(3 * TTL)
    assert not a.client_state.cleanup_tasks
    assert other.loss(world.now) is None
    keeper = a.services["keeper"]
    assert 2 <= sum(isinstance(op, Apply) for op in keeper.ops) <= 10


class Breaking:
    """Raises in place of an operation of the keeper or the timer."""

    def __init__(self, world: World, client: Client, error: BaseException) -> None:
        self._world, self._client, self.error = world, client, error
        self._perform = world._perform
        self.at: dict[str, int] = {}
        self.every: tuple[type, ...] = ()
        self.raised = 0

    def perform(self, task: Any, op: Effect) -> None:
        for timer, service in self._client.services.items():
            if service is task and (
                self.at.get(timer) == len(task.ops) - 1 or isinstance(op, self.every or ())
            ):
                self.raised += 1
                self._world._then(task, error=type(self.error)("bad"))
                return
        self._perform(task, op)


@pytest.mark.parametrize("timer", ["keeper", "timer"])
@pytest.mark.parametrize("error", [ValueError("bad"), Strange()], ids=["Exception", "BaseException"])
def test_an_error_at_every_single_step(
    monkeypatch: pytest.MonkeyPatch, timer: str, error: BaseException
) -> None:
    """Whichever operation raises: everything that is held after it is renewed, and every loss is reported."""
    for number in range(1, 60):
        world = World()
        a = world.client("a")
        breaking = Breaking(world, a, error)
        breaking.at = {timer: number}
        monkeypatch.setattr(world, "_perform", breaking.perform)
        ended = a.acquire(a_spec("ended", renew=False))
        kept = [a.acquire(a_spec(name)) for name in "xy"]
        given = a.acquire(a_spec("given"))
        world.pass_time(TTL / 2)
        a.run(records.abandon(a.client_state, given))
        world.pass_time(4 * TTL)
        if not breaking.raised:
            assert number > 10, "it has no more steps than that"
            break
        assert not a.services["keeper"].done, number
        assert not a.services["timer"].done, number
        assert [state.loss(world.now) for state in kept] == [None, None], number
        assert ended in [lease for _, lease in a.signals], number
        assert world.is_free("ended"), number
        assert world.is_free("given"), number
        late = a.acquire(a_spec("late"))
        world.pass_time(2 * TTL)
        assert late.loss(world.now) is None


@pytest.mark.parametrize(
    "kind", [Now, RenewBatch, Apply, SleepUntil, Signal, Notify], ids=lambda kind: kind.__name__
)
def test_an_operation_that_always_fails(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    """Nothing turns in circles, and what cannot be relied on any more is known to be lost."""
    world = World()
    a = world.client("a")
    state = a.acquire()
    world.pass_time(1.0)
    breaking = Breaking(world, a, KeyError("gone"))
    breaking.every = (kind,)
    monkeypatch.setattr(world, "_perform", breaking.perform)
    world.pass_time(2 * TTL)
    if kind in (Now, RenewBatch):
        assert state.loss(world.now) == ("unreachable" if kind is RenewBatch else "expired")
    assert not a.services["keeper"].done
    assert not a.services["timer"].done
    breaking.every = ()
    world.pass_time(70.0)
    late = a.acquire(a_spec("late"))
    world.pass_time(2 * TTL)
    assert late.loss(world.now) is None
    assert len(a.services["keeper"].ops) < 5000


def test_an_exit_ends_it() -> None:
    world = World()
    a = world.client("a")
    a.acquire()
    a.faults = always(Fault(SystemExit(), arrives=False), RenewBatch)
    world.pass_time(TTL)
    assert isinstance(a.services["keeper"].error, SystemExit)
    assert a.services["timer"].error is None
    assert Pause not in [type(op) for op in a.services["keeper"].ops]


# --- why a lease was lost, and what the log says of renewing ------------------------------------


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_an_engine_that_does_not_answer_is_unreachable_and_named(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    a = world.client("a")
    a.client_state.reports = Reports("redis://example")
    state = a.acquire()
    a.faults = always(HANGS, RenewBatch)
    world.pass_time(TTL)
    assert state.reason == "unreachable"
    assert "redis://example has not answered for 19." in str(state.lost_error())
    ((level, message),) = logged(caplog)
    assert level == "WARNING"
    assert "redis://example: no answer for" in message
    assert "'x'" in message
    assert "in 10.0 s" in message, "a third of the ttl is left"


def test_a_pause_of_the_process_is_the_reported_reason_also_when_a_renewal_was_under_way() -> None:
    world = World()
    a = world.client("a")
    state = a.acquire()
    state.renewal_in_flight = world.now + TTL / 3, "redis://example"
    assert state.loss(state.deadline + 20.0) == "expired"
    assert "paused" in str(state.lost_error())


def test_a_renewal_that_a_process_sends_when_it_wakes_up_is_not_held_against_the_engine() -> None:
    """The keeper may run before the timer, and asks at once."""
    world = World()
    a = world.client("a")
    state = a.acquire()
    state.renewal_in_flight = state.deadline + 0.2, "redis://example"
    assert state.loss(state.deadline + 0.201) == "expired"
    assert "paused" in str(state.lost_error())


def test_that_renewing_fails_is_logged_once_and_that_it_works_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast")
    world = World()
    a = world.client("a")
    a.client_state.reports = Reports("redis://example")
    states = [a.acquire(a_spec(f"x{number}")) for number in range(5)]
    world.pass_time(TTL / 3 - 1)
    assert logged(caplog) == []
    a.faults = always(Fault(NotApplied("connection refused"), arrives=False), RenewBatch)
    world.pass_time(10.0)
    ((level, message),) = logged(caplog)
    assert level == "WARNING"
    for reported in ("redis://example", "connection refused", "Of 5 held", "'x0'", "s"):
        assert reported in message
    a.faults = None
    world.pass_time(TTL)
    assert [level for level, _ in logged(caplog)] == ["WARNING", "INFO"]
    assert "redis://example, after" in logged(caplog)[1][1]
    world.pass_time(5 * TTL)
    assert len(caplog.records) == 2
    a.faults = always(REFUSED, RenewBatch)
    world.pass_time(TTL)
    assert [level for level, _ in logged(caplog)] == ["WARNING", "INFO", "WARNING"]
    assert all("redis://example: refused" in str(state.lost_error()) for state in states)
