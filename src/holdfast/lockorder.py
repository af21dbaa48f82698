"""A checker of lock order, for development and tests: it finds deadlocks that did not happen.

    from holdfast import lockorder

    with lockorder.watch():
        run_the_program()  # warns if two locks are taken in opposite orders, though nothing hung

Two threads that take two locks in opposite orders wait for each other only if they come at the same moment.
The checker remembers every order in which locks were taken, and where, for as long as it watches. It warns as
soon as the orders contradict each other, also over several locks: a before b, b before c, c before a.

It sees the locks of this process alone, of all its clients, of threads and of asyncio. Outside of ``watch()``
nothing is watched, and nothing is slower. ``pytest --holdfast-lockorder`` watches every test.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import traceback
import warnings
import weakref
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from .facades.base import BaseLease
from .protocols.acquisitions import OBSERVERS

__all__ = ["LockOrderWarning", "watch"]

FRAMES_MAX: Final = 12
"""How many frames of a stack are kept and shown, the innermost."""

PACKAGE: Final = str(Path(__file__).parent)

Key = tuple[str, str, str]
"""The engine's URL, the namespace and the name: what makes two locks the same."""


class LockOrderWarning(UserWarning):
    """Two locks were taken in opposite orders.

    ``names``: the lock that was held, the one that was taken now, and so on back to the first one.
    ``stacks``: where the orders before were seen, then where this one was.
    """

    names: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()


class _Held(NamedTuple):
    key: Key
    lease: weakref.ref[BaseLease]


class _Checker:
    """The orders that were seen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders: dict[Key, dict[Key, str]] = {}
        """A lock → those that were taken while it was held, each with the stack."""
        self._held: weakref.WeakKeyDictionary[Any, list[_Held]] = weakref.WeakKeyDictionary()
        """What each thread or task holds, in the order of taking."""

    def acquired(self, leases: Collection[BaseLease], caller: weakref.ref[Any], waits: bool) -> None:
        who = caller()
        if who is None:
            return
        found: list[LockOrderWarning] = []
        with self._lock:
            held = [each for each in self._held.get(who, ()) if _is_held(each)]
            before = [each.key for each in held]
            for lease in leases:
                key = _key_of(lease)
                if waits:  # a caller that tries once waits for nobody
                    found += self._note([each for each in before if each != key], key)
                held.append(_Held(key, weakref.ref(lease)))
            self._held[who] = held
        for warning in found:
            warnings.warn(warning, stacklevel=_level_of_caller())

    def _note(self, before: list[Key], key: Key) -> list[LockOrderWarning]:
        """Remember these orders. A new one that contradicts those before is reported, once."""
        stack = ""
        found: list[LockOrderWarning] = []
        for each in before:
            after = self._orders.setdefault(each, {})
            if key in after:
                continue
            stack = stack or _stack()
            path = self._path(key, each)
            after[key] = stack
            if path and not found:
                found.append(_warning([each, *path], [*self._stacks(path), stack]))
        return found

    def _path(self, start: Key, end: Key) -> list[Key]:
        """The shortest way from one lock to another over the orders that were seen; empty: there is none."""
        came_from: dict[Key, Key] = {}
        layer = [start]
        while layer and end not in came_from:
            following = []
            for each in layer:
                for after in self._orders.get(each, ()):
                    if after not in came_from and after != start:
                        came_from[after] = each
                        following.append(after)
            layer = following
        if end not in came_from:
            return []
        path = [end]
        while path[-1] != start:
            path.append(came_from[path[-1]])
        return path[::-1]

    def _stacks(self, path: list[Key]) -> list[str]:
        return [self._orders[first][second] for first, second in itertools.pairwise(path)]


@contextlib.contextmanager
def watch() -> Iterator[None]:
    """Warn with ``LockOrderWarning`` when locks are taken in orders that could end in a deadlock.

    With ``warnings.simplefilter("error", LockOrderWarning)`` it is raised where the lock would be taken, and
    the lock is not held.
    """
    observer = _Checker().acquired
    OBSERVERS.append(observer)
    try:
        yield
    finally:
        OBSERVERS.remove(observer)


def _key_of(lease: BaseLease) -> Key:
    client: Any = lease._client
    return client.url, client.namespace, lease.name


def _is_held(held: _Held) -> bool:
    lease = held.lease()
    while lease is not None and lease._successor is not None:
        lease = lease._successor
    return lease is not None and lease._state.ended is None and not lease.lost


def _warning(path: list[Key], stacks: list[str]) -> LockOrderWarning:
    """``path``: the lock that was held, the one that was taken now, and from there back to the first one."""
    names = [name for _, _, name in path]
    held, taken = names[:2]
    parts = [
        f"locks are taken in opposite orders: {taken!r} while {held!r} is held, and before that "
        + ", ".join(f"{b!r} while {a!r} was held" for a, b in itertools.pairwise(names[1:]))
        + ". At the same moment in two threads, tasks or processes this is a deadlock.\n"
    ]
    for (a, b), stack in zip(itertools.pairwise(names[1:]), stacks, strict=False):
        parts.append(f"{b!r} was taken while {a!r} was held:\n{stack}")
    parts.append(f"{taken!r} is taken while {held!r} is held:\n{stacks[-1]}")
    warning = LockOrderWarning("\n".join(parts))
    warning.names, warning.stacks = tuple(names), tuple(stacks)
    return warning


def _stack() -> str:
    frames = [each for each in traceback.extract_stack() if not each.filename.startswith(PACKAGE)]
    return "".join(traceback.format_list(frames[-FRAMES_MAX:]))


def _level_of_caller() -> int:
    """The stack level of the first frame outside of this package, for ``warnings.warn``."""
    frames = traceback.extract_stack()[:-1]
    inside = 0
    for frame in reversed(frames):
        if not frame.filename.startswith(PACKAGE):
            break
        inside += 1
    return inside + 1
