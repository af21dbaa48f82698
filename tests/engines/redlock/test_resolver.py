"""Names of hosts: with several addresses, slow to be looked up, or none at all."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

import holdfast
import holdfast.aio
from holdfast import EngineUnavailable, redlock
from holdfast.lab.servers import Redis
from holdfast.lab.servers.group import Group
from support import wait_until

HURRY = 0.5

REFUSES = "127.0.0.2"
"""An address of this machine at which none of the servers listens."""

Find = Callable[[int], Sequence[tuple[str, int]]]
"""The addresses of a host, given the port that was asked for."""

Names = dict[str, Find]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """Host → what is found when it is looked up."""
    shipped = socket.getaddrinfo
    known: Names = {}

    def look_up(host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        if host not in known or more.get("flags"):
            return shipped(host, port, *rest, **more)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in known[host](port)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


@pytest.fixture(scope="module")
def three() -> Iterator[Sequence[Redis]]:
    """A set already: to become one, all of them must be there."""
    with Group([Redis() for _ in range(3)]) as group:
        redlock.initialise(url_of(group.members))
        yield group.members


def url_of(servers: Sequence[Redis], *hosts: str) -> str:
    """The first servers by these names, the others by number."""
    named = [f"{host}:{server.port}" for host, server in zip(hosts, servers, strict=False)]
    others = [each.address for each in servers[len(hosts) :]]
    return f"redlock://{','.join([*named, *others])}?node_timeout=500ms"


def connections(server: Redis) -> int:
    return int(server.info("clients")["connected_clients"])


def take(driver: str, url: str, timeout: float = 20, inside: Callable[[], object] = bool) -> None:
    """Take a lock and give it back."""
    if driver == "threads":
        with holdfast.connect(url, io_timeout=4) as client, client.lock("x", timeout=timeout):
            inside()
            return

    async def main() -> None:
        async with holdfast.aio.connect(url, io_timeout=4) as client, client.lock("x", timeout=timeout):
            inside()

    asyncio.run(main())


both_drivers = pytest.mark.parametrize("driver", ["threads", "asyncio"])


@both_drivers
def test_the_next_address_is_tried_where_the_first_refuses(
    three: Sequence[Redis], names: Names, driver: str
) -> None:
    """As localhost is two addresses, and a server may listen at the second only."""
    names["both.test"] = lambda port: [(REFUSES, port), ("127.0.0.1", port)]
    take(driver, url_of(three, "both.test", "both.test", "both.test"))


@both_drivers
def test_the_next_address_is_tried_where_the_first_is_silent(
    three: Sequence[Redis], names: Names, driver: str
) -> None:
    with ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(2):  # nobody accepts these, and there is no room for more
            unheard = stack.enter_context(socket.socket())
            unheard.setblocking(False)
            unheard.connect_ex(silent.getsockname())
        names["both.test"] = lambda port: [silent.getsockname(), ("127.0.0.1", port)]
        take(driver, url_of(three, "both.test", "both.test"))


@both_drivers
def test_nobody_waits_while_a_minority_is_looked_up(
    three: Sequence[Redis], names: Names, driver: str
) -> None:
    found, waited_in_vain = threading.Event(), []

    def slowly(port: int) -> list[tuple[str, int]]:
        if not found.wait(15):
            waited_in_vain.append(port)
        return [("127.0.0.1", port)]

    names["slow.test"] = slowly
    take(driver, url_of(three, "slow.test"), inside=found.set)
    assert not waited_in_vain


def test_a_node_that_was_looked_up_at_last_takes_part(three: Sequence[Redis], names: Names) -> None:
    """Who asked meanwhile went on without it, and did not have it looked up again and again."""
    asked, found = [], threading.Event()

    def slowly(port: int) -> list[tuple[str, int]]:
        asked.append(port)
        found.wait(30)
        return [("127.0.0.1", port)]

    names["slow.test"] = slowly
    with holdfast.connect(url_of(three, "slow.test"), io_timeout=0.1) as client:
        for _ in range(20):
            with client.lock("x", timeout=20):
                pass
        assert 1 <= len(asked) <= 3, "for who asks, who keeps and who tells what was missed"
        before = connections(three[0])
        found.set()

        def takes_part() -> bool:
            with client.lock("x", timeout=20):
                return connections(three[0]) > before

        wait_until(takes_part)


@both_drivers
def test_what_is_no_name_is_a_node_that_cannot_be_reached(three: Sequence[Redis], driver: str) -> None:
    """Python says so with an error of its own, which is none of the system's."""
    take(driver, url_of(three, "a..b"))
    with pytest.raises(EngineUnavailable, match=r"a\.\.b"):
        take(driver, url_of(three, "a..b", "b..c"), timeout=HURRY)


@both_drivers
def test_a_name_that_does_not_exist(three: Sequence[Redis], names: Names, driver: str) -> None:
    def missing(port: int) -> Sequence[tuple[str, int]]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    names["none.test"] = missing
    take(driver, url_of(three, "none.test"))
    with pytest.raises(EngineUnavailable, match=r"none\.test.*not known"):
        take(driver, url_of(three, "none.test", "none.test"), timeout=HURRY)


def test_a_process_that_has_no_more_files(three: Sequence[Redis], monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot wait for what a name means: a node that cannot be reached, for now."""

    def exhausted(*what: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(socket, "socketpair", exhausted)
        take("threads", url_of(three, "localhost"))
        with pytest.raises(EngineUnavailable, match=r"localhost.* cannot be looked up: Too many open files"):
            take("threads", url_of(three, "localhost", "localhost"), timeout=HURRY)
    take("threads", url_of(three, "localhost", "localhost"))
