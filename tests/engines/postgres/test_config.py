"""Where to connect: URLs and live clients, checked before any I/O, and shown without their secrets."""

from __future__ import annotations

import psycopg
import psycopg_pool
import pytest

import holdfast
from holdfast import InvalidArgument
from holdfast.core.urls import parse_url
from holdfast.engines.postgres import open_client
from holdfast.engines.postgres.config import PostgresConfig, config_from_url
from holdfast.engines.postgres.live_client import config_from_client
from support.servers import shared_postgresql

pytestmark = pytest.mark.timeless


def target(text: str, **options: object) -> PostgresConfig:
    return config_from_url(parse_url(text), options)


@pytest.mark.parametrize(
    ("url", "libpq"),
    [
        ("postgresql://db/app", {"host": "db", "dbname": "app"}),
        (
            "postgresql://ann:s%40cret@db:5433/app",
            {"host": "db", "port": "5433", "user": "ann", "password": "s@cret", "dbname": "app"},
        ),
        ("postgresql://a:1,b:2,c/app", {"host": "a,b,c", "port": "1,2,", "dbname": "app"}),
        ("postgresql://[::1]:5433/app", {"host": "::1", "port": "5433", "dbname": "app"}),
        ("postgresql://[::1]/app", {"host": "::1", "dbname": "app"}),
        ("postgresql://%2Frun%2Fpostgresql/app", {"host": "/run/postgresql", "dbname": "app"}),
        ("postgresql:///app?host=/run/postgresql", {"host": "/run/postgresql", "dbname": "app"}),
        ("postgresql://db/a%2Fb?sslmode=require", {"host": "db", "dbname": "a/b", "sslmode": "require"}),
        (
            "postgresql://db/app?application_name=mine",
            {"host": "db", "dbname": "app", "application_name": "mine"},
        ),
    ],
)
def test_a_url_becomes_settings_of_libpq(url: str, libpq: dict[str, str]) -> None:
    assert dict(target(url).libpq) == {"application_name": "holdfast", **libpq}


def test_each_host_is_an_attempt_of_its_own() -> None:
    attempts = target("postgresql://a:1,b:2,c/app").conninfos(1.0)
    found = [psycopg.conninfo.conninfo_to_dict(one) for one in attempts]
    assert [(one.get("host"), one.get("port")) for one in found] == [("a", "1"), ("b", "2"), ("c", None)]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://db/app?connect_timeout=3", "no option 'connect_timeout'"),
        ("postgresql://db/app?pooler=maybe", "pooler must be auto, yes or no"),
        ("postgresql://db/app?schema=A", "schema must consist"),
        ("postgresql://db/app?host=other", "twice"),
    ],
)
def test_wrong_options_are_refused_before_any_connection(url: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        holdfast.connect(url)


def test_options_may_be_given_beside_the_url() -> None:
    assert target("postgresql://db/app", schema="mine", pooler="yes").schema == "mine"
    with pytest.raises(InvalidArgument, match="no option 'color'"):
        holdfast.connect("postgresql://db/app", color="red")
    with pytest.raises(InvalidArgument, match="as an argument"):
        holdfast.connect("postgresql://db/app?schema=a", schema="b")


def test_secrets_are_not_shown() -> None:
    url = "postgresql://ann:s3cret@db/app?sslpassword=hush"
    client = holdfast.connect(url)
    shown = repr(client) + client.url + repr(target(url)) + repr(target(url).conninfos(1.0))
    assert "s3cret" not in shown
    assert "hush" not in shown


@pytest.mark.parametrize("url", ["postgresql://ann:s3cret%00@db/app", "postgresql://ann:s3cret@db:x%00/app"])
def test_what_libpq_cannot_read_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        holdfast.connect(url)
    assert "s3cret" not in str(refused.value)


# --- live clients -------------------------------------------------------------------------------


@pytest.mark.realtime
def test_a_live_connection_lends_its_settings(schema: str) -> None:
    with psycopg.connect(shared_postgresql().url) as connection:
        engine = open_client(connection, "space", {"schema": schema})
        found = config_from_client(connection, {}).libpq
    assert found["host"] == shared_postgresql().host
    assert found["port"] == str(shared_postgresql().port)
    assert engine.url.startswith("postgresql://")


@pytest.mark.realtime
def test_locks_on_the_server_of_a_live_connection(schema: str) -> None:
    with psycopg.connect(shared_postgresql().url) as connection:
        with holdfast.connect(connection, schema=schema) as client, client.lock("x"):
            assert client.inspect("x").locked
        assert connection.execute("SELECT 1").fetchone() == (1,), "left alone"
    pool = psycopg_pool.ConnectionPool(shared_postgresql().url, open=False)
    with holdfast.connect(pool, schema=schema) as client, client.lock("x"):
        assert client.inspect("x").locked


def test_a_password_of_a_live_connection_comes_along() -> None:
    class Info:
        password = "s3cret"

        def get_parameters(self) -> dict[str, str]:
            return {"host": "db", "user": "ann", "dbname": "app", "connect_timeout": "3"}

    class Connection:
        info = Info()

    assert dict(config_from_client(Connection(), {}).libpq) == {
        "host": "db",
        "user": "ann",
        "dbname": "app",
        "password": "s3cret",
        "application_name": "holdfast",
    }


def test_a_pool_lends_its_settings() -> None:
    pool = psycopg_pool.ConnectionPool(
        "postgresql://ann:s3cret@db:5433/app", open=False, kwargs={"autocommit": True, "sslmode": "require"}
    )
    assert dict(config_from_client(pool, {}).libpq) == {
        "host": "db",
        "port": "5433",
        "user": "ann",
        "dbname": "app",
        "password": "s3cret",
        "sslmode": "require",
        "application_name": "holdfast",
    }


def test_only_our_own_options_go_with_a_live_client() -> None:
    pool = psycopg_pool.ConnectionPool("postgresql://db/app", open=False)
    with pytest.raises(InvalidArgument, match="schema or pooler"):
        config_from_client(pool, {"sslmode": "require"})
