"""What becomes of a session whose time is over while there is no connection."""

from __future__ import annotations

import pytest
from kazoo.protocol.states import KazooState

from holdfast.core.effects import NotApplied
from holdfast.engines.zookeeper.link import Link
from holdfast.engines.zookeeper.options import Options
from holdfast.protocols.tickets.store import NoSession

pytestmark = pytest.mark.timeless

SESSION = 7
OPTIONS = Options(hosts=("127.0.0.1:1",), prefix="/holdfast", session_timeout=10.0, auth=(), more={})


class Heard:
    """Notes what becomes of links."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def link_up(self, link: Link) -> None:
        self.told.append("up")

    def link_over(self, link: Link) -> None:
        self.told.append("over")

    def is_used(self, link: Link) -> bool:
        return True


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def link(heard: Heard) -> Link:
    """Taken on at 100 for ten seconds, and connected."""
    link = Link(OPTIONS, 10.0, 1.0, heard)
    link.taken_on(SESSION, 10.0, 100.0)
    link._changed(KazooState.CONNECTED)
    link.check()
    return link


def test_a_session_without_a_connection_is_left_when_its_time_is_over(link: Link, heard: Heard) -> None:
    assert not link.leave_past(200.0), "while it is connected the servers tell"
    link._changed(KazooState.SUSPENDED)
    assert not link.leave_past(109.0)
    link.taken_on(SESSION, 10.0, 109.5)
    link._changed(KazooState.CONNECTED)
    link.check()
    assert heard.told == ["up", "up"]


def test_one_that_was_left_is_over_for_a_server_that_was_just_taking_it_on(link: Link, heard: Heard) -> None:
    """Asked in time, answered too late: nobody gives back any more what it carries."""
    link._changed(KazooState.SUSPENDED)
    assert link.leave_past(110.5)
    with pytest.raises(NotApplied):
        link.check()
    link.taken_on(SESSION, 10.0, 109.5)
    link._changed(KazooState.CONNECTED)
    with pytest.raises(NoSession):
        link.check()
    assert heard.told == ["up", "over"]
