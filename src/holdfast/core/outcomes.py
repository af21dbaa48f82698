"""What is stored of an operation that runs once: its payload's fingerprint, its state, its result or error.

The format has a version, so that a later one can still read what this one has written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ..errors import Conflict, InvalidArgument, ReplayedError

__all__ = [
    "Outcome",
    "check_errors",
    "check_fingerprint",
    "check_result",
    "decode",
    "encode",
    "error_outcome",
    "outcome_of",
    "result_outcome",
    "started",
]

FORMAT: Final = 1
STARTED, JSON, BYTES, ERROR = b"S", b"J", b"B", b"E"
STATES: Final = (STARTED, JSON, BYTES, ERROR)
RESULT_BYTES_MAX: Final = 64 * 1024 - 64
"""A value of an engine has 64 KiB, and the fingerprint with the state is in it, too."""
ERROR_TEXT_MAX: Final = 4000


class Outcome(NamedTuple):
    """What is known of an operation."""

    state: bytes
    fingerprint: bytes = b""
    """Empty: the payload is not compared."""
    data: bytes = b""

    @property
    def is_finished(self) -> bool:
        return self.state != STARTED


def started(fingerprint: bytes) -> Outcome:
    """An attempt has begun, and nothing is known of its end."""
    return Outcome(STARTED, fingerprint)


def encode(outcome: Outcome) -> bytes:
    print_size = len(outcome.fingerprint)
    return bytes((FORMAT, outcome.state[0], print_size)) + outcome.fingerprint + outcome.data


def decode(stored: bytes) -> Outcome:
    """Raises ValueError for bytes that were not written by ``encode``."""
    if len(stored) < 3 or stored[0] != FORMAT or stored[1:2] not in STATES or len(stored) < 3 + stored[2]:
        raise ValueError("not the outcome of an operation in a format that is known here")
    end = 3 + stored[2]
    return Outcome(stored[1:2], stored[3:end], stored[end:])


def check_fingerprint(key: str, known: bytes, given: bytes) -> None:
    """Refuse another payload under the same key. Empty: it is not compared."""
    if given and known and given != known:
        error = Conflict(
            f"the key {key} was used for another payload before: a new operation needs a new key, and a "
            "retry sends the same payload again"
        )
        error.name = key
        raise error


# --- results ------------------------------------------------------------------------------------


def result_outcome(fingerprint: bytes, value: object) -> Outcome:
    """Bytes as they are, everything else as JSON."""
    state, data = check_result(value)
    return Outcome(state, fingerprint, data)


def check_result(value: object) -> tuple[bytes, bytes]:
    """The state and the data of a result that can be stored."""
    if isinstance(value, bytes | bytearray | memoryview):
        state, data = BYTES, bytes(value)
    else:
        state, data = JSON, _json(value)
    if len(data) > RESULT_BYTES_MAX:
        raise InvalidArgument(
            f"a stored result has at most {RESULT_BYTES_MAX} bytes, this one {len(data)}: store the result "
            "elsewhere, and return a reference to it"
        )
    return state, data


def _json(value: object) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"the result cannot be stored: {type(value).__name__} is neither bytes nor JSON ({error}): "
            "return a mapping, a list, text, a number, None or bytes"
        ) from None


def outcome_of(outcome: Outcome, errors: tuple[type[Exception], ...]) -> Any:
    """The result, or the error raised again."""
    if outcome.state == BYTES:
        return outcome.data
    if outcome.state == JSON:
        return json.loads(outcome.data)
    raise _error_of(json.loads(outcome.data), errors)


# --- errors -------------------------------------------------------------------------------------


def check_errors(on_error: str, store_errors: object) -> tuple[type[Exception], ...]:
    """The classes of the errors that are stored."""
    if on_error not in ("rerun", "replay"):
        raise InvalidArgument(
            f"on_error is 'rerun' (an error is not stored: the next call tries again) or 'replay'; "
            f"it is {on_error!r}"
        )
    classes = store_errors if isinstance(store_errors, tuple) else (store_errors,)
    for each in classes:
        if not isinstance(each, type) or not issubclass(each, Exception):
            raise InvalidArgument(
                "store_errors is a tuple of classes of exceptions, for example (CardDeclined,); "
                f"it has {each!r}"
            )
    return classes or ((Exception,) if on_error == "replay" else ())


def error_outcome(fingerprint: bytes, error: Exception) -> Outcome:
    text = str(error).encode("utf-8", "replace").decode()[:ERROR_TEXT_MAX]
    stored = {"type": _name_of(type(error)), "text": text}
    try:
        data = _json({**stored, "args": error.args})
    except InvalidArgument:
        data = _json(stored)
    if len(data) > RESULT_BYTES_MAX:
        data = _json(stored)
    return Outcome(ERROR, fingerprint, data)


def _error_of(stored: dict[str, Any], errors: tuple[type[Exception], ...]) -> Exception:
    """An error of the same class, if the program has it; nothing is imported for it."""
    name, text = stored["type"], stored["text"]
    for found in _subclasses(errors):
        if _name_of(found) == name and isinstance(stored.get("args"), list):
            try:
                return found(*stored["args"])
            except Exception:  # noqa: BLE001 - a class of the user's that is made in another way
                break
    replayed = ReplayedError(f"the first attempt failed, and its error is kept: {name}: {text}")
    replayed.error_type, replayed.error_text = name, text
    return replayed


def _subclasses(classes: tuple[type[Exception], ...]) -> Iterator[type[Exception]]:
    waiting, seen = list(classes), set[type[Exception]]()
    while waiting:
        found = waiting.pop()
        if found not in seen:
            seen.add(found)
            yield found
            waiting += type.__subclasses__(found)


def _name_of(error_class: type[Exception]) -> str:
    return f"{error_class.__module__}.{error_class.__qualname__}"
