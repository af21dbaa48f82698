"""The guard for a file: its newest grant in a fence file beside it, both replaced under one flock.

For a file ``data`` there are, in the same folder:

    .data.lock       the flock; empty, never replaced, so that all writers lock the same file
    .data.fence      the newest mark, as one line of text
    .data.new        the data that is being written, and
    .data.fence.new  the mark that is being written; the next writer removes what a killed one left

The order of a write is what makes it safe at a kill or a power cut after any step: new data is stored under
another name, then the fence is replaced, then the data. Between the two the fence is ahead of the data, which
refuses older holders too early by one step, and never lets one in too late.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from ..errors import InvalidArgument, LockTimeout
from ..model import Fence
from .arguments import Presentable, checked_source
from .mark_text import mark_from_text, mark_text
from .refusal import stale_token
from .rule import Mark, Refuse, after, decide, moved
from .writers import advancing_mark, writing_mark

__all__ = ["FencedFile"]

CHUNK_BYTES: Final = 1 << 20
MAX_FENCE_BYTES: Final = 1 << 20
MAX_NAME_BYTES: Final = 255
PRIVATE_MODE: Final = 0o600
FIRST_PAUSE_SECONDS: Final = 0.001
LONGEST_PAUSE_SECONDS: Final = 0.05

Steps = Iterator[str]
"""Effects one after the other; each is named once it has happened, so that a test can kill in between."""


class FencedFile:
    """A file that only the newest holder of a lock can replace.

        file = FencedFile("/var/lib/shop/prices.json")
        with locks.lock("prices") as lease:
            file.advance(lease)                  # older holders are out from here on
            prices = json.loads(file.read())
            file.write(json.dumps(prices | {"tea": 4}).encode(), lease)

    ``write`` replaces the whole content; readers see the old or the new one, never a mix. All writers must
    use this guard: a plain ``open(path, "w")`` does not ask it. A writer that is stopped in the middle keeps
    the file's flock: others wait for ``timeout`` seconds, then get ``LockTimeout``, and write nothing.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 10.0) -> None:
        if not isinstance(path, str | os.PathLike):
            raise InvalidArgument(f"path is {type(path).__name__}: write the file's path as text or a Path")
        text = os.fspath(path)
        if not isinstance(text, str) or not text or "\0" in text:
            raise InvalidArgument(f"path {text!r} must be text, not empty and without NUL characters")
        if text.endswith(os.sep) or os.path.basename(text) in (".", ".."):
            raise InvalidArgument(f"{text!r} names a folder: name the file to guard")
        if not isinstance(timeout, int | float) or not timeout >= 0:
            raise InvalidArgument(f"timeout {timeout!r} must be a number of seconds, 0 or more")
        # Absolute, but with symbolic links as they are: a later chdir changes nothing.
        self._path = os.path.abspath(text)
        self._timeout = timeout
        self._names = _Names.of(os.path.basename(self._path))

    @property
    def path(self) -> str:
        return self._path

    def read(self) -> bytes:
        """The content. ``FileNotFoundError`` if nothing has been written yet."""
        with self._folder() as folder:
            _check_file(folder, self._names.data, self._path)
            found = _read(folder, self._names.data, None)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path)
        return found

    def write(self, data: bytes | bytearray | memoryview, lease_or_token: Presentable) -> None:
        """Replace the content, or raise ``StaleToken`` if a newer holder has been here.

        When it returns, the new content and the fence are on the disk. An error before that leaves the old
        content or the new one; writing again with the same lease is always allowed.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidArgument(f"data is {type(data).__name__}, not bytes: encode it first")
        mark = writing_mark(lease_or_token)
        with memoryview(data) as view, view.cast("B") as octets, self._locked() as folder:
            _exhaust(self._write_steps(folder, octets, mark))

    def advance(self, lease_or_token: Presentable) -> None:
        """Tell the guard of a new grant before the first ``read``: older holders are out from here on.

        The same rule and the same ``StaleToken`` as ``write``; the content stays as it is.
        """
        mark = advancing_mark(lease_or_token)
        with self._locked() as folder:
            _exhaust(self._advance_steps(folder, mark))

    def newest(self) -> Fence | None:
        """The newest grant the guard has seen, None if none. For people and tests: reading guards nothing."""
        with self._folder() as folder:
            mark = self._load(folder)
        return None if mark is None else mark.fence

    def move(self, source: str) -> None:
        """Hand the file to another source of tokens, deliberately: ``source`` is ``lease.fence.source``.

        The numbers of the old source mean nothing to the new one, so the guard starts again at zero.
        """
        source = checked_source(source)
        with self._locked() as folder:
            _exhaust(self._store_fence(folder, moved(self._load(folder), source)))

    # --- the steps, in the order that makes them safe

    def _write_steps(self, folder: int, data: memoryview, mark: Mark) -> Steps:
        newest = self._decide(folder, mark)
        yield "checked"
        yield from self._store(folder, self._names.new_data, data)
        # The fence first: a reader never sees data of a holder that the fence does not know.
        yield from self._store_fence(folder, newest)
        os.replace(self._names.new_data, self._names.data, src_dir_fd=folder, dst_dir_fd=folder)
        yield "data replaced"
        os.fsync(folder)
        yield "data stored"

    def _advance_steps(self, folder: int, mark: Mark) -> Steps:
        newest = self._decide(folder, mark)
        yield "checked"
        yield from self._store_fence(folder, newest)

    def _store_fence(self, folder: int, mark: Mark) -> Steps:
        if mark != self._load(folder):
            yield from self._store(folder, self._names.new_fence, memoryview(f"{mark_text(mark)}\n".encode()))
            os.replace(self._names.new_fence, self._names.fence, src_dir_fd=folder, dst_dir_fd=folder)
            yield "fence replaced"
        # Also where it was there already: the writer that put it there may have been killed before this step.
        os.fsync(folder)
        yield "fence stored"

    def _store(self, folder: int, name: str, content: memoryview) -> Steps:
        """Write a new file as private as the data is, and have it on the disk."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, PRIVATE_MODE, dir_fd=folder)
        try:
            yield f"{name} created"
            is_companion = name == self._names.new_fence
            _take_over(descriptor, _status(folder, self._names.data), is_companion=is_companion)
            for start in range(0, len(content), CHUNK_BYTES):
                _write_all(descriptor, content[start : start + CHUNK_BYTES])
                yield f"{name} written up to {start + CHUNK_BYTES}"
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        yield f"{name} stored"

    def _decide(self, folder: int, mark: Mark) -> Mark:
        """What to store, or ``StaleToken``."""
        _check_file(folder, self._names.data, self._path)
        stored = self._load(folder)
        decision = decide(stored, mark)
        if stored is not None and isinstance(decision, Refuse):
            raise stale_token(self._path, stored, mark, decision.why)
        return after(stored, decision) or mark

    def _load(self, folder: int) -> Mark | None:
        _check_file(folder, self._names.fence, self._beside(self._names.fence))
        text = _read(folder, self._names.fence, MAX_FENCE_BYTES)
        # An invalid mark is an error, and no holder may write: a guard does not guess.
        return None if text is None else mark_from_text(text.strip(), self._beside(self._names.fence))

    # --- the lock around them

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The folder, open, while no other writer is at work in it on this file."""
        with self._folder() as folder, self._explained():
            descriptor = self._lock(folder)
            try:
                yield folder
            except BaseException:
                for name in (self._names.new_data, self._names.new_fence):
                    with suppress(OSError):
                        os.unlink(name, dir_fd=folder)
                raise
            finally:
                # Explicitly: a child forked meanwhile has the descriptor too, and would keep the lock.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)

    def _lock(self, folder: int) -> int:
        deadline = time.monotonic() + self._timeout
        while True:
            descriptor = self._open_lock(folder)
            try:
                self._wait(descriptor, deadline)
                # It may have been removed while we waited, and others then lock another file of that name.
                named = _status(folder, self._names.lock)
                if named is not None and os.path.samestat(named, os.fstat(descriptor)):
                    _take_over(descriptor, _status(folder, self._names.data), is_companion=True)
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _open_lock(self, folder: int) -> int:
        _check_file(folder, self._names.data, self._path)
        _check_file(folder, self._names.lock, self._beside(self._names.lock))
        return os.open(self._names.lock, os.O_RDWR | os.O_CREAT | _SAFE, PRIVATE_MODE, dir_fd=folder)

    def _wait(self, descriptor: int, deadline: float) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise self._timed_out() from None
                time.sleep(min(pause, remaining))
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            else:
                return

    def _timed_out(self) -> LockTimeout:
        error = LockTimeout(
            f"another writer has kept the lock of {self._path} for {self._timeout:g} s; nothing was written."
            " Try again. If it hangs or is stopped, end it:"
            f" `fuser {self._beside(self._names.lock)}` finds it"
        )
        error.name = self._path
        return error

    @contextmanager
    def _folder(self) -> Iterator[int]:
        """All names are looked up in this one folder, even if another takes its place meanwhile."""
        place = os.path.dirname(self._path)
        try:
            folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise InvalidArgument(f"{place} is no folder: make it before {self._path} is guarded") from None
        try:
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """An error of the system's stays the caller's to handle; a note says what it means here."""
        try:
            yield
        except OSError as error:
            note = _NOTES.get(error.errno or 0)
            if note is not None:
                error.add_note(f"holdfast: while replacing {self._path}: {note}")
            raise

    def _beside(self, name: str) -> str:
        return os.path.join(os.path.dirname(self._path), name)


@dataclass(frozen=True, slots=True)
class _Names:
    """What lies in the folder. A name that begins with a dot is left out by ``*`` and by most listings."""

    data: str
    lock: str
    fence: str
    new_data: str
    new_fence: str

    @classmethod
    def of(cls, name: str) -> _Names:
        names = cls(name, f".{name}.lock", f".{name}.fence", f".{name}.new", f".{name}.fence.new")
        if len(os.fsencode(names.new_fence)) > MAX_NAME_BYTES:
            raise InvalidArgument(
                f"the file's name has {len(os.fsencode(name))} bytes; the guard keeps files of longer names"
                f" beside it, so {MAX_NAME_BYTES - len('..fence.new')} are the most"
            )
        return names


_SAFE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""No symbolic links, nothing for child processes, and no waiting for the other end of a pipe."""

_NOTES: Final = {
    errno.EACCES: "its guard keeps files beside it, so this process needs the right to write in the folder",
    errno.EPERM: "its guard keeps files beside it, so this process needs the right to write in the folder",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "the disk is full, and the old and the new content have to fit side by side",
    errno.EDQUOT: "the quota is used up, and the old and the new content have to fit side by side",
    errno.ENOTSUP: "this file system has no flock or no fsync of folders, so the guard cannot work here",
    errno.ENOLCK: "this file system has no flock, so the guard cannot work here",
}


def _status(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _check_file(folder: int, name: str, shown: str) -> None:
    """Whether it may be replaced: a plain file that no other user could have put there, or nothing yet."""
    status = _status(folder, name)
    if status is None:
        return
    if stat.S_ISLNK(status.st_mode):
        raise InvalidArgument(
            f"{shown} is a symbolic link: name the file it leads to, so that one file has one fence whichever"
            " way it is reached"
        )
    if stat.S_ISDIR(status.st_mode):
        raise InvalidArgument(f"{shown} is a folder: name the file to guard")
    if not stat.S_ISREG(status.st_mode):
        raise InvalidArgument(f"{shown} is a device, pipe or socket: only a plain file can be replaced")
    if os.fstat(folder).st_mode & stat.S_IWOTH and status.st_uid != os.geteuid():
        raise InvalidArgument(
            f"{shown} belongs to another user, in a folder where every user may make files: use a folder that"
            " only the writers may write in"
        )


def _read(folder: int, name: str, most: int | None) -> bytes | None:
    try:
        descriptor = os.open(name, os.O_RDONLY | _SAFE, dir_fd=folder)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        return file.read(-1 if most is None else most)


def _write_all(descriptor: int, octets: memoryview) -> None:
    while octets:
        octets = octets[os.write(descriptor, octets) :]


def _take_over(descriptor: int, old: os.stat_result | None, is_companion: bool = False) -> None:
    """Give a new file the owner and the mode of the data it replaces, or that it lies beside.

    Where the group cannot be kept, it is given no right, for it is another group then.
    """
    if old is None:
        return
    own = os.fstat(descriptor)
    mode = stat.S_IMODE(old.st_mode) & (0o666 if is_companion else 0o777)
    if is_companion:
        mode |= PRIVATE_MODE  # also beside data that is read-only, for the next writer has to open them
    if (own.st_uid, own.st_gid) != (old.st_uid, old.st_gid):
        for uid, gid in ((-1, old.st_gid), (old.st_uid, -1)):
            with suppress(PermissionError):
                os.fchown(descriptor, uid, gid)
        if os.fstat(descriptor).st_gid != old.st_gid:
            mode &= ~0o070
    if stat.S_IMODE(own.st_mode) != mode:
        with suppress(PermissionError):
            os.fchmod(descriptor, mode)


def _exhaust(steps: Steps) -> None:
    for _ in steps:
        pass
