"""Arguments checked before any I/O. Each refusal says what to write instead."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal

from ..errors import InvalidArgument
from ..model import Kind, Mode, Unset
from .lock_options import Duration, IfLost, LockOptions, OnDeadlock, with_defaults

__all__ = [
    "MAX_WAITERS",
    "MAX_WAITERS_MAX",
    "VALUE_RETENTION_SECONDS",
    "Spec",
    "check_decorated",
    "check_grace",
    "check_io_timeout",
    "check_limit",
    "check_max_waiters",
    "check_name",
    "check_prefix",
    "check_reason",
    "check_retention",
    "check_seconds",
    "check_timeout",
    "check_token",
    "check_ttl",
    "check_value",
    "chosen_timeout",
    "make_spec",
]

NAME_BYTES_MAX: Final = 512
VALUE_BYTES_MAX: Final = 64 * 1024
METADATA_BYTES_MAX: Final = 4096
MAX_WAITERS: Final = 2_000
"""How many waiters one name may have, unless the option ``max_waiters`` says otherwise. A thousand in one
process is usual; each adds some 300 bytes to the record of Redis or the embedded engine, at every step."""
MAX_WAITERS_MAX: Final = 1_000_000
TTL_SECONDS_MIN: Final = 0.01
TTL_SECONDS_MAX: Final = 366 * 86_400.0
LIMIT_MAX: Final = 1_000_000
VALUE_RETENTION_SECONDS: Final = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class Spec:
    """One lock as its user asked for it, checked."""

    name: str
    kind: Kind
    mode: Mode
    ttl: float
    timeout: float | None
    fair: bool
    renew: bool
    max_hold: float | None
    grace: float
    if_lost: IfLost
    metadata: Mapping[str, str] = field(default_factory=dict)
    limit: int = 0
    deadlock: OnDeadlock = "warn"


def make_spec(
    name: str,
    kind: Kind,
    mode: Mode,
    limit: int,
    options: LockOptions,
    allowed_if_lost: tuple[IfLost, ...],
) -> Spec:
    """A lock with all its options, refused or accepted as a whole.

    The first of ``allowed_if_lost`` is the default of ``if_lost``.
    """
    given = with_defaults(options, allowed_if_lost[0])
    check_name(name)
    ttl = check_ttl(given["ttl"])
    max_hold = given["max_hold"]
    if max_hold is not None:
        max_hold = _seconds(max_hold, "max_hold", "the longest time it may be held, or None")
        if max_hold < TTL_SECONDS_MIN:
            raise InvalidArgument(
                f"max_hold must be at least {TTL_SECONDS_MIN} seconds, or None; it is {max_hold!r}"
            )
        ttl = min(ttl, max_hold)
    _check_if_lost(given["if_lost"], allowed_if_lost)
    if given["fair"] not in (None, True, False):
        raise InvalidArgument(f"fair is None, True or False; it is {given['fair']!r}")
    if given["deadlock"] not in ("warn", "raise", "ignore"):
        raise InvalidArgument(f"deadlock is 'warn', 'raise' or 'ignore'; it is {given['deadlock']!r}")
    return Spec(
        name=name,
        kind=kind,
        mode=mode,
        ttl=ttl,
        timeout=check_timeout(given["timeout"]),
        fair=given["fair"] is not False,
        renew=bool(given["renew"]),
        max_hold=max_hold,
        grace=check_grace(given["grace"], ttl),
        if_lost=given["if_lost"],
        metadata=_metadata(given["metadata"]),
        limit=limit,
        deadlock=given["deadlock"],
    )


def _check_if_lost(if_lost: IfLost, allowed: tuple[IfLost, ...]) -> None:
    if if_lost not in allowed:
        detail = " or ".join(repr(each) for each in allowed)
        hint = "; cancelling the body needs asyncio: see holdfast.aio" if if_lost == "cancel" else ""
        raise InvalidArgument(f"if_lost must be {detail}; it is {if_lost!r}{hint}")


def check_name(name: str, what: str = "name") -> str:
    if not isinstance(name, str):
        instead = f"{what}.decode()" if isinstance(name, bytes | bytearray) else f"str({what})"
        raise InvalidArgument(f"a {what} is text; it is {type(name).__name__}: write {instead}")
    if not name:
        instead = (
            "name what is locked, for example 'invoices'" if what == "name" else "write for example 'shop'"
        )
        raise InvalidArgument(f"the {what} is empty: {instead}")
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"the {what} {name!r} cannot be written as UTF-8: leave out lone surrogates"
        ) from None
    if size > NAME_BYTES_MAX:
        raise InvalidArgument(
            f"the {what} {name[:40]!r}… has {size} bytes of UTF-8, at most {NAME_BYTES_MAX} are allowed: "
            "use a hash of it"
        )
    return name


def check_ttl(ttl: Duration) -> float:
    seconds = _seconds(ttl, "ttl", "for example 30")
    if seconds < TTL_SECONDS_MIN or seconds > TTL_SECONDS_MAX:
        raise InvalidArgument(
            f"ttl must be between {TTL_SECONDS_MIN} and {TTL_SECONDS_MAX:.0f} seconds; it is {ttl!r}: "
            "it bounds the delay of a take-over, not the work, because renewal is automatic"
        )
    return seconds


def check_grace(grace: Duration, ttl: float) -> float:
    seconds = _seconds(grace, "grace", "for example 5, or 0")
    if seconds < 0 or seconds > ttl / 2:
        raise InvalidArgument(
            f"grace must be between 0 and half of the ttl ({ttl / 2:g}); it is {grace!r}: "
            "it is the warning before the deadline, and renewal needs the rest"
        )
    return seconds


def check_timeout(timeout: Duration | None) -> float | None:
    """Seconds, or None for ever (−1 means for ever too, as in threading)."""
    if timeout is None:
        return None
    seconds = _seconds(timeout, "timeout", "seconds, 0 to try once, None or -1 to wait for ever")
    if seconds == -1:
        return None
    if seconds < 0:
        raise InvalidArgument(
            f"timeout must not be negative; it is {timeout!r}: use None or -1 to wait for ever"
        )
    return seconds


def chosen_timeout(blocking: bool, timeout: Duration | Unset | None, default: float | None) -> float | None:
    """The time limit that ``acquire(blocking, timeout)`` asks for, as in threading."""
    if not blocking:
        if not isinstance(timeout, Unset) and timeout not in (None, -1):
            raise InvalidArgument(
                "blocking=False tries once: leave out the timeout, or leave out blocking=False"
            )
        return 0.0
    return default if isinstance(timeout, Unset) else check_timeout(timeout)


def check_limit(limit: int, what: str = "limit") -> int:
    if not isinstance(limit, int) or isinstance(limit, bool):
        detail = " of permits" if what == "limit" else ""
        raise InvalidArgument(f"{what} is a whole number{detail}; it is {limit!r}")
    if limit < 1 or limit > LIMIT_MAX:
        raise InvalidArgument(f"{what} must be between 1 and {LIMIT_MAX}; it is {limit}")
    return limit


def check_value(data: bytes) -> bytes:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidArgument(f"a value is bytes; it is {type(data).__name__}: write text.encode()")
    data = bytes(data)
    if len(data) > VALUE_BYTES_MAX:
        raise InvalidArgument(
            f"a value has at most {VALUE_BYTES_MAX} bytes, this one {len(data)}: store a reference"
        )
    return data


def check_retention(retention: Duration, what: str = "retention") -> float:
    seconds = _seconds(retention, what, "how long the value stays, for example 86400")
    if seconds <= 0 or seconds > TTL_SECONDS_MAX:
        raise InvalidArgument(
            f"{what} must be more than 0 and at most {TTL_SECONDS_MAX:.0f} seconds; it is {retention!r}"
        )
    return seconds


def check_seconds(value: Duration, what: str, instead: str, least: float, most: float) -> float:
    """A length of time between two bounds."""
    seconds = _seconds(value, what, instead)
    if not least <= seconds <= most:
        raise InvalidArgument(
            f"{what} must be between {least:g} and {most:.0f} seconds; it is {value!r}: write {instead}"
        )
    return seconds


def check_io_timeout(io_timeout: Duration) -> float:
    seconds = _seconds(io_timeout, "io_timeout", "for example 5")
    if seconds <= 0:
        raise InvalidArgument(f"io_timeout must be more than 0 seconds; it is {io_timeout!r}")
    return seconds


def check_prefix(prefix: str) -> str:
    if not isinstance(prefix, str):
        raise InvalidArgument(f"a prefix is text; it is {type(prefix).__name__}")
    return check_name(prefix, "prefix") if prefix else prefix


def check_decorated(function: Callable[..., Any], wanted: Literal["plain", "async"], instead: str) -> None:
    """A decorated function must really run inside the lock, not merely be started there."""
    if not callable(function):
        raise InvalidArgument(
            f"a lock decorates functions; this is {function!r}: write @client.lock('name') above one"
        )
    detail = getattr(function, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidArgument(
            f"{detail} is a generator: its body would run outside the lock; use 'with' inside it"
        )
    if inspect.iscoroutinefunction(function) != (wanted == "async"):
        article = "an async" if wanted == "async" else "a plain"
        raise InvalidArgument(f"{detail} is not {article} function: use a lock of {instead}")


def check_reason(reason: str) -> str:
    if not isinstance(reason, str) or not reason.strip():
        raise InvalidArgument("a reason is needed: the holder and the log will show it")
    if len(reason.encode("utf-8", "replace")) > METADATA_BYTES_MAX:
        raise InvalidArgument(f"the reason is longer than {METADATA_BYTES_MAX} bytes: shorten it")
    return reason.encode("utf-8", "replace").decode("utf-8")


def check_token(token: int | None) -> int | None:
    if token is None:
        return None
    if not isinstance(token, int) or isinstance(token, bool) or token < 0:
        raise InvalidArgument(f"a token is a whole number, as in lease.token; it is {token!r}")
    return token


def _seconds(value: Duration, what: str, instead: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        instead = _number_in(value) or instead
        raise InvalidArgument(
            f"{what} is a number of seconds or a timedelta; it is {value!r}: write {instead}"
        )
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if math.isnan(seconds) or math.isinf(seconds):
        raise InvalidArgument(f"{what} must be a finite number of seconds; it is {value!r}: write {instead}")
    return seconds


def _number_in(value: object) -> str:
    """What to write instead of a text."""
    if not isinstance(value, str):
        return ""
    try:
        number = float(value)
    except ValueError:
        return "a number or, for example, timedelta(minutes=5)"
    return f"{number:g}, without quotes" if math.isfinite(number) else ""


def _metadata(metadata: Mapping[str, str] | None) -> Mapping[str, str]:
    if not metadata:
        return {}
    if not isinstance(metadata, Mapping):
        raise InvalidArgument(f"metadata is a mapping of text to text; it is {type(metadata).__name__}")
    copy = dict(metadata)
    for key, value in copy.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidArgument(
                f"metadata is a mapping of text to text; {key!r}: {value!r} is not: write str(…)"
            )
    try:
        size = sum(len(key.encode()) + len(value.encode()) for key, value in copy.items())
    except UnicodeEncodeError:
        raise InvalidArgument("metadata cannot be written as UTF-8: leave out lone surrogates") from None
    if size > METADATA_BYTES_MAX:
        raise InvalidArgument(
            f"metadata has at most {METADATA_BYTES_MAX} bytes, this has {size}: store a reference"
        )
    return copy


def check_max_waiters(given: object) -> int:
    """The option ``max_waiters``: a whole number, or its text in a URL."""
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) <= 10:
        given = int(given)
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= MAX_WAITERS_MAX:
        raise InvalidArgument(
            f"max_waiters, the waiters of one name, is a whole number from 1 to {MAX_WAITERS_MAX}, "
            f"not {given!r}"
        )
    return given
