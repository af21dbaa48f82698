"""TLS to a real server: the certificate and the name are verified, and errors name the remedy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psycopg
import psycopg_pool
import pytest

import holdfast
import holdfast.aio
from holdfast import EngineUnavailable, InvalidArgument
from holdfast.engines.postgres.live_client import config_from_client
from holdfast.lab.servers import PostgreSQL
from holdfast.lab.servers.certificates import make_certificates

ENGINES = pytest.mark.parametrize("engine", ["postgresql", "postgresql+advisory"])
DRIVER = pytest.mark.parametrize("driver", ["threads", "asyncio"])


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    """Without TLS every login is refused."""
    with PostgreSQL(tls=True) as server:
        rules = "local all all trust\nhostssl all all 127.0.0.1/32 trust\n"
        (server.data / "pg_hba.conf").write_text(rules)
        server.sql("SELECT pg_reload_conf()")
        yield server


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("other"), "openssl").authority


def where(server: PostgreSQL, engine: str = "postgresql", **options: object) -> str:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"{engine}://postgres@{server.address}/postgres?{query}"


def refusal(url: str) -> str:
    with holdfast.connect(url) as locks, pytest.raises(EngineUnavailable) as raised:
        locks.lock("x").acquire(timeout=0)
    assert raised.value.nothing_was_sent
    return str(raised.value)


@ENGINES
@DRIVER
def test_verify_full_works(engine: str, driver: str, server: PostgreSQL) -> None:
    url = where(server, engine, sslmode="verify-full", sslrootcert=server.certificates.authority)
    encrypted = (
        "SELECT count(*) > 0 AND bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)"
        " WHERE a.application_name = 'holdfast'"
    )
    if driver == "threads":
        with holdfast.connect(url) as locks, locks.lock("x", timeout=20):
            assert server.sql(encrypted) == "t"
        return

    async def use() -> None:
        async with holdfast.aio.connect(url) as locks, locks.lock("x", timeout=20):
            assert await asyncio.to_thread(server.sql, encrypted) == "t"

    asyncio.run(use())


def test_by_name_it_works_as_well(server: PostgreSQL) -> None:
    url = where(server, sslmode="verify-full", sslrootcert=server.certificates.authority)
    url = url.replace("127.0.0.1", "localhost") + "&hostaddr=127.0.0.1"
    with holdfast.connect(url) as locks, locks.lock("x", timeout=20):
        pass


@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
def test_another_authority_is_refused(mode: str, server: PostgreSQL, other_authority: Path) -> None:
    message = refusal(where(server, sslmode=mode, sslrootcert=other_authority))
    assert "certificate verify failed" in message
    assert "sslrootcert=" in message


def test_another_name_is_refused(server: PostgreSQL) -> None:
    url = where(server, sslmode="verify-full", sslrootcert=server.certificates.authority)
    message = refusal(url.replace("127.0.0.1", "db.example.org") + "&hostaddr=127.0.0.1")
    assert "does not match host name" in message
    assert "a name that is in the certificate" in message


def test_a_missing_authority_is_refused(server: PostgreSQL, tmp_path: Path) -> None:
    message = refusal(where(server, sslmode="verify-full", sslrootcert=tmp_path / "none.crt"))
    assert "sslrootcert=" in message


def test_without_tls_it_is_said_what_to_write(server: PostgreSQL) -> None:
    message = refusal(where(server, sslmode="disable"))
    assert "no encryption" in message
    assert "sslmode=verify-full" in message


def test_a_server_without_tls_is_refused(other_authority: Path) -> None:
    with PostgreSQL() as plain:
        message = refusal(where(plain, sslmode="verify-full", sslrootcert=other_authority))
    assert "does not support SSL" in message
    assert "ssl=on" in message


# --- of a live client -----------------------------------------------------------------------------


def test_what_protects_a_live_connection_is_carried_over(server: PostgreSQL) -> None:
    authority = str(server.certificates.authority)
    conninfo = (
        f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres sslmode=verify-full"
        f" sslrootcert={authority} ssl_min_protocol_version=TLSv1.3 sslsni=0"
    )
    with psycopg.connect(conninfo) as connection:
        libpq = config_from_client(connection, {}).libpq
        assert libpq["sslmode"] == "verify-full"
        assert libpq["sslrootcert"] == authority
        assert libpq["ssl_min_protocol_version"] == "TLSv1.3"
        assert libpq["sslsni"] == "0"
        with holdfast.connect(connection) as locks, locks.lock("x", timeout=20):
            pass
    with psycopg_pool.ConnectionPool(conninfo, open=False) as pool:
        kept = config_from_client(pool, {}).libpq
        names = ("sslmode", "sslrootcert", "ssl_min_protocol_version", "sslsni")
        assert [kept[name] for name in names] == [libpq[name] for name in names]


@pytest.mark.parametrize(
    "setting", [{"sslsomething": "new"}, {"scram_client_key": "abc"}, {"gssdelegation": "1"}]
)
def test_what_cannot_be_carried_over_is_refused(setting: dict[str, str]) -> None:
    class Info:
        password = ""

        def get_parameters(self) -> dict[str, str]:
            return {"host": "db", **setting}

    class Connection:
        info = Info()

    with pytest.raises(InvalidArgument, match="cannot carry over") as raised:
        config_from_client(Connection(), {})
    assert next(iter(setting)) in str(raised.value)
