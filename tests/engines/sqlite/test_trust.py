"""What a wake-up is believed, and who goes on listening whatever happens."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engines.sqlite.stores import One
from holdfast.core.tokens import MAX_AHEAD_US
from holdfast.engines.sqlite.notifications import NotificationListener
from holdfast.engines.sqlite.sockets import WakeupSocket
from holdfast.runtime.clock import wall_us
from support import wait_until

pytestmark = pytest.mark.usefixtures("strangers")


@contextmanager
def stranger(path: Path, one: One) -> Iterator[Callable[[str | bytes], None]]:
    """Sends messages to a client's inbox, as any process of this user can."""
    folder = os.open(f"{path}.clients", os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:

            def send(message: str | bytes) -> None:
                data = message.encode() if isinstance(message, str) else message
                sender.sendto(data, f"/proc/self/fd/{folder}/{one.id}.sock")

            yield send
    finally:
        os.close(folder)


def listening(client: Callable[[], One]) -> tuple[One, NotificationListener, WakeupSocket]:
    one = client()
    one.hold("x")
    one.store.listen_in_thread()
    registration = one.store._session.registration
    assert registration is not None
    return one, registration.listener, registration.wakeup_socket


@pytest.mark.parametrize(
    "forged",
    [
        "{too_far}\n0.5",
        f"{2**62}\n0.5",
        f"{'9' * 200}\n0.5",
        "0\n0.5",
        "-5\n0.5",
        "17\nnan",
        "17\ninf",
        "17\n-1.0",
    ],
)
def test_a_grant_that_cannot_be_genuine_only_wakes(
    path: Path, client: Callable[[], One], forged: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, _, wakeup_socket = listening(client)
    with stranger(path, one) as send:
        send(f"{one.id}-1\n" + forged.format(too_far=wall_us() + MAX_AHEAD_US + 60_000_000))
        wait_until(lambda: one.posted)
    assert one.handed == {f"{one.id}-1": None}
    assert wakeup_socket.dropped == 1
    assert "dropped a wake-up" in caplog.text


def test_a_genuine_grant_is_believed(path: Path, client: Callable[[], One]) -> None:
    one, _, wakeup_socket = listening(client)
    with stranger(path, one) as send:
        send(f"{one.id}-1\n{wall_us()}\n0.5")
        wait_until(lambda: one.posted)
    assert one.handed[f"{one.id}-1"] is not None
    assert wakeup_socket.dropped == 0


def test_what_cannot_be_decoded_is_dropped_and_counted_and_warned_of_once(
    path: Path, client: Callable[[], One], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "holdfast")
    one, _, wakeup_socket = listening(client)
    with stranger(path, one) as send:
        for message in (b"\xff\xfe", b"", b"someone-else", f"{one.id}-\xff".encode("latin-1")):
            send(message)
        send(f"{one.id}-1")
        wait_until(lambda: one.posted)
    assert one.posted == [f"{one.id}-1"]
    assert wakeup_socket.dropped == 4
    told = [record.levelname for record in caplog.records if "dropped a wake-up" in record.getMessage()]
    assert told == ["WARNING", "DEBUG", "DEBUG", "DEBUG"]


@pytest.mark.parametrize("error", [RuntimeError("a bug"), MemoryError(), SystemExit(1)], ids=repr)
def test_the_listener_goes_on_whatever_a_message_causes(
    path: Path,
    client: Callable[[], One],
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, listener, _ = listening(client)
    post, failures = listener._post, [error]

    def fail_once(*message: object) -> None:
        if failures:
            raise failures.pop()
        post(*message)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(listener, "_post", fail_once)
    with stranger(path, one) as send:
        send(f"{one.id}-1")
        wait_until(lambda: not failures)
        send(f"{one.id}-2")
        wait_until(lambda: one.posted == [f"{one.id}-2"])
    assert listener.is_running
    assert "starts again" in caplog.text


def test_the_listener_goes_on_when_its_descriptors_are_closed_under_it(
    path: Path, client: Callable[[], One]
) -> None:
    one, listener, _ = listening(client)
    poller, self_pipe = listener._poller, listener._self_pipe
    assert poller is not None
    assert self_pipe is not None
    poller.close()  # type: ignore[union-attr]  # an epoll
    self_pipe.wake()  # it waits in the poller that was closed
    wait_until(lambda: listener._poller is not poller)
    with stranger(path, one) as send:
        send(f"{one.id}-1")
        wait_until(lambda: one.posted)


def test_a_thread_that_ended_all_the_same_is_started_again(path: Path, client: Callable[[], One]) -> None:
    one, listener, _ = listening(client)
    first = listener._thread
    assert first is not None
    assert listener._self_pipe is not None
    listener._closing = True
    listener._self_pipe.wake()
    first.join(10)
    listener._closing = False
    assert not listener.is_running
    one.store.listen_in_thread()
    assert listener._thread is not first
    with stranger(path, one) as send:
        send(f"{one.id}-1")
        wait_until(lambda: one.posted)
