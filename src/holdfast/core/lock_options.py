"""The options that every kind of lock takes, written once: their types, their defaults and what they mean."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, Literal, TypedDict, TypeVar

__all__ = [
    "DEFAULTS",
    "NAMES_HELP",
    "Duration",
    "IfLost",
    "LockOptions",
    "OnDeadlock",
    "documents_lock_options",
    "with_defaults",
]

IfLost = Literal["raise", "cancel", "note"]
OnDeadlock = Literal["warn", "raise", "ignore"]

Duration = float | timedelta
"""Seconds, or a timedelta."""

F = TypeVar("F", bound=Callable[..., Any])


class LockOptions(TypedDict, total=False):
    """The keywords of ``lock``, ``rlock``, ``rwlock`` and ``semaphore``; ``OPTIONS_HELP`` explains each."""

    ttl: Duration
    timeout: Duration | None
    fair: bool | None
    renew: bool
    max_hold: Duration | None
    grace: Duration
    if_lost: IfLost
    metadata: Mapping[str, str] | None
    deadlock: OnDeadlock


DEFAULTS: Final[LockOptions] = {
    "ttl": 30.0,
    "timeout": None,
    "fair": None,
    "renew": True,
    "max_hold": None,
    "grace": 0.0,
    "metadata": None,
    "deadlock": "warn",
}
"""Except that of ``if_lost``, which differs between threads and asyncio."""

OPTIONS_OF_OTHER_LIBRARIES: Final[Mapping[str, str]] = {
    "expire": "ttl",
    "expiry": "ttl",
    "lease": "ttl",
    "lease_time": "ttl",
    "blocking": "timeout",
    "blocking_timeout": "timeout",
    "wait": "timeout",
    "auto_renew": "renew",
    "auto_renewal": "renew",
}
"""What other libraries call an option → its name here."""

NAME_HELP: Final = """\
name: what is locked: any text of up to 512 bytes of UTF-8. The same name in the same namespace is
    the same lock, in every process."""

NAMES_HELP: Final = """\
names: what is locked: names, or locks of this client (plain ones, read or write sides, semaphores),
    which keep their own options, except ``timeout`` and ``if_lost``. A name that is given twice counts
    once, as the first one says."""

OPTIONS_HELP: Final = """\
ttl: seconds (or a timedelta) after which the engine may grant the lock to another holder if this
    process stops renewing it. It bounds the delay of a take-over, not the work: renewal is automatic.
timeout: how long to wait for the lock: seconds or a timedelta; 0 tries once, None or -1 waits for ever.
fair: None: waiters are served in order of arrival where the engine can; True: an engine that cannot is
    refused; False: a new request may overtake those that wait.
renew: False: the lease is not renewed and ends with its ttl.
max_hold: the longest time the lock may be held, however often it is renewed; None: no limit.
grace: how long before the deadline the holder is notified of the loss, at most half of the ttl.
if_lost: what happens when the lock is lost inside {block}:
{choices}.
metadata: a mapping of text to text, up to 4 KiB, that ``inspect`` shows of the holder.
deadlock: what happens when a wait of more than a second is part of a deadlock: "warn" writes the cycle to
    the log, "raise" raises Deadlock in one waiter of the cycle, "ignore" does not look for one."""

CHOICES_HELP: Final[Mapping[IfLost, str]] = {
    "raise": """\
    "raise" raises LockLost at its end, "note" only writes the loss to the log""",
    "cancel": """\
    "cancel" cancels the body at once and raises LockLost, "raise" raises LockLost at its end,
    "note" only writes the loss to the log""",
}


def with_defaults(options: LockOptions, if_lost: IfLost) -> LockOptions:
    """Every option: as given, else its default."""
    for name in options:
        if name not in LockOptions.__annotations__:
            raise _unknown_option_error(name)
    return {**DEFAULTS, "if_lost": if_lost, **options}


def _unknown_option_error(name: str) -> TypeError:
    """A TypeError, as for every keyword that a function does not have."""
    import difflib  # only here: most programs never need it, and importing it takes time

    known = list(LockOptions.__annotations__)
    near = difflib.get_close_matches(name, known, n=1)
    meant = OPTIONS_OF_OTHER_LIBRARIES.get(name) or (near[0] if near else None)
    guess = f"did you mean {meant!r}? The" if meant else "the"
    return TypeError(f"locks have no option {name!r}: {guess} options are {', '.join(known)}")


def documents_lock_options(if_lost: IfLost, block: str, name_help: str = NAME_HELP) -> Callable[[F], F]:
    """Show every option with its default in the signature and the docstring of a method, for ``help()``.

    ``if_lost``: its default; ``block``: how the statement is written that holds the lock;
    ``name_help``: what is locked.
    """
    options_help = OPTIONS_HELP.format(block=f"``{block}``", choices=CHOICES_HELP[if_lost])
    defaults: dict[str, Any] = {**DEFAULTS, "if_lost": if_lost}
    options = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind.__forward_arg__
        )
        for name, kind in LockOptions.__annotations__.items()
    ]

    def document(method: F) -> F:
        signature = inspect.signature(method)
        named = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        method.__dict__["__signature__"] = signature.replace(parameters=[*named, *options])
        summary, _, rest = inspect.cleandoc(method.__doc__ or "").partition("\n\n")
        method.__doc__ = f"{summary}\n\n" + "\n".join(filter(None, (name_help, rest, options_help)))
        return method

    return document
