"""A server that refuses: transient errors are retried, permanent ones raised, and neither is "busy"."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator

import pytest

import holdfast
from contract.harness import World, held
from holdfast import EngineUnavailable, provision
from holdfast.lab.servers import PostgreSQL
from support.servers import shared_postgresql

CALLED = (
    "bytea, bytea, text, text, text, text, text, float8, boolean, boolean, boolean, float8, integer, text"
)


def refuse(schema: str, sqlstate: str, times: int) -> None:
    """Have the server answer the next acquires with this error. A sequence counts across rollbacks."""
    places = ", ".join(f"${number}" for number in range(1, 15))
    shared_postgresql().sql(f"""
        CREATE SEQUENCE {schema}.refused;
        ALTER FUNCTION {schema}.acquire_1({CALLED}) RENAME TO acquire_really;
        CREATE FUNCTION {schema}.acquire_1({CALLED}) RETURNS text LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('{schema}.refused') <= {times} THEN
                RAISE EXCEPTION 'on purpose' USING ERRCODE = '{sqlstate}';
            END IF;
            RETURN {schema}.acquire_really({places});
        END $$;
    """)


def asked(schema: str) -> int:
    return int(shared_postgresql().sql(f"SELECT last_value FROM {schema}.refused"))


@pytest.mark.parametrize(
    ("sqlstate", "blocking"),
    [("40001", False), ("40P01", False), ("55P03", True), ("57014", True), ("53200", True)],
)
async def test_transient_refusals_are_retried(
    world: World, schema: str, sqlstate: str, blocking: bool
) -> None:
    """A deadlock, a conflict (even in a single try), a row lock that timed out."""
    provision.install(world.url)
    refuse(schema, sqlstate, times=3)
    ann = world.actor()
    lock = world.client().lock("x")
    lease = held(await ann(lock.acquire, blocking))
    assert asked(schema) == 4
    assert lease.remaining > 29, "counted from the try that was granted"
    await ann(lock.release)


@pytest.mark.parametrize(
    ("sqlstate", "message"),
    [
        ("53100", "disk is full"),
        ("25006", "read-only"),
        ("42501", "holdfast init --sql"),
        ("XX001", "not what"),
    ],
)
async def test_permanent_refusals_are_raised_at_once(
    world: World, schema: str, sqlstate: str, message: str
) -> None:
    provision.install(world.url)
    refuse(schema, sqlstate, times=1)
    ann = world.actor()
    lock = world.client(io_timeout=60).lock("x")
    with pytest.raises(EngineUnavailable, match=message) as refused:
        await ann(lock.acquire, False)
    assert sqlstate in str(refused.value)
    assert asked(schema) == 1
    held(await ann(lock.acquire))
    await ann(lock.release)


@pytest.mark.parametrize("sqlstate", ["40P01", "55P03", "57P01"])
async def test_a_single_try_raises_the_refusal(world: World, schema: str, sqlstate: str) -> None:
    """Not None, as if the lock were taken."""
    provision.install(world.url)
    refuse(schema, sqlstate, times=1_000_000)
    ann = world.actor()
    with pytest.raises(EngineUnavailable, match=sqlstate):
        await ann(world.client(io_timeout=60).lock("x").acquire, False)
    assert not world.look("x").locked


async def test_a_transient_refusal_that_stays_is_raised_in_the_end(world: World, schema: str) -> None:
    provision.install(world.url)
    refuse(schema, "40P01", times=1_000_000)
    ann = world.actor()
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match="deadlock"):
        await ann(world.client(io_timeout=0.5).lock("x").acquire)
    assert 0.4 < time.monotonic() - began < 10
    assert asked(schema) > 3


async def test_a_standby_is_refused(world: World, schema: str) -> None:
    """Or whatever else only reads."""
    provision.install(world.url)
    role = f"reader_{secrets.token_hex(4)}"
    server = shared_postgresql()
    server.sql(
        f"CREATE ROLE {role} LOGIN SUPERUSER; ALTER ROLE {role} SET default_transaction_read_only = on"
    )
    try:
        reader = World(world.driver, world.url.replace("postgres@", f"{role}@"))
        async with reader:
            ann = reader.actor()
            with pytest.raises(EngineUnavailable, match="read-only"):
                await ann(reader.client().lock("x").acquire)
            assert (await ann(reader.client().inspect, "x")).kind is None, "it can be read"
    finally:
        server.sql(f"DROP ROLE {role}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("postgres@", "nobody_at_all@"), "nobody_at_all"),
        (("/postgres?", "/no_such_database?"), "no_such_database"),
    ],
)
async def test_a_refused_login_is_raised_at_once(world: World, change: tuple[str, str], message: str) -> None:
    ann = world.actor()
    stranger = World(world.driver, world.url.replace(*change))
    async with stranger:
        with pytest.raises(EngineUnavailable, match=message):
            await ann(stranger.client(io_timeout=60).lock("x").acquire)


@pytest.mark.parametrize("engine", ["postgresql", "postgresql+advisory"])
async def test_a_host_without_an_address_cannot_be_reached(world: World, engine: str) -> None:
    """In an event loop Python resolves names, with an error of its own."""
    async with World(world.driver, f"{engine}://postgres@a..b/postgres") as nowhere:
        ann, client = nowhere.actor(), nowhere.client(io_timeout=0.3)
        with pytest.raises(EngineUnavailable, match="cannot be reached"):
            await ann(client.lock("x").acquire, timeout=0.1)


# --- a server of their own ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict() -> Iterator[PostgreSQL]:
    """With a password, TLS, and room for few."""
    settings = {"max_connections": "8", "superuser_reserved_connections": "2"}
    with PostgreSQL(password="s3cret:/?#", tls=True, settings=settings) as server:
        server.sql("CREATE ROLE app LOGIN PASSWORD 'pässword'; GRANT ALL ON DATABASE postgres TO app")
        yield server


@pytest.fixture
def strict_url(strict: PostgreSQL, schema: str) -> str:
    return f"postgresql://app:p%C3%A4ssword@{strict.address}/postgres?schema={schema}"


def test_a_password(strict_url: str) -> None:
    with holdfast.connect(strict_url) as client, client.lock("x"):
        assert "ssword" not in repr(client) + client.url


def test_a_wrong_password_is_raised_at_once_and_not_shown(strict_url: str) -> None:
    wrong = strict_url.replace("p%C3%A4ssword", "h4ckme")
    with holdfast.connect(wrong, io_timeout=60) as client:
        with pytest.raises(EngineUnavailable, match="authentication failed") as refused:
            client.lock("x").acquire()
        assert "h4ckme" not in str(refused.value) + repr(client) + client.url


def test_tls(strict: PostgreSQL, strict_url: str) -> None:
    authority = strict.certificates.authority
    url = f"{strict_url}&sslmode=verify-full&sslrootcert={authority}"
    in_use = "SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)"
    with holdfast.connect(url) as client, client.lock("x"):
        assert strict.sql(f"{in_use} WHERE application_name = 'holdfast'") == "t"


def test_a_certificate_of_an_unknown_authority_is_refused_at_once(strict_url: str) -> None:
    with PostgreSQL(tls=True) as other:
        url = f"{strict_url}&sslmode=verify-full&sslrootcert={other.certificates.authority}"
        with holdfast.connect(url, io_timeout=60) as client, pytest.raises(EngineUnavailable, match="certif"):
            client.lock("x").acquire()


async def test_a_server_that_is_full_may_have_room_later(world: World, strict_url: str) -> None:
    provision.install(strict_url)
    async with World("threads", strict_url) as others, World(world.driver, strict_url) as late:
        bob, hogs = others.actor(), [others.client(io_timeout=2.0) for _ in range(8)]
        with contextlib.suppress(EngineUnavailable):
            for hog in hogs:
                await bob(hog.inspect, "x")
        ann, lock = late.actor(), late.client(io_timeout=1.0).lock("x")
        with pytest.raises(EngineUnavailable, match=r"connection slots|too many clients"):
            await ann(lock.acquire)
        for hog in hogs:
            await bob(hog.close)
        held(await ann(late.client().lock("x").acquire))
