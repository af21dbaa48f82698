"""Schemes of URLs: other names, near misses, and what is said of a list that cannot be had."""

from __future__ import annotations

import socket

import pytest

import holdfast
from holdfast.engines import ALIASES, SCHEMES, open_engine


@pytest.mark.engine("postgresql")
@pytest.mark.parametrize(
    ("given", "meant"), [("postgres", "postgresql"), ("postgres+advisory", "postgresql+advisory")]
)
def test_postgres_is_postgresql(given: str, meant: str) -> None:
    engine = open_engine(f"{given}://db/app", "holdfast", {})
    assert type(engine) is type(open_engine(f"{meant}://db/app", "holdfast", {}))
    assert engine.url == f"{meant}://db/app"
    assert ALIASES[given] == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [("postgre", "postgres"), ("postgressql", "postgresql"), ("zookeper", "zookeeper"), ("redi", "redis")],
)
def test_a_near_miss_is_guessed(written: str, meant: str) -> None:
    with pytest.raises(holdfast.InvalidArgument) as raised:
        holdfast.connect(f"{written}://u:secret@host/0")
    assert f"did you mean {meant}://?" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_all_schemes_are_listed() -> None:
    with pytest.raises(holdfast.InvalidArgument) as raised:
        holdfast.connect("gopher://host")
    assert "did you mean" not in str(raised.value)
    assert all(f"{scheme}://" in str(raised.value) for scheme in SCHEMES)


@pytest.mark.engine("redis")
@pytest.mark.parametrize(
    ("prefix", "reported"),
    [("", "for the list of names:"), ("jobs/", "for the list of names that begin with 'jobs/':")],
)
def test_a_list_that_cannot_be_had_is_named(prefix: str, reported: str) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{bound.getsockname()[1]}/0"
        with (
            holdfast.connect(url, io_timeout=0.1) as locks,
            pytest.raises(holdfast.EngineUnavailable) as raised,
        ):
            locks.list(prefix)
    assert reported in str(raised.value)
