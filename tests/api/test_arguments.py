"""Bad input is refused before anything is touched, with a message that says what to write instead."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.aio
from holdfast import HoldfastError, InvalidArgument
from holdfast.engine_api import Engine
from support import run_python

CONNECT: list[tuple[Any, dict[str, Any], str]] = [
    ("", {}, "empty"),
    ("   ", {}, "empty"),
    (7, {}, "text"),
    (b"memory://", {}, "text"),
    ("locks.db", {}, "scheme"),
    ("memory:", {}, "scheme"),
    ("nosuch://host", {}, "nosuch.*use one of.*memory://"),
    ("memory://?colour=red", {}, "colour"),
    ("memory://", {"colour": "red"}, "colour"),
    ("memory://a/b", {}, "path"),
    ("memory://#x", {}, "%23"),
    ("memory://?a=1&a=2", {}, "twice"),
    ("memory://[", {}, "URL"),
    ("sqlite:///x.db?colour=red", {}, "colour"),
    ("memory://", {"namespace": ""}, "namespace"),
    ("memory://", {"namespace": "\ud800"}, "namespace"),
    ("memory://", {"namespace": "x" * 513}, "namespace"),
    ("memory://", {"io_timeout": 0}, "io_timeout"),
    ("memory://", {"io_timeout": -1}, "io_timeout"),
    ("memory://", {"io_timeout": math.nan}, "io_timeout"),
    ("memory://", {"io_timeout": "5"}, "io_timeout"),
]


@pytest.mark.parametrize("connect", [holdfast.connect, holdfast.aio.connect], ids=["threads", "asyncio"])
@pytest.mark.parametrize(
    ("url", "options", "reported"), CONNECT, ids=[f"{c[0]!r} {c[1]}"[:40] for c in CONNECT]
)
def test_connecting(connect: Callable[..., Any], url: Any, options: dict[str, Any], reported: str) -> None:
    with pytest.raises(InvalidArgument, match=reported) as refusal:
        connect(url, **options)
    assert isinstance(refusal.value, ValueError)


def test_a_refused_url_is_not_repeated() -> None:
    """It may hold a password."""
    with pytest.raises(InvalidArgument) as refusal:
        holdfast.connect("nosuch://ann:s3cret@host/x?token=s3cret")
    assert "s3cret" not in str(refusal.value)


LOCKS: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "empty"),
    ({"name": "x" * 513}, "512.*hash"),
    ({"name": "é" * 257}, "514 bytes"),
    ({"name": "\udc80"}, "surrogates"),
    ({"name": None}, "text"),
    ({"name": 7}, r"str\(name\)"),
    ({"ttl": 0}, "ttl"),
    ({"ttl": -1}, "ttl"),
    ({"ttl": 0.0004}, "ttl"),
    ({"ttl": 10**12}, "ttl"),
    ({"ttl": 10**400}, "ttl"),
    ({"ttl": math.nan}, "finite"),
    ({"ttl": math.inf}, "finite"),
    ({"ttl": None}, "ttl"),
    ({"ttl": "30"}, "ttl"),
    ({"ttl": True}, "ttl"),
    ({"timeout": -2}, "None or -1"),
    ({"timeout": -0.1}, "negative"),
    ({"timeout": math.nan}, "finite"),
    ({"timeout": math.inf}, "None or -1"),
    ({"timeout": "1"}, "timeout"),
    ({"fair": "yes"}, "fair"),
    ({"fair": 2}, "fair"),
    ({"max_hold": 0}, "max_hold"),
    ({"max_hold": -5}, "max_hold"),
    ({"max_hold": math.inf}, "max_hold"),
    ({"grace": -1}, "grace"),
    ({"grace": 15.1}, "half"),
    ({"grace": math.nan}, "grace"),
    ({"if_lost": "ignore"}, "if_lost"),
    ({"if_lost": None}, "if_lost"),
    ({"metadata": [("a", "b")]}, "mapping"),
    ({"metadata": {"a": 1}}, r"str\("),
    ({"metadata": {1: "a"}}, r"str\("),
    ({"metadata": {"a": "x" * 5000}}, "4096"),
    ({"metadata": {"a": "\ud800"}}, "surrogates"),
]


@pytest.mark.parametrize("kind", ["lock", "rlock", "rwlock", "semaphore"])
@pytest.mark.parametrize("connect", [holdfast.connect, holdfast.aio.connect], ids=["threads", "asyncio"])
def test_making_locks(connect: Callable[..., Any], kind: str, untouched: Path) -> None:
    client = connect(f"sqlite:///{untouched}/locks.db")
    for given, reported in LOCKS:
        options = {"name": "x", **given}
        if kind == "semaphore":
            options["limit"] = 2
        with pytest.raises(InvalidArgument, match=reported):
            getattr(client, kind)(**options)


def test_cancelling_the_body_is_for_asyncio() -> None:
    with pytest.raises(InvalidArgument, match=r"holdfast\.aio"):
        holdfast.connect("memory://").lock("x", if_lost="cancel")


@pytest.fixture
def untouched(tmp_path: Path) -> Iterator[Path]:
    """A folder in which nothing may appear."""
    yield tmp_path
    assert list(tmp_path.iterdir()) == [], "something was written before the input was checked"


def test_connecting_and_making_locks_touches_nothing(untouched: Path) -> None:
    """The first use connects."""
    client = holdfast.connect(f"sqlite:///{untouched}/locks.db")
    client.lock("x")
    client.rwlock("y").read()
    client.semaphore("z", 3)
    assert client.guarantees.engine
    assert client.lock("x").lease is None
    repr(client)
    client.close()


def test_bad_calls_touch_nothing_either(untouched: Path) -> None:
    client = holdfast.connect(f"sqlite:///{untouched}/locks.db")
    lock, semaphore = client.lock("x"), client.semaphore("y", 1)
    calls: list[Callable[[], object]] = [
        lambda: lock.acquire(timeout=-2),
        lambda: lock.acquire(timeout=math.nan),
        lambda: lock.acquire(False, 1),
        lambda: lock.acquire(blocking=False, timeout=0.5),
        lambda: semaphore.resize(0),
        lambda: client.inspect(""),
        lambda: client.list("x" * 600),
        lambda: client.watch(""),
        lambda: client.break_lock("x", reason=""),
        lambda: client.break_lock("x", reason="r", token=-1),
        lambda: client.break_lock("", reason="r"),
        lambda: client.adopt("nonsense"),
        lambda: client.semaphore("x", 0),
        lambda: client.semaphore("x", -1),
        lambda: client.semaphore("x", 1.5),  # type: ignore[arg-type]  # what is refused here
        lambda: client.semaphore("x", True),
        lambda: client.semaphore("x", 10**7),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument):
            call()


def test_releasing_what_was_never_taken_touches_nothing(untouched: Path) -> None:
    client = holdfast.connect(f"sqlite:///{untouched}/locks.db")
    for call in (client.lock("x").release, client.rlock("x").release, client.semaphore("x", 1).release):
        with pytest.raises(holdfast.NotHeld):
            call()


def test_the_largest_and_smallest_that_are_accepted() -> None:
    accepted: list[dict[str, Any]] = [
        {"ttl": 0.01},
        {"ttl": 366 * 86400},
        {"ttl": 30, "grace": 15},
        {"timeout": 0},
        {"timeout": 10**6},
        {"metadata": {}},
        {"max_hold": 0.01},
    ]
    client = holdfast.connect("memory://limits")
    for options in accepted:
        assert client.lock("x" * 512, **options).name == "x" * 512


def test_the_default_is_the_environments_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "memory://from-the-environment")
    assert holdfast.connect().url == "memory://from-the-environment"
    assert holdfast.aio.connect().url == "memory://from-the-environment"
    assert holdfast.connect("memory://given").url == "memory://given"
    monkeypatch.setenv("HOLDFAST_URL", "nosuch://x")
    with pytest.raises(InvalidArgument, match="nosuch"):
        holdfast.connect()


def test_without_any_url_it_is_the_embedded_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_URL")
    assert holdfast.connect().url.startswith("sqlite:///")


def test_every_error_is_ours() -> None:
    """One except clause is enough."""
    with pytest.raises(HoldfastError):
        holdfast.connect("nosuch://")


def test_importing_and_connecting_starts_nothing() -> None:
    code = """
        import threading
        import holdfast, holdfast.aio
        holdfast.connect("memory://")
        holdfast.aio.connect("memory://")
        print("threads", threading.active_count())
    """
    with run_python(code, env={"HOLDFAST_URL": None}) as child:
        assert child.expect("threads") == "1"
        child.succeed()


def test_an_engine_is_what_the_contract_says() -> None:
    """The protocol that engines implement is named in one place."""
    assert {"url", "guarantees", "linger", "threads", "asyncio"} <= set(dir(Engine))
    assert os.environ.get("HOLDFAST_URL", "").startswith("sqlite:///")
