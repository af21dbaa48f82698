"""The small pure parts of the command line."""

from __future__ import annotations

import math
import os

import pytest

from holdfast import errors
from holdfast.cli.channel import Channel
from holdfast.cli.exits import Status, status_of
from holdfast.cli.options import Misuse, duration
from holdfast.cli.output import age, printable
from holdfast.cli.processes import descendants

pytestmark = pytest.mark.timeless


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30),
        ("1.5", 1.5),
        ("0", 0),
        ("500ms", 0.5),
        ("10s", 10),
        ("5m", 300),
        ("2h", 7200),
        (" 1D ", 86400),
        ("90s", 90),
        ("1h30m", 5400),
        ("1d2h3m4s5ms", 93784.005),
        ("1.5h", 5400),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert math.isclose(duration(text), seconds)


@pytest.mark.parametrize(
    "text",
    ["", "s", "soon", "-1", "nan", "inf", "1e999", "1 week", "5x", "30m1h", "1h1h", "h30", "1h30", "1_0"],
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(Misuse, match="is not a duration"):
        duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (59.9, "59 s"),
        (200, "3 m 20 s"),
        (7500, "2 h 5 m"),
        (360000, "4 d 4 h"),
        (math.inf, "no end"),
    ],
)
def test_ages(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_printable_spells_out_what_steers_a_terminal() -> None:
    assert printable("naïve 名 x\x1b[0m\n\u202e") == "naïve 名 x\\x1b[0m\\n\\u202e"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidArgument("x"), Status.USAGE),
        (errors.Unsupported("x"), Status.USAGE),
        (errors.EngineUnavailable("x"), Status.UNAVAILABLE),
        (errors.LockTimeout("x"), Status.NOT_GRANTED),
        (errors.LockLost("x"), Status.LOST),
        (errors.Deadlock("x"), Status.USAGE),
        (errors.Conflict("x"), Status.INTERNAL),
    ],
)
def test_every_error_has_a_status(error: errors.HoldfastError, status: Status) -> None:
    assert status_of(error) == status


@pytest.mark.realtime
def test_channel_keeps_messages_whole_and_tells_the_end() -> None:
    ours, theirs = Channel.pair()
    try:
        ours.send("one", 1)
        ours.send("two", {"surrogate": "\udcff"}, None)
        assert theirs.receive() == [["one", 1], ["two", {"surrogate": "\udcff"}, None]]
        os.write(ours.fileno(), b'["hal')
        assert theirs.receive() == []
        os.write(ours.fileno(), b'f"]\n')
        assert theirs.receive() == [["half"]]
        assert not theirs.closed
        ours.close()
        assert theirs.receive() == []
        assert theirs.closed
        theirs.send("to nobody")
    finally:
        ours.close()
        theirs.close()


def test_descendants_are_found_through_proc() -> None:
    assert os.getpid() in descendants(os.getppid())
    assert os.getpid() not in descendants(os.getpid())
