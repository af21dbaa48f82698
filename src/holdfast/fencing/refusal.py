"""A refusal in words: what happened, and what to do now. The same words for every storage."""

from __future__ import annotations

from ..errors import StaleToken
from .rule import Mark, Why

__all__ = ["stale_row", "stale_token"]


def stale_token(resource: str, stored: Mark, presented: Mark, why: Why) -> StaleToken:
    error = StaleToken(_MESSAGES[why](resource, stored, presented))
    error.resource = resource
    error.token = presented.token
    error.newest = stored.token
    return error


def _older(resource: str, stored: Mark, presented: Mark) -> str:
    return (
        f"token {presented.token} is too old for {resource!r}: its guard has seen token {stored.token}."
        " The lock was granted to another holder while this one was still working."
        " Roll back, drop what was computed, and acquire the lock again to go on"
    )


def _other_grant(resource: str, stored: Mark, presented: Mark) -> str:
    return (
        f"token {presented.token} of {resource!r} belongs to another grant: its guard has accepted the same"
        f" number with nonce {stored.nonce!r}, not {presented.nonce!r}. An engine issues a number twice only"
        " after it lost its counter. Roll back and acquire the lock again to get a newer token"
    )


def _other_source(resource: str, stored: Mark, presented: Mark) -> str:
    return (
        f"{resource!r} is guarded by tokens of {stored.source!r}; token {presented.token} comes from"
        f" {presented.source!r}, and numbers of two sources do not compare. Roll back. If this process locks"
        " through the wrong engine, correct its URL; if the resource was moved to that engine on purpose,"
        " say so once with fencing.move"
    )


_MESSAGES = {Why.OLDER: _older, Why.OTHER_GRANT: _other_grant, Why.OTHER_SOURCE: _other_source}


def stale_row(row: str, newest: int, token: int) -> StaleToken:
    """The refusal of a row that carries its own token."""
    error = StaleToken(
        f"token {token} is too old for row {row}: it was written under token {newest}. The lock was granted"
        " to another holder while this one was still working. Roll back, drop what was computed, and"
        " acquire the lock again to go on"
    )
    error.resource = row
    error.token = token
    error.newest = newest
    return error
