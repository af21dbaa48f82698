"""The shared cache of records: an entry spares a read, and whatever it contains, no client gets a wrong
reply."""

from __future__ import annotations

import errno
import mmap
import os
import random
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest

import holdfast
from engines.sqlite.stores import HOLDER, Clock, One, query, record_of, update
from holdfast.engines.local import StoreBusyError as TryAgain
from holdfast.engines.sqlite import cache
from holdfast.engines.sqlite.cache import (
    CONTENT_BYTES_MAX,
    HEADER,
    NAME,
    SLOT_BYTES,
    SLOTS,
    SharedRecordCache,
)
from holdfast.engines.sqlite.codec import decode, encode
from holdfast.engines.sqlite.database_file import DatabaseFile
from holdfast.engines.sqlite.records import RecordTable
from holdfast.engines.sqlite.side_directory import SideDirectory
from holdfast.engines.sqlite.sockets import SendResult, WakeupSocket
from holdfast.rules import handoff
from holdfast.rules.record import EMPTY
from holdfast.rules.requests import (
    Acquire,
    Break,
    Broken,
    Busy,
    Done,
    Gone,
    Granted,
    Inspect,
    Queued,
    Refresh,
    Release,
    Renew,
    Request,
    Resize,
    SetValue,
    Snapshot,
    Stop,
    Unwatch,
    Wake,
    Watch,
    Withdraw,
)
from support import run_python

VERSION = 2**45 + 17
TEXT = 'a text of "several"\nlines, schön \udc80\n'


@pytest.fixture
def side(path: Path) -> Iterator[SideDirectory]:
    side = DatabaseFile(str(path), False).open_side_directory()
    yield side
    side.close()


@pytest.fixture
def record_cache(side: SideDirectory) -> Iterator[SharedRecordCache]:
    record_cache = SharedRecordCache(side, "holdfast")
    yield record_cache
    record_cache.close()


def bytes_of(record_cache: SharedRecordCache, key: bytes = b"x") -> tuple[memoryview, int]:
    """The memory that all share, and where the notice of a name is in it."""
    return memoryview(mmap.mmap(record_cache._fd, SLOTS * SLOT_BYTES)), record_cache._slot(key)[0]


# --- putting up and reading -----------------------------------------------------------------------


def test_what_is_put_up_is_read_by_others(side: SideDirectory, record_cache: SharedRecordCache) -> None:
    assert record_cache.read(b"x") is None
    record_cache.publish(b"x", VERSION, "this boot", TEXT)
    other = SharedRecordCache(side, "holdfast")
    assert other.read(b"x") == (VERSION, "this boot", TEXT)
    other.publish(b"x", VERSION + 1, "this boot", TEXT * 2)
    assert record_cache.read(b"x") == (VERSION + 1, "this boot", TEXT * 2)
    record_cache.publish(b"x", VERSION + 2, "", "")
    assert other.read(b"x") == (VERSION + 2, "", "")
    record_cache.invalidate(b"x")
    assert other.read(b"x") is None
    other.close()


def test_what_is_known_is_not_read_again(record_cache: SharedRecordCache) -> None:
    record_cache.publish(b"x", VERSION, "this boot", TEXT)
    assert record_cache.read(b"x", VERSION) is None
    assert record_cache.read(b"x", None, VERSION) is None
    assert record_cache.read(b"x", VERSION - 1, None) is not None


def test_namespaces_do_not_mix(side: SideDirectory, record_cache: SharedRecordCache) -> None:
    other = SharedRecordCache(side, "another")
    record_cache.publish(b"x", VERSION, "this boot", TEXT)
    assert other.read(b"x") is None
    other.invalidate(b"x")
    assert record_cache.read(b"x") == (VERSION, "this boot", TEXT)
    other.close()
    split = SharedRecordCache(side, "hold")
    assert split.read(b"fast\0x") is None
    split.close()


def neighbours(record_cache: SharedRecordCache) -> tuple[bytes, bytes]:
    """Two names that share a slot."""
    first = b"x"
    return first, next(
        name
        for name in (b"n-%d" % number for number in range(100 * SLOTS))
        if record_cache._slot(name)[0] == record_cache._slot(first)[0]
    )


def test_two_names_in_one_slot_do_not_mix(record_cache: SharedRecordCache) -> None:
    one, other = neighbours(record_cache)
    record_cache.publish(one, VERSION, "this boot", "of one")
    assert record_cache.read(other) is None
    record_cache.invalidate(other)
    assert record_cache.read(one) == (VERSION, "this boot", "of one")
    record_cache.publish(other, 7, "this boot", "of the other")
    assert record_cache.read(one) is None
    assert record_cache.read(other) == (7, "this boot", "of the other")
    record_cache.invalidate(one)
    assert record_cache.read(other) == (7, "this boot", "of the other")


def test_as_much_as_fits_is_put_up_and_what_does_not_is_taken_down(record_cache: SharedRecordCache) -> None:
    fits = "x" * (CONTENT_BYTES_MAX - 1)
    record_cache.publish(b"x", VERSION, "", fits)
    assert record_cache.read(b"x") == (VERSION, "", fits)
    record_cache.publish(b"x", VERSION + 1, "", fits + "x")
    assert record_cache.read(b"x") is None
    shared, at = bytes_of(record_cache)
    assert bytes(shared[at + SLOT_BYTES : at + SLOT_BYTES + HEADER.size]) in (b"\0" * HEADER.size, b"")
    shared.release()


# --- what is torn ---------------------------------------------------------------------------------


def test_a_byte_that_was_changed_is_noticed(record_cache: SharedRecordCache) -> None:
    """Wherever it is; but that another version may seem to be up, which is stored nowhere."""
    record_cache.publish(b"x", VERSION, "this boot", TEXT)
    body = len(f"this boot\n{TEXT}".encode("utf-8", "surrogatepass"))
    shared, at = bytes_of(record_cache)
    for place in range(at, at + HEADER.size + body):
        for changed in (shared[place] ^ 1, shared[place] ^ 0x80, 0, 0xFF):
            before, shared[place] = shared[place], changed
            told = record_cache.read(b"x")
            assert before == changed or told is None or told[0] != VERSION, f"byte {place - at}"
            shared[place] = before
    assert record_cache.read(b"x") == (VERSION, "this boot", TEXT)
    shared.release()


@pytest.mark.parametrize(
    "length", [0, 1, 17, CONTENT_BYTES_MAX, CONTENT_BYTES_MAX + 1, SLOT_BYTES, 2**31, 2**32 - 1]
)
def test_a_wrong_length_reads_as_nothing(record_cache: SharedRecordCache, length: int) -> None:
    record_cache.publish(b"x", VERSION, "this boot", TEXT)
    shared, at = bytes_of(record_cache)
    tag, version, _, check = HEADER.unpack_from(shared, at)
    HEADER.pack_into(shared, at, tag, version, length, check)
    assert record_cache.read(b"x") is None
    shared.release()


def test_a_process_that_died_in_the_middle_of_a_write_leaves_nothing(
    record_cache: SharedRecordCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite

    def dies(fd: int, notice: bytes, at: int) -> int:
        write(fd, notice[: HEADER.size + 2], at)
        raise KeyboardInterrupt

    one, other = neighbours(record_cache)
    record_cache.publish(one, VERSION, "this boot", "a text")
    for key in (one, other):
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", dies)
            with pytest.raises(KeyboardInterrupt):
                record_cache.publish(key, VERSION + 1, "this boot", "A TEXT")
        assert record_cache.read(one) is None
        assert record_cache.read(other) is None
    record_cache.publish(other, VERSION, "this boot", "a text")
    assert record_cache.read(other) == (VERSION, "this boot", "a text")


def test_two_concurrent_writers_leave_a_whole_entry_or_none(
    record_cache: SharedRecordCache,
) -> None:
    """The head of one with the text of the other, in either order."""
    one, other = neighbours(record_cache)
    shared, at = bytes_of(record_cache)

    def notice(key: bytes, version: int, text: str) -> tuple[bytes, bytes]:
        record_cache.publish(key, version, "this boot", text)
        slot = bytes(shared[at : at + SLOT_BYTES])
        return slot[: HEADER.size], slot[HEADER.size :]

    notices = [notice(one, 5, "a text"), notice(one, 6, "A TEXT"), notice(other, 7, "another")]
    for head, _ in notices:
        for _, body in notices:
            shared[at : at + SLOT_BYTES] = head + body
            whole = (head, body) in notices
            assert (record_cache.read(one) is not None or record_cache.read(other) is not None) == whole
    shared.release()


def test_bytes_that_are_no_text_read_as_nothing(record_cache: SharedRecordCache) -> None:
    record_cache.publish(b"x", VERSION, "", "")
    shared, at = bytes_of(record_cache)
    tag = bytes(shared[at : at + 8])
    body = b"\n\xff\xfe"
    shared[at + HEADER.size : at + HEADER.size + len(body)] = body
    check = crc32(body, VERSION & cache.MASK)
    HEADER.pack_into(shared, at, tag, VERSION, len(body), check)
    assert record_cache.read(b"x") is None
    shared.release()


# --- the file -------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o277])
def test_its_file_is_private_and_all_of_it_is_there(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with One(path) as one:
            one.hold("x")
            found = (Path(f"{path}.clients") / NAME).stat()
    finally:
        os.umask(before)
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_size == SLOTS * SLOT_BYTES
    assert found.st_blocks * 512 >= found.st_size, "so that writing to it does not need the disk to have room"


def test_a_file_that_others_could_read_is_made_private(side: SideDirectory) -> None:
    file = Path(side.path) / NAME
    file.touch()
    file.chmod(0o666)
    SharedRecordCache(side, "holdfast").close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_one_that_is_closed_has_nothing_up(record_cache: SharedRecordCache) -> None:
    record_cache.publish(b"x", VERSION, "", TEXT)
    record_cache.close()
    record_cache.close()
    assert record_cache.read(b"x") is None
    record_cache.publish(b"x", VERSION, "", TEXT)
    record_cache.invalidate(b"x")


def test_names_are_not_kept_for_ever(
    record_cache: SharedRecordCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "CACHED_MAX", 10)
    for number in range(100):
        record_cache.publish(b"n-%d" % number, number, "", TEXT)
        assert len(record_cache._slots) <= 10
    assert record_cache.read(b"n-99") == (99, "", TEXT)


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(params=["no room", "another user's", "a folder in its place", "a link in its place"])
def no_board(request: pytest.FixtureRequest, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(f"{path}.clients")
    if request.param == "no room":
        monkeypatch.setattr("os.posix_fallocate", no_room)
    elif request.param == "another user's":
        check = SideDirectory._check_owner

        def foreign(self: SideDirectory, name: str, fd: int) -> None:
            check(self, name, fd)
            if name == NAME:
                raise PermissionError(errno.EPERM, "it belongs to user 1: remove it", name)

        monkeypatch.setattr(SideDirectory, "_check_owner", foreign)
    else:
        folder.mkdir(mode=0o700)
        if request.param == "a folder in its place":
            (folder / NAME).mkdir()
        else:
            (folder / NAME).symlink_to(path.parent / "elsewhere")


@pytest.mark.usefixtures("no_board", "strangers", "clock")
@pytest.mark.parametrize("fair", [True, False], ids=["handed over", "by turns"])
def test_without_one_everything_is_as_ever(
    client: Callable[[], One], path: Path, fair: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handoff, "CAME_SECONDS", 60.0)
    clients = [client() for _ in range(4)]
    attempt, granted = clients[0].hold("x")
    waiting = [one.attempt(wait=True, fair=fair) for one in clients[1:]]
    for one, wanted in zip(clients[1:], waiting, strict=True):
        assert isinstance(one.ask("x", wanted), Queued)
    assert all(one.store._table.record_cache._fd < 0 for one in clients)
    tokens = [granted.token]
    for before, one, wanted in zip([attempt, *waiting], clients[1:], waiting, strict=False):
        assert clients[0].ask("x", Release(before.nonce)) == Done()
        reply = one.ask("x", wanted)
        assert isinstance(reply, Granted)
        tokens.append(reply.token)
    assert tokens == sorted(set(tokens))
    assert not (path.parent / "elsewhere").exists()


def test_closing_leaves_published_records_to_the_others(client: Callable[[], One], path: Path) -> None:
    """Others read it then as before; and their changes are seen by who comes anew."""
    holder, waiter = client(), client()
    holder.hold("x")
    with One(path) as leaving:
        wanted = leaving.attempt(wait=True)
        assert isinstance(leaving.ask("x", wanted), Queued)
        assert waiter.store._table.record_cache.read(b"x") is None  # it has not come yet
        assert isinstance(waiter.ask("x", waiter.attempt(wait=True)), Queued)
    notice = holder.store._table.record_cache.read(b"x")
    assert notice is not None
    with One(path) as new:
        new.hold("y")
        assert new.store._table.record_cache.read(b"x") == notice


TRUNCATES = """
    import os, sys
    from holdfast.engines.sqlite.cache import SharedRecordCache
    from holdfast.engines.sqlite.database_file import DatabaseFile

    side = DatabaseFile(sys.argv[1], False).open_side_directory()
    cache = SharedRecordCache(side, "holdfast")
    cache.publish(b"x", 1, "boot", "text")
    assert cache.read(b"x") == (1, "boot", "text")
    os.truncate(f"{side.path}/board", 0)
    print("read", cache.read(b"x"))
    cache.invalidate(b"x")
    cache.publish(b"x", 2, "boot", "text")
    print("anew", cache.read(b"x"))
"""


def test_a_board_that_is_cut_off_reads_as_nothing_and_kills_nobody(path: Path) -> None:
    with run_python(TRUNCATES, str(path)) as child:
        assert child.expect("read") == "None"
        assert child.expect("anew") == "(2, 'boot', 'text')"
        child.succeed()


# --- a fork ---------------------------------------------------------------------------------------


def test_the_child_of_a_fork_closes_it(client: Callable[[], One]) -> None:
    one = client()
    one.hold("x")
    one.ask("x", one.attempt(wait=True))
    record_cache = one.store._table.record_cache
    assert record_cache._fd >= 0
    pid = os.fork()
    if pid == 0:
        one.store.forked()
        os._exit(0 if record_cache._fd < 0 and record_cache.read(b"x") is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert record_cache.read(b"x") is not None


# --- what is up, and what is stored ---------------------------------------------------------------


def stored(path: Path, name: str = "x") -> tuple[int, str, str]:
    ((version, boot, text),) = query(
        path, "SELECT version, boot, record FROM locks WHERE name = ?", name.encode()
    )
    return version, boot, text


def notice_of(one: One, name: str = "x") -> tuple[int, str, str] | None:
    return one.store._table.record_cache.read(name.encode())


def crowd(client: Callable[[], One]) -> tuple[One, Acquire, One, Acquire]:
    """One who holds it and one who waits for it, each with its attempt; that is up."""
    holder, waiter = client(), client()
    attempt, _ = holder.hold("x")
    waiting = waiter.attempt(wait=True, fair=False)
    assert isinstance(waiter.ask("x", waiting), Queued)
    assert notice_of(holder) is not None
    return holder, attempt, waiter, waiting


@pytest.mark.usefixtures("strangers", "clock")
def test_what_only_one_wants_is_not_put_up(client: Callable[[], One]) -> None:
    one = client()
    attempt, _ = one.hold("x")
    one.release("x", attempt)
    one.hold("x")
    assert notice_of(one) is None


@pytest.mark.usefixtures("strangers", "clock")
@pytest.mark.parametrize("others", [0, 1])
def test_the_successor_is_notified_before_the_record_is_published(
    client: Callable[[], One], path: Path, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    for module in ("rules.handoff", "engines.sqlite.shortcuts"):
        monkeypatch.setattr(f"holdfast.{module}.CAME_SECONDS", 60.0)
    holder, successor = client(), client()
    held, _ = holder.hold("x")
    waiting = successor.attempt(wait=True)
    for attempt in [waiting, *[successor.attempt(wait=True) for _ in range(others)]]:
        assert isinstance(successor.ask("x", attempt), Queued)
    before, seen = notice_of(successor), list[object]()
    assert before == stored(path)
    registration = holder.store._session.registration
    assert registration is not None
    send = registration.wakeup_socket.send

    def noting(_: WakeupSocket, wake: Wake) -> SendResult:
        seen.append((wake.nonce, notice_of(successor)))
        return send(wake)

    monkeypatch.setattr(WakeupSocket, "send", noting)
    holder.release("x", held)
    assert seen == [(waiting.nonce, before)]
    assert notice_of(successor) == stored(path) != before
    assert not holder.store._table.unpublished_handoffs


@pytest.mark.usefixtures("strangers", "clock")
def test_what_was_handed_over_and_changed_meanwhile_is_put_up_as_it_is(
    client: Callable[[], One], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another thread of the client, or by the same: its heir turns out to be dead."""
    for module in ("rules.handoff", "engines.sqlite.shortcuts"):
        monkeypatch.setattr(f"holdfast.{module}.CAME_SECONDS", 60.0)
    holder, successor = client(), client()
    held, _ = holder.hold("x")
    assert isinstance(successor.ask("x", successor.attempt(wait=True)), Queued)

    def changing(_: WakeupSocket, wake: Wake) -> SendResult:
        monkeypatch.undo()
        assert isinstance(holder.ask("x", Break(None, "because")), Broken)
        return SendResult.DELIVERED

    monkeypatch.setattr(WakeupSocket, "send", changing)
    holder.release("x", held)
    assert notice_of(successor) in (None, stored(path))
    assert isinstance(successor.ask("x", successor.attempt()), Granted)


CHANGES: dict[str, Callable[[Acquire, Acquire], Request]] = {
    "it is broken": lambda held, waiting: Break(None, "because"),
    "it is broken at length": lambda held, waiting: Break(None, "because" * 2000),
    "it is given back": lambda held, waiting: Release(held.nonce),
    "it is given back and remembered": lambda held, waiting: Release(held.nonce, 60.0),
    "the one who waits leaves": lambda held, waiting: Withdraw(waiting.nonce),
    "the one who waits leaves and is remembered": lambda held, waiting: Withdraw(waiting.nonce, 60.0),
    "another joins": lambda held, waiting: waiting._replace(nonce=f"{waiting.client}-ff"),
    "it has a value": lambda held, waiting: SetValue(held.nonce, b"value", 100.0),
    "a client watches": lambda held, waiting: Watch(f"{waiting.client}-fe", waiting.client),
    "it is let run out": lambda held, waiting: Stop(held.nonce),
}


@pytest.mark.usefixtures("strangers", "clock")
@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_a_published_record_replaces_or_invalidates_it(
    client: Callable[[], One], path: Path, what: str
) -> None:
    _, held, _, waiting = crowd(client)
    before, other = stored(path), client()
    other.ask("x", CHANGES[what](held, waiting))
    assert stored(path) != before
    assert notice_of(other) in (stored(path), None)


@pytest.mark.usefixtures("strangers", "clock")
def test_so_does_a_client_that_makes_room_or_takes_it(client: Callable[[], One], path: Path) -> None:
    one, other = client(), client()

    def permit(who: One, wait: bool = False) -> Acquire:
        return who.attempt(wait=wait)._replace(kind="semaphore", mode="permit", limit=1)

    assert isinstance(one.ask("x", permit(one)), Granted)
    assert isinstance(one.ask("x", permit(one, wait=True)), Queued)
    assert notice_of(other) is None or notice_of(other) == stored(path)
    for limit in (3, 1, 2):
        other.ask("x", Resize(1, limit))
        assert notice_of(other) in (stored(path), None)


@pytest.mark.usefixtures("strangers", "clock")
def test_so_does_a_client_that_takes_several_at_once(client: Callable[[], One], path: Path) -> None:
    """What it writes may yet be taken back, so it is never up."""
    holder, held, _, _ = crowd(client)
    holder.release("x", held)
    other = client()
    steps = tuple((name, other.attempt(fair=False)) for name in "wxy")
    assert [type(reply) for reply in other.store.apply_in_order(steps, True)] == [Granted] * 3
    assert notice_of(other) is None


@pytest.mark.usefixtures("strangers", "clock")
def test_what_was_taken_back_was_never_up(
    client: Callable[[], One], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two was written, the second could not be: that version is stored nowhere."""
    holder, held, waiter, waiting = crowd(client)
    holder.release("x", held)
    other, meddler = client(), client()
    table = other.store._table
    store, seen = table.store, list[object]()

    def interrupted(execute: object, key: bytes, *rest: object) -> bool:
        seen.append(notice_of(waiter))
        return key == b"x" and store(execute, key, *rest)  # type: ignore[arg-type]  # as it was called

    steps = (("x", other.attempt(fair=False)), ("y", other.attempt()))
    with monkeypatch.context() as patch:
        patch.setattr(table, "store", interrupted)
        with pytest.raises(TryAgain):
            other.store.apply_in_order(steps, True)
    assert seen
    assert notice_of(waiter) in (None, stored(path))
    assert isinstance(waiter.ask("x", waiting), Granted)
    assert isinstance(meddler.ask("x", meddler.attempt()), Busy)


@pytest.mark.usefixtures("strangers", "clock")
def test_a_client_that_was_taken_for_dead_invalidates_what_it_gives_up(
    client: Callable[[], One], path: Path
) -> None:
    holder, held, waiter, waiting = crowd(client)
    update(path, "UPDATE clients SET dead = 1 WHERE id = ?", waiter.id)
    waiter.renew_batch(("x", Refresh(waiting.nonce)))
    assert notice_of(holder) in (None, stored(path))
    assert holder.renew_batch(("x", Renew(held.nonce, 30.0))) == [Done()]
    assert record_of(holder, "x").queue == ()


def anything(chance: random.Random, one: One, asked: list[Acquire]) -> Request:
    """What a client may ask for, of its own attempts or of others'."""
    if not asked or chance.random() < 0.4:
        ttl, wait = chance.choice((0.02, 30.0)), chance.random() < 0.7
        asked.append(one.attempt(ttl, wait, fair=chance.random() < 0.7))
        return asked[-1]
    wanted = chance.choice(asked[-6:])
    return chance.choice(
        (
            wanted,
            Release(wanted.nonce),
            Release(wanted.nonce),
            Release(wanted.nonce, 60.0),
            Withdraw(wanted.nonce),
            Withdraw(wanted.nonce, 60.0),
            SetValue(wanted.nonce, b"value", 10.0),
            Stop(wanted.nonce),
            Break(None, "because"),
            Watch(f"{one.id}-w", one.id),
            Unwatch(f"{one.id}-w"),
            Inspect(),
        )
    )


@pytest.mark.usefixtures("strangers")
@pytest.mark.parametrize("seed", range(5))
def test_what_is_up_is_what_is_stored_whatever_is_asked(
    client: Callable[[], One], path: Path, clock: Clock, seed: int
) -> None:
    chance, clients, asked = random.Random(seed), [client() for _ in range(3)], list[Acquire]()
    seen = 0
    for _ in range(200):
        clock.passes(chance.choice((0.0, 0.001, 0.01)))
        one = chance.choice(clients)
        request = anything(chance, one, asked)
        if chance.random() < 0.1:
            one.renew_batch(("x", Refresh(asked[-1].nonce)), ("x", Renew(asked[0].nonce, 30.0)))
        else:
            one.ask("x", request)
        notice = notice_of(one)
        if notice is not None:
            seen += 1
            assert notice == stored(path), request
    assert seen > 20


# --- what is outdated -----------------------------------------------------------------------------


@pytest.mark.usefixtures("strangers", "clock")
def test_what_is_up_spares_a_look(client: Callable[[], One], monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing of this would be worth the while."""
    holder, held, _, _ = crowd(client)
    other = client()
    other.hold("y")
    with monkeypatch.context() as patch:
        patch.setattr(RecordTable, "load", None)
        assert isinstance(other.ask("x", other.attempt(wait=True)), Queued)
        assert holder.release("x", held) == Done()


class Outdated:
    """A crowd whose notice says what was so a while ago, whatever was done since."""

    def __init__(self, client: Callable[[], One]) -> None:
        self.holder, self.held, self.waiter, self.waiting = crowd(client)
        self.other = client()
        self.other.hold("y")
        self.outdate()

    def outdate(self) -> None:
        """What is up now will be up again."""
        notice = notice_of(self.other)
        assert notice is not None
        self._notice = notice

    def put_back(self) -> None:
        """One who stored this before all that was done since puts it up only now."""
        self.other.store._table.record_cache.publish(b"x", *self._notice)


@pytest.fixture
def outdated(
    client: Callable[[], One], strangers: None, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> Outdated:
    monkeypatch.setattr(handoff, "CAME_SECONDS", 60.0)
    return Outdated(client)


def test_a_newcomer_is_not_queued_behind_waiters_that_are_gone(outdated: Outdated) -> None:
    outdated.waiter.ask("x", Withdraw(outdated.waiting.nonce))
    outdated.holder.release("x", outdated.held)
    outdated.put_back()
    assert isinstance(outdated.other.ask("x", outdated.other.attempt(wait=True)), Granted)


def test_a_newcomer_is_not_granted_what_another_took(outdated: Outdated) -> None:
    """It was free for a moment, and that is what is up."""
    outdated.holder.release("x", outdated.held)
    outdated.outdate()
    assert isinstance(outdated.waiter.ask("x", outdated.waiting), Granted)
    outdated.put_back()
    assert isinstance(outdated.other.ask("x", outdated.other.attempt(fair=False)), Busy)
    outdated.put_back()
    assert isinstance(outdated.other.ask("x", outdated.other.attempt(wait=True)), Queued)
    assert [h.nonce for h in record_of(outdated.other, "x").holders] == [outdated.waiting.nonce]


def test_a_former_holder_hands_nothing_over(outdated: Outdated) -> None:
    outdated.other.ask("x", Break(None, "because"))
    outdated.put_back()
    assert outdated.holder.release("x", outdated.held) == Gone("broken", "because")
    record = record_of(outdated.other, "x")
    assert not record.holders
    assert [waiter.nonce for waiter in record.queue] == [outdated.waiting.nonce]


def test_a_successor_that_lost_it_is_not_notified_of_a_grant(outdated: Outdated) -> None:
    wanted = outdated.other.attempt(wait=True)
    outdated.waiter.ask("x", Withdraw(outdated.waiting.nonce))
    assert isinstance(outdated.other.ask("x", wanted), Queued)
    assert outdated.holder.release("x", outdated.held) == Done()
    assert [h.nonce for h in record_of(outdated.holder, "x").holders] == [wanted.nonce]
    outdated.outdate()
    outdated.holder.ask("x", Break(None, "because"))
    outdated.put_back()
    assert outdated.other.ask("x", wanted) == Gone("broken", "because")


def test_a_place_that_was_given_up_is_no_place(outdated: Outdated) -> None:
    outdated.waiter.ask("x", Withdraw(outdated.waiting.nonce, 60.0))
    outdated.put_back()
    assert isinstance(outdated.waiter.ask("x", outdated.waiting), Gone)
    outdated.put_back()
    assert outdated.holder.release("x", outdated.held) == Done()
    assert record_of(outdated.other, "x").holders == ()


def test_an_inspection_shows_what_is_stored(outdated: Outdated) -> None:
    outdated.holder.release("x", outdated.held)
    outdated.waiter.ask("x", outdated.waiting)
    outdated.put_back()
    told = outdated.other.ask("x", Inspect())
    assert isinstance(told, Snapshot)
    assert [h.nonce for h in told.record.holders] == [outdated.waiting.nonce]
    assert outdated.waiter.renew_batch(("x", Renew(outdated.waiting.nonce, 30.0))) == [Done()]
    assert isinstance(outdated.holder.renew_batch(("x", Renew(outdated.held.nonce, 30.0)))[0], Gone)


def test_a_name_that_was_forgotten_begins_anew(outdated: Outdated, path: Path) -> None:
    update(path, "DELETE FROM locks")
    outdated.put_back()
    assert isinstance(outdated.other.ask("x", outdated.other.attempt(wait=True)), Granted)


def test_an_outdated_notice_is_not_tried_again(outdated: Outdated, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may stay up for ever, if the one died who was to replace it."""
    outdated.waiter.ask("x", Withdraw(outdated.waiting.nonce))
    outdated.put_back()
    tried: list[int] = []
    table = outdated.other.store._table
    store = table.store_text

    def store_text(execute: object, key: bytes, loaded: object, *rest: object, **more: object) -> bool:
        tried.append(loaded.version)  # type: ignore[attr-defined]  # a record as stored
        done = store(execute, key, loaded, *rest, **more)  # type: ignore[arg-type]  # as it was called
        outdated.put_back()
        return done

    monkeypatch.setattr(table, "store_text", store_text)
    assert isinstance(outdated.other.ask("x", outdated.other.attempt(wait=True)), Queued)
    assert outdated._notice[0] in tried
    tried.clear()
    for _ in range(5):
        assert isinstance(outdated.other.ask("x", outdated.other.attempt(wait=True)), Queued)
    assert outdated._notice[0] not in tried


# --- notices that are not ours to use -------------------------------------------------------------


@pytest.mark.usefixtures("strangers", "clock")
@pytest.mark.parametrize("boot", ["another boot", ""])
def test_a_notice_of_another_boot_is_not_used(client: Callable[[], One], path: Path, boot: str) -> None:
    """Its times are on another clock; here it even misstates what is stored."""
    holder, held, _, waiting = crowd(client)
    other = client()
    other.hold("y")
    version, _, text = stored(path)
    free = encode(decode(text)._replace(holders=()))
    for told in (free, encode(EMPTY)):
        other.store._table.record_cache.publish(b"x", version, boot, told)
        assert isinstance(other.ask("x", other.attempt(fair=False)), Busy)
        other.store._table.record_cache.publish(b"x", version, boot, told)
        assert isinstance(other.ask("x", other.attempt()), Busy)
    assert [h.nonce for h in record_of(other, "x").holders] == [held.nonce]
    other.store._table.record_cache.publish(b"x", stored(path)[0], boot, free)
    assert holder.release("x", held) == Done()
    assert waiting.nonce in stored(path)[2]


@pytest.mark.usefixtures("strangers", "clock")
@pytest.mark.parametrize("told", ["not JSON", "{}", "[]", "[99,[]]", "", "\n\n\n\n\n\n", '[2,"lock",5,[\n['])
def test_a_text_that_makes_no_sense_is_not_believed(client: Callable[[], One], told: str) -> None:
    holder, held, waiter, waiting = crowd(client)
    boot = holder.store._table.boot
    for one, request, answer in (
        (waiter, waiting, Queued),
        (holder, Release(held.nonce), Done),
        (waiter, waiting, Granted),
    ):
        one.store._table.record_cache.publish(b"x", 1, boot, told)
        assert isinstance(one.ask("x", request), answer)


# --- between processes ----------------------------------------------------------------------------


def test_processes_see_what_others_put_up(url: str, path: Path, client: Callable[[], One]) -> None:
    one = client()
    one.hold("y")
    with run_python(HOLDER, url, "x", "60") as holder:
        holder.expect("held")
        assert notice_of(one) is None
        with holdfast.connect(url) as locks:
            assert locks.lock("x").acquire(timeout=0.2) is None
        wanted = one.attempt(wait=True)
        assert isinstance(one.ask("x", wanted), Queued)
        notice = notice_of(one)
        assert notice == stored(path)
        holder.send(f"assert {notice!r} == locks._driver.adapter._store._table.record_cache.read(b'x')")
        holder.expect("done")
        holder.send("release")
        holder.expect("released")
        assert notice_of(one) == stored(path)
