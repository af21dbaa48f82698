"""Nodes over TLS: their certificates and names are verified, clients may have certificates and passwords."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

import holdfast
from contract.engines import DRIVERS
from contract.harness import World, held
from holdfast import EngineUnavailable, InvalidArgument, redlock
from holdfast.core.urls import parse_url
from holdfast.engines.redlock.config import config_from_url
from holdfast.lab.servers import Redis
from holdfast.lab.servers.group import Group
from support import wait_until

HURRY = 1.0
PASSWORD = "s@cret"
MANY = 250


def tls_group(**options: Any) -> Group[Redis]:
    first = Redis(tls=True, **options)
    return Group([first, *(Redis(tls=True, certificates_of=first, **options) for _ in range(2))])


@pytest.fixture(scope="module")
def secure() -> Iterator[Group[Redis]]:
    with tls_group() as group:
        yield group


@pytest.fixture(scope="module")
def strict() -> Iterator[Group[Redis]]:
    """These want a certificate of their clients, and a password."""
    with tls_group(password=PASSWORD, settings={"tls-auth-clients": "yes"}) as group:
        yield group


@pytest.fixture(params=DRIVERS)
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param, "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3")


def url_of(group: Group[Redis], user: str = "", **options: object) -> str:
    given = {"node_timeout": "2s", **options}
    query = "&".join(f"{name}={quote(str(value))}" for name, value in given.items())
    return f"redlock://{user}{group.addresses}?{query}"


def trusted(group: Group[Redis]) -> dict[str, Any]:
    return {"ssl": "true", "ssl_ca_certs": group.members[0].certificates.authority}


async def test_locks_over_tls(world: World, secure: Group[Redis]) -> None:
    world.url = url_of(secure, **trusted(secure))
    ann, bob, client, other = world.actor(), world.actor(), world.client(), world.client()
    lease = held(await ann(client.lock("x", ttl=600).acquire, timeout=10))
    await ann(lease.extend)
    assert [info.token for info in await ann(client.list)] == [lease.token]
    assert await bob(other.lock("x").acquire, timeout=0.2) is None
    await ann(lease.release)
    assert held(await bob(other.lock("x").acquire, timeout=10)).token > lease.token


async def test_client_certificates_and_a_password(world: World, strict: Group[Redis]) -> None:
    files = strict.members[0].certificates
    mine: dict[str, Any] = {"ssl_certfile": files.certificate, "ssl_keyfile": files.key}
    world.url = url_of(strict, f":{quote(PASSWORD)}@", **trusted(strict), **mine)
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=600).acquire, timeout=10))
    await ann(lease.release)
    assert PASSWORD not in repr(client)


async def refused(world: World, url: str, told: str) -> None:
    """Whichever of the tries is the first to say why."""
    world.url = url
    ann, client = world.actor(), world.client(io_timeout=HURRY)
    with pytest.raises(EngineUnavailable, match=told) as caught:
        await ann(client.lock("x").acquire, timeout=10)
    assert PASSWORD not in str(caught.value)


async def test_without_its_certificate_a_client_is_refused(world: World, strict: Group[Redis]) -> None:
    url = url_of(strict, f":{quote(PASSWORD)}@", **trusted(strict))
    await refused(world, url, r"no TLS with .*CERTIFICATE_REQUIRED|broke|closed|alert")


async def test_a_wrong_password_over_tls(world: World, strict: Group[Redis]) -> None:
    files = strict.members[0].certificates
    mine: dict[str, Any] = {"ssl_certfile": files.certificate, "ssl_keyfile": files.key}
    await refused(world, url_of(strict, ":wr%40ng@", **trusted(strict), **mine), "does not know this user")


async def test_an_authority_that_is_not_trusted(world: World, secure: Group[Redis]) -> None:
    await refused(world, url_of(secure, ssl="true"), r"certificate of .* is not trusted")


async def test_a_certificate_for_another_name(world: World, secure: Group[Redis]) -> None:
    """The address is the same, the name by which it is called does not stand in the certificate."""
    url = url_of(secure, **trusted(secure)).replace("127.0.0.1", "127.1")
    await refused(world, url, r"certificate of .* is not trusted: .*[Hh]ostname mismatch")
    world.url = f"{url}&ssl_check_hostname=false"
    ann, client = world.actor(), world.client()
    await ann(held(await ann(client.lock("x").acquire, timeout=10)).release)


async def test_names_are_verified_as_well(world: World, secure: Group[Redis]) -> None:
    world.url = url_of(secure, **trusted(secure)).replace("127.0.0.1", "localhost")
    ann, client = world.actor(), world.client()
    await ann(held(await ann(client.lock("x").acquire, timeout=10)).release)


async def test_tls_to_nodes_without(world: World) -> None:
    with Group([Redis() for _ in range(3)]) as plain:
        await refused(world, url_of(plain, ssl="true", ssl_cert_reqs="none"), r"no TLS with|without TLS")


async def test_no_tls_to_nodes_with(world: World, secure: Group[Redis]) -> None:
    await refused(world, url_of(secure), "is it a server with TLS")


async def test_what_is_held_is_renewed_also_where_there_is_much_to_say(
    world: World, secure: Group[Redis]
) -> None:
    """More than fits one record of TLS, in both directions."""
    world.url = url_of(secure, **trusted(secure))
    ann, client = world.actor(), world.client()
    leases = [held(await ann(client.lock(f"n{n}", ttl=6.0).acquire, timeout=10)) for n in range(MANY)]
    first = leases[0].remaining
    await world.until(lambda: leases[0].remaining > first or leases[-1].remaining > 5.9, "not renewed")
    assert len(await ann(client.list)) >= MANY
    assert not any(lease.lost for lease in leases)
    for lease in leases:
        await ann(lease.release)


async def test_a_node_comes_back(world: World, secure: Group[Redis]) -> None:
    world.url = url_of(secure, **trusted(secure))
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=600).acquire, timeout=10))
    secure.members[1].command("CLIENT", "KILL", "TYPE", "NORMAL")
    await ann(lease.extend)
    await ann(lease.release)
    await ann(held(await ann(client.lock("x").acquire, timeout=10)).release)


def test_the_state_of_nodes_over_tls(secure: Group[Redis]) -> None:
    url = url_of(secure, **trusted(secure))
    with holdfast.connect(url) as client, client.lock("x"):
        pass
    wait_until(lambda: all(each.takes_part for each in redlock.status(url)))


def test_a_forked_child_says_nothing_on_connections_of_its_parent(secure: Group[Redis]) -> None:
    with holdfast.connect(url_of(secure, **trusted(secure))) as client:
        lease = client.lock("x", ttl=600).acquire(timeout=10)
        assert lease is not None
        child = os.fork()
        if not child:
            os._exit(0 if lease.lost else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        lease.extend()
        lease.release()


# --- options --------------------------------------------------------------------------------------


def test_tls_is_asked_for_and_its_options_are_checked_before_anything_is_sent() -> None:
    plain = config_from_url(parse_url("redlock://a,b,c"), {})
    assert all(each.tls is None for each in plain.nodes)
    chosen = config_from_url(parse_url("redlock://a,b,c?ssl=true"), {})
    assert all(each.tls is not None and each.tls.check_hostname for each in chosen.nodes)
    for url, told in (
        ("redlock://a,b,c?ssl_ca_certs=x", "needs TLS: write redlock://…?ssl=true"),
        ("redlock://a,b,c?ssl=perhaps", "ssl is true or false"),
        ("redlock://a,b,c?ssl=true&ssl_ca_certs=/nowhere", "certificates cannot be used"),
        ("redlock://a,b,c?ssl=true&ssl_cert_reqs=optional", "'required' or 'none'"),
    ):
        with pytest.raises(InvalidArgument, match=told.replace("?", r"\?")):
            config_from_url(parse_url(url), {})
