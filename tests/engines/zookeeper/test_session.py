"""What becomes of a session whose time is over while there is no connection."""

from __future__ import annotations

import pytest
from kazoo.protocol.states import KazooState

from holdfast.core.effects import NotApplied
from holdfast.engines.zookeeper.config import Config
from holdfast.engines.zookeeper.session import Session
from holdfast.protocols.tickets.store import SessionEndedError

pytestmark = pytest.mark.timeless

SESSION = 7
OPTIONS = Config(hosts=("127.0.0.1:1",), prefix="/holdfast", session_timeout=10.0, auth=(), more={})


class RecordingListener:
    """Records what becomes of sessions."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def session_connected(self, session: Session) -> None:
        self.events.append("up")

    def session_ended(self, session: Session) -> None:
        self.events.append("over")

    def is_used(self, session: Session) -> bool:
        return True


@pytest.fixture
def listener() -> RecordingListener:
    return RecordingListener()


@pytest.fixture
def session(listener: RecordingListener) -> Session:
    """Taken on at 100 for ten seconds, and connected."""
    session = Session(OPTIONS, 10.0, 1.0, listener)
    session.session_established(SESSION, 10.0, 100.0)
    session._state_changed(KazooState.CONNECTED)
    session.check()
    return session


def test_a_session_without_a_connection_is_left_when_its_time_is_over(
    session: Session, listener: RecordingListener
) -> None:
    assert not session.give_up_expired(200.0), "while it is connected the servers tell"
    session._state_changed(KazooState.SUSPENDED)
    assert not session.give_up_expired(109.0)
    session.session_established(SESSION, 10.0, 109.5)
    session._state_changed(KazooState.CONNECTED)
    session.check()
    assert listener.events == ["up", "up"]


def test_one_that_was_left_is_over_for_a_server_that_was_just_taking_it_on(
    session: Session, listener: RecordingListener
) -> None:
    """Asked in time, answered too late: nobody gives back any more what it carries."""
    session._state_changed(KazooState.SUSPENDED)
    assert session.give_up_expired(110.5)
    with pytest.raises(NotApplied):
        session.check()
    session.session_established(SESSION, 10.0, 109.5)
    session._state_changed(KazooState.CONNECTED)
    with pytest.raises(SessionEndedError):
        session.check()
    assert listener.events == ["up", "over"]
