"""Cells: small values that change by compare-and-swap, on every engine that can store one.

A cell has no holder. A write names the version that it replaces, and the engine refuses it if the cell has
another version by then. So a paused writer delays no other writer, and no update is lost.

Where a reply is lost, the writer has to learn whether its write was applied. So a cell stores, beside the
user's bytes, the latest writes: of each a random mark, and the version that it replaced.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, NamedTuple

from ..core import arguments
from ..core.effects import Nonce, Now, OutcomeUnknown, Pause
from ..errors import Conflict, EngineUnavailable, InvalidArgument, Unsupported
from ..model import Guarantees
from ..protocols.client_state import ClientState
from ..protocols.records.retry import retry_until_deadline, unexpected_reply_error
from ..rules.requests import CellState, ReadCell, SwapCell
from . import names
from .jitter import random_fraction

__all__ = [
    "Cell",
    "Contents",
    "Write",
    "addition",
    "check_engine",
    "check_version",
    "checked",
    "decode",
    "encode",
    "is_applied",
    "number_of",
    "read",
    "set_if",
    "update",
    "version_of",
]

FORMAT: Final = 1
WRITES_KEPT: Final = 16
"""A writer whose reply was lost learns its outcome unless more writes than this came after it."""

MARK_BYTES: Final = 8
_HEADER: Final = struct.Struct(">BB")
_WRITE: Final = struct.Struct(f">{MARK_BYTES}sQ")

NUMBER_BITS_MAX: Final = 10_000
"""Of a counter. Python refuses to write numbers of much more as text."""

PAUSE_SECONDS_MIN: Final = 0.0002
PAUSE_SECONDS_MAX: Final = 0.05
"""Of the pauses between the tries of an update: each is random below a bound that doubles."""


class Write(NamedTuple):
    """One of the latest writes of a cell."""

    mark: bytes
    replaced: int
    """The version that it replaced."""


class Contents(NamedTuple):
    """A cell as this client last saw it."""

    version: int = 0
    data: bytes | None = None
    writes: tuple[Write, ...] = ()
    """The latest writes, the oldest first."""


NEVER_SET: Final = Contents()


class Cell:
    """What this client knows of one cell."""

    __slots__ = ("client_state", "name", "record", "seen")

    def __init__(self, client_state: ClientState, name: str, record: str | None = None) -> None:
        self.client_state = client_state
        self.name = name
        self.record = names.cell(name) if record is None else record
        self.seen: Contents | None = None
        """An update begins from this without a read. If it is outdated, the engine returns the cell."""


def check_engine(promised: Guarantees) -> None:
    """Refuse an engine that cannot carry cells, before any I/O."""
    if not promised.has_cells:
        raise Unsupported(
            f"{promised.engine} has no cells: its nodes agree on locks alone, and store no value. "
            "Use sqlite://, redis://, etcd://, zookeeper:// or postgresql://"
        )


# --- what is stored -----------------------------------------------------------------------------


def encode(data: bytes, writes: tuple[Write, ...]) -> bytes:
    kept = writes[-WRITES_KEPT:]
    return b"".join([_HEADER.pack(FORMAT, len(kept)), *[_WRITE.pack(*write) for write in kept], data])


def decode(version: int, stored: bytes | None) -> Contents:
    """Raises ValueError for bytes that no cell has written."""
    if stored is None:
        return NEVER_SET
    if len(stored) < _HEADER.size or stored[0] != FORMAT:
        raise ValueError("not the contents of a cell")
    end = _HEADER.size + stored[1] * _WRITE.size
    if len(stored) < end:
        raise ValueError("the contents of a cell are cut short")
    writes = tuple([Write(*each) for each in _WRITE.iter_unpack(stored[_HEADER.size : end])])
    return Contents(version, stored[end:], writes)


def is_applied(now: Contents, mine: Write) -> bool | None:
    """Whether a write was applied, by a cell that was read after it; None: it is too long ago to tell.

    The engine accepts one write for each version. So whichever write replaced that version decides: another's
    means that this one was refused, and always will be.
    """
    for write in now.writes:
        if write.replaced == mine.replaced:
            return write.mark == mine.mark
    return False if now.version == mine.replaced else None


def version_of(now: Contents, mine: Write) -> int:
    """The version that this write, which was applied, gave the cell."""
    following = now.writes[now.writes.index(mine) + 1 :]
    return following[0].replaced if following else now.version


# --- arguments ----------------------------------------------------------------------------------


def check_version(version: int) -> int:
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise InvalidArgument(
            f"a version is a whole number as get() returned it, or 0 for a cell that was never set; "
            f"it is {version!r}"
        )
    return version


def checked(change: Callable[[bytes | None], bytes]) -> Callable[[bytes | None], bytes]:
    """The function of an update, whose results are checked before they are sent."""
    if not callable(change):
        raise InvalidArgument(
            f"update() takes a function of the value, for example lambda value: b'new'; "
            f"it is {type(change).__name__}"
        )
    return lambda value: arguments.check_value(change(value))


def number_of(name: str, value: bytes | None) -> int:
    """The number that a counter stores."""
    try:
        return 0 if value is None else int(value)
    except ValueError:
        raise InvalidArgument(
            f"the cell {name!r} holds no whole number: it is used with cell(), too; give the counter a name "
            "of its own"
        ) from None


def addition(name: str, amount: int) -> Callable[[bytes | None], bytes]:
    if isinstance(amount, bool) or not isinstance(amount, int):
        raise InvalidArgument(f"a counter adds whole numbers; this is {amount!r}")

    def add(value: bytes | None) -> bytes:
        total = number_of(name, value) + amount
        if total.bit_length() > NUMBER_BITS_MAX:
            raise InvalidArgument(
                f"the counter {name!r} holds numbers of at most {NUMBER_BITS_MAX} bits, and the sum has "
                f"{total.bit_length()}: nothing was added"
            )
        return b"%d" % total

    return add


# --- requests -----------------------------------------------------------------------------------


async def read(cell: Cell) -> Contents:
    reply, _ = await retry_until_deadline(cell.client_state, cell.record, ReadCell())
    if not isinstance(reply, CellState):
        raise unexpected_reply_error(cell.name, reply)
    return _seen(cell, reply)


async def set_if(cell: Cell, version: int, data: bytes) -> int:
    """The new version, or Conflict."""
    before = cell.seen
    if version == 0:
        before = NEVER_SET
    elif before is None or before.version != version:
        before = await read(cell)  # for the latest writes, which the next write has to keep
    if before.version == version:
        after, is_swapped = await _swap(cell, before, data)
        if is_swapped:
            return after.version
        before = after
    error = Conflict(
        f"the cell {cell.name!r} has version {before.version}, not {version}: another writer changed it; "
        "read it again, and decide again"
    )
    error.name, error.version = cell.name, before.version
    raise error


async def update(cell: Cell, change: Callable[[bytes | None], bytes], timeout: float | None = None) -> bytes:
    """Replace the value by ``change(value)``, again for each value that another writer stored meanwhile."""
    before = cell.seen
    is_outdated = before is not None  # perhaps
    if before is None:
        before = await read(cell)
    ends_at = None if timeout is None else await Now() + timeout
    tries = 0
    while True:
        try:
            data = change(before.data)
        except Exception:
            # A write is compared by the engine, and a refusal is not: it has to see what is stored now.
            newest = await read(cell) if is_outdated else before
            is_outdated = False
            if newest.version == before.version:
                raise
            before = newest
            continue
        before, is_swapped = await _swap(cell, before, data)
        is_outdated = False
        if is_swapped:
            return data
        tries += 1
        pause = await random_fraction() * min(PAUSE_SECONDS_MIN * 2.0 ** min(tries, 20), PAUSE_SECONDS_MAX)
        if ends_at is not None and await Now() + pause > ends_at:
            error = Conflict(
                f"the cell {cell.name!r} was changed by other writers before each of {tries} tries in "
                f"{timeout:g} s: try again later, or give the update more time"
            )
            error.name, error.version = cell.name, before.version
            raise error
        await Pause(pause)


async def _swap(cell: Cell, before: Contents, data: bytes) -> tuple[Contents, bool]:
    """The cell after the request, and whether this write was applied."""
    mine = Write(blake2b((await Nonce()).encode(), digest_size=MARK_BYTES).digest(), before.version)
    writes = (*before.writes, mine)[-WRITES_KEPT:]
    cell.seen = None
    try:
        reply, may_be_applied = await retry_until_deadline(
            cell.client_state, cell.record, SwapCell(before.version, encode(data, writes))
        )
    except EngineUnavailable as error:
        if isinstance(error.__cause__, OutcomeUnknown):
            raise _unknown_error(cell) from error.__cause__
        raise
    if not isinstance(reply, CellState):
        raise unexpected_reply_error(cell.name, reply)
    if reply.swapped:
        cell.seen = Contents(reply.version, data, writes)
        return cell.seen, True
    now = _seen(cell, reply)
    if not may_be_applied:
        return now, False
    applied = is_applied(now, mine)
    if applied is None:
        raise _unknown_error(cell)
    return (Contents(version_of(now, mine), data, writes), True) if applied else (now, False)


def _seen(cell: Cell, reply: CellState) -> Contents:
    try:
        cell.seen = decode(reply.version, reply.data)
    except ValueError as error:
        raise EngineUnavailable(
            f"what is stored as the cell {cell.name!r} was not written by a cell ({error}): "
            "is it another version of Holdfast, or another program?"
        ) from error
    return cell.seen


def _unknown_error(cell: Cell) -> EngineUnavailable:
    return EngineUnavailable(
        f"the engine's answer was lost, and it is not known whether the cell {cell.name!r} was changed: "
        "read it before you change it again"
    )
