"""Arguments checked before any I/O. Each refusal says what to write instead."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from ..core.arguments import check_name, check_timeout
from ..errors import InvalidArgument

__all__ = [
    "IO_TIMEOUT_SECONDS",
    "check_batch",
    "check_events",
    "check_expected",
    "check_from",
    "check_handler",
    "check_mapping",
    "check_position",
    "check_projection",
    "check_stream",
    "check_timeout",
    "check_version",
]

IO_TIMEOUT_SECONDS: Final = 10.0
_INTEGER_MAX: Final = 2**63 - 1
BATCH_MAX: Final = 10_000


def check_stream(stream: str) -> str:
    return _without_nul(check_name(stream, "stream"), "stream")


def check_projection(name: str) -> str:
    return _without_nul(check_name(name, "projection"), "projection")


def _without_nul(name: str, what: str) -> str:
    if "\0" in name:
        raise InvalidArgument(f"the {what} {name!r} contains a NUL character: write a name without one")
    return name


def check_events(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each as a JSON object."""
    if isinstance(events, Mapping):
        raise InvalidArgument("events is a list of mappings: write [event] for a single one")
    if isinstance(events, str | bytes) or not isinstance(events, Sequence):
        raise InvalidArgument(
            f"events is a list of mappings, for example [{{'type': 'opened'}}]; it is {_kind(events)}"
        )
    if not events:
        raise InvalidArgument("events is empty: append at least one")
    return [check_mapping(event, "an event") for event in events]


def check_mapping(value: Mapping[str, Any], what: str) -> str:
    """A JSON object as text, in ASCII. What would come back as something else is refused."""
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{what} is a mapping, for example {{'type': 'opened'}}; it is {_kind(value)}")
    _check_keys(value, what)
    try:
        text = _encoder.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"{what} is no JSON ({error}): use text, numbers, true, false, None, lists and mappings of these"
        ) from None
    if "\\u0000" in text or "\\ud" in text:
        _check_texts(value, what)
    return text


def _check_texts(value: object, what: str) -> None:
    """PostgreSQL's functions for JSON fail on these."""
    if isinstance(value, str):
        if "\0" in value or any("\ud800" <= each <= "\udfff" for each in value):
            raise InvalidArgument(
                f"{what} has a text with a NUL character or a lone surrogate, which a database cannot read as"
                f" text: leave it out of {value[:40]!r}"
            )
    elif isinstance(value, Mapping):
        for key, each in value.items():
            _check_texts(key, what)
            _check_texts(each, what)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_texts(each, what)


def _check_keys(value: object, what: str) -> None:
    if isinstance(value, str | int | float):  # the usual ones, quickly
        return
    if isinstance(value, Mapping):
        for key, each in value.items():
            if not isinstance(key, str):
                raise InvalidArgument(
                    f"{what} has the key {key!r}, and JSON has text keys only: {str(key)!r}"
                )
            _check_keys(each, what)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_keys(each, what)


def _mapping(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is in it")


_encoder: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_mapping)


def check_expected(version: int | None) -> int | None:
    if version is None:
        return None
    return _whole_number(version, "expected_version", "the version that was read, 0 for a new stream")


def check_from(number: int) -> int:
    return _whole_number(number, "from_", "how many events to leave out, 0 for none")


def check_version(number: int) -> int:
    return _whole_number(number, "version", "the version of the stream that the snapshot stands for")


def check_position(number: int) -> int:
    return _whole_number(number, "position", "that of the last event to leave out, 0 for none")


def check_batch(batch: int) -> int:
    if not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= BATCH_MAX:
        raise InvalidArgument(f"batch is a number of events from 1 to {BATCH_MAX}; it is {batch!r}")
    return batch


def check_handler(handler: object, wanted: Literal["plain", "async"]) -> None:
    if not callable(handler):
        raise InvalidArgument(
            f"the handler is a function of a connection and an event; this is {_kind(handler)}"
        )
    if inspect.iscoroutinefunction(handler) != (wanted == "async"):
        instead = "holdfast.events.aio" if wanted == "plain" else "holdfast.events"
        raise InvalidArgument(f"this store takes {wanted} functions as handlers: use the store of {instead}")


def _whole_number(number: int, what: str, instead: str) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _INTEGER_MAX:
        raise InvalidArgument(f"{what} is a whole number, at least 0; it is {number!r}: write {instead}")
    return number


def _kind(value: object) -> str:
    return f"of the type {type(value).__name__}"
