"""The guard for files: arguments and modes, the rule, and writers that are killed and stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import holdfast
from fencing.against_rule import compare_with_rule, holder, sequences
from fencing.test_interleavings import READ_MODIFY_WRITE, loses_an_update, schedules
from holdfast.errors import HoldfastError, InvalidArgument, LockLost, LockTimeout, StaleToken
from holdfast.fencing.arguments import Presentable
from holdfast.fencing.file import CHUNK_BYTES, FencedFile
from holdfast.fencing.mark_text import mark_from_text
from holdfast.fencing.rule import Mark
from holdfast.model import Fence
from support import run_python
from support.thorough import examples

OLD = b"old" * CHUNK_BYTES
NEW = b"new!" * CHUNK_BYTES


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "prices.json"


@pytest.fixture
def file(path: Path) -> FencedFile:
    return FencedFile(path)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


# The story


def test_the_holder_that_woke_up_late_is_refused(file: FencedFile) -> None:
    file.write(b"in time", holder(41))
    file.advance(holder(42))
    assert file.read() == b"in time"
    with pytest.raises(StaleToken, match=r"token 41 .*prices\.json.* token 42") as caught:
        file.write(b"too late", holder(41))
    assert (caught.value.resource, caught.value.token, caught.value.newest) == (file.path, 41, 42)
    file.write(b"by the new holder", holder(42))
    assert file.read() == b"by the new holder"
    assert file.newest() == Fence("s", 42, "nonce-42")


def test_nothing_is_there_before_the_first_write(file: FencedFile) -> None:
    assert file.newest() is None
    with pytest.raises(FileNotFoundError, match=r"prices\.json"):
        file.read()
    file.advance(holder(1))
    with pytest.raises(FileNotFoundError):
        file.read()


def test_a_file_that_was_there_before_its_guard(file: FencedFile, path: Path) -> None:
    path.write_bytes(b"before")
    assert file.read() == b"before"
    file.write(memoryview(b"after"), 7)
    assert (path.read_bytes(), file.newest()) == (b"after", Fence("", 7, ""))


def test_a_move_to_another_engine(file: FencedFile) -> None:
    file.write(b"x", holder(42))
    file.move("t")
    with pytest.raises(StaleToken, match="fencing"):
        file.write(b"late", holder(43))
    file.write(b"y", Fence("t", 1, "a"))
    assert file.read() == b"y"


class FileGuard:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = FencedFile(path)

    def write(self, content: bytes, presented: Presentable) -> None:
        self._file.write(content, presented)

    def advance(self, presented: Presentable) -> None:
        self._file.advance(presented)

    def move(self, source: str) -> None:
        self._file.move(source)

    def stored(self) -> Mark | None:
        fence = self._path.with_name(f".{self._path.name}.fence")
        return mark_from_text(fence.read_bytes().strip(), "") if fence.exists() else None

    def content(self) -> bytes | None:
        return self._file.read() if self._path.exists() else None


@settings(max_examples=examples(40))
@given(sequence=sequences)
def test_file_and_rule_give_the_same_decisions(
    tmp_path_factory: pytest.TempPathFactory, sequence: list[tuple[str, Presentable]]
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        do_not_wait_for_the_disk(monkeypatch)
        compare_with_rule(FileGuard(tmp_path_factory.mktemp("guard") / "data"), sequence)


@pytest.mark.parametrize(
    ("script", "lost", "total"),
    [(READ_MODIFY_WRITE * 2, 22, 70), (("advance", *READ_MODIFY_WRITE * 2), 0, 252)],
)
def test_lost_updates(
    tmp_path: Path, script: tuple[str, ...], lost: int, total: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``test_interleavings`` counts them: a guard that checks writes alone is not enough."""
    do_not_wait_for_the_disk(monkeypatch)
    outcomes = []
    for number, schedule in enumerate(schedules(len(script))):
        outcomes.append(loses_an_update(schedule, script, passes(FencedFile(tmp_path / f"{number}"))))
    assert (sum(outcomes), len(outcomes)) == (lost, total)


def do_not_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of times in one test: nobody cuts the power here."""
    monkeypatch.setattr("holdfast.fencing.file.os.fsync", lambda descriptor: None)


def passes(file: FencedFile) -> Callable[[int], bool]:
    def guard(token: int) -> bool:
        try:
            file.write(b"", holder(token))
        except StaleToken:
            return False
        return True

    return guard


# What is refused before anything is touched


@pytest.mark.parametrize("name", ["", "a\0b", "folder/", "..", "x" * 246, None, 5, b"data"])
def test_names_that_cannot_be_guarded(name: Any) -> None:
    with pytest.raises(InvalidArgument):
        FencedFile(name)


@pytest.mark.parametrize("timeout", [-1, float("nan"), "10", None])
def test_timeouts_that_are_none(timeout: Any) -> None:
    with pytest.raises(InvalidArgument, match="timeout"):
        FencedFile("data", timeout=timeout)


def test_the_longest_name(tmp_path: Path) -> None:
    FencedFile(tmp_path / ("x" * 244)).write(b"", 1)


@pytest.mark.realtime
def test_leases_that_may_not_write(file: FencedFile, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="read lease"):
        file.write(b"x", holder(1, mode="read"))
    with holdfast.connect("memory://") as locks, locks.lock("x", if_lost="note") as lease:
        locks.break_lock("x", reason="test")
        assert lease.wait_lost(20)
        with pytest.raises(LockLost):
            file.write(b"x", lease)
        with pytest.raises(LockLost):
            file.advance(lease)
    assert names_in(tmp_path) == []


def test_text_is_not_bytes(file: FencedFile, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="encode"):
        file.write("text", 1)  # type: ignore[arg-type]  # what a user may try
    with pytest.raises(InvalidArgument, match="a day ahead"):
        file.write(b"x", 2**62)
    with pytest.raises(InvalidArgument, match="source"):
        file.move("")
    assert names_in(tmp_path) == []


def test_a_folder_a_link_a_pipe_and_a_folder_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "real").write_bytes(b"untouched")
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "pipe")
    for name, complaint in [
        ("folder", "is a folder"),
        ("link", "symbolic link"),
        ("pipe", "device, pipe or socket"),
        ("missing/data", "is no folder"),
        ("real/data", "is no folder"),
    ]:
        before = names_in(tmp_path)
        guarded = FencedFile(tmp_path / name)
        for call in (lambda: guarded.write(b"x", 1), lambda: guarded.advance(1), guarded.read):  # noqa: B023 - called at once
            with pytest.raises(InvalidArgument, match=complaint):
                call()
        assert names_in(tmp_path) == before
    assert (tmp_path / "real").read_bytes() == b"untouched"


@pytest.mark.parametrize("companion", [".prices.json.lock", ".prices.json.fence"])
def test_links_in_the_place_of_the_guards_own_files(file: FencedFile, path: Path, companion: str) -> None:
    path.with_name("victim").write_bytes(b"untouched")
    path.with_name(companion).symlink_to("victim")
    with pytest.raises(InvalidArgument, match="symbolic link"):
        file.write(b"x", 1)
    assert path.with_name("victim").read_bytes() == b"untouched"
    assert not path.exists()


def test_links_in_the_place_of_new_files_are_removed_not_followed(file: FencedFile, path: Path) -> None:
    victim = path.with_name("victim")
    victim.write_bytes(b"untouched")
    for name in (".prices.json.new", ".prices.json.fence.new"):
        path.with_name(name).symlink_to("victim")
    file.write(b"x", 1)
    assert (victim.read_bytes(), file.read()) == (b"untouched", b"x")


def test_a_folder_on_the_way_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    FencedFile(tmp_path / "link" / "data").write(b"x", 42)
    with pytest.raises(StaleToken):
        FencedFile(tmp_path / "real" / "data").write(b"late", 41)


@pytest.mark.parametrize("text", ["", "42", "2:42:a:s:", "1:42:a:s", "\0" * 9, "1:42:a:s:\n1:1:a:s:"])
def test_a_fence_that_is_none_lets_nobody_in(file: FencedFile, path: Path, text: str) -> None:
    file.write(b"x", 42)
    path.with_name(".prices.json.fence").write_text(text)
    with pytest.raises(HoldfastError, match=r"\.prices\.json\.fence holds .* no mark"):
        file.write(b"y", 43)
    assert file.read() == b"x"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_files_of_other_users_in_a_shared_folder(file: FencedFile, path: Path) -> None:
    path.parent.chmod(0o1777)
    file.write(b"x", 1)
    os.chown(path.with_name(".prices.json.fence"), 65534, 65534)
    with pytest.raises(InvalidArgument, match=r"prices\.json\.fence belongs to another user"):
        file.write(b"y", 2)


# Who may read it


def test_new_files_are_private(file: FencedFile, path: Path, tmp_path: Path) -> None:
    file.write(b"x", 1)
    assert names_in(tmp_path) == [".prices.json.fence", ".prices.json.lock", "prices.json"]
    assert {mode_of(tmp_path / name) for name in names_in(tmp_path)} == {0o600}


@pytest.mark.parametrize(
    ("mode", "companions"), [(0o664, 0o664), (0o640, 0o640), (0o755, 0o644), (0o444, 0o644)]
)
def test_the_mode_stays_and_the_guards_files_have_it_too(
    file: FencedFile, path: Path, mode: int, companions: int
) -> None:
    path.write_bytes(b"x")
    path.chmod(mode)
    for token in (1, 2):
        file.write(b"y", token)
        assert mode_of(path) == mode
        assert mode_of(path.with_name(".prices.json.fence")) == companions
        assert mode_of(path.with_name(".prices.json.lock")) == companions


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_owner_and_group_stay(file: FencedFile, path: Path) -> None:
    path.write_bytes(b"x")
    os.chown(path, 65534, 65534)
    file.write(b"y", 1)
    assert (path.stat().st_uid, path.stat().st_gid, path.read_bytes()) == (65534, 65534, b"y")


UNPRIVILEGED = """
    import os, sys
    from holdfast.fencing import FencedFile
    if os.geteuid() == 0:
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
    try:
        FencedFile(sys.argv[1]).write(b"x", 1)
    except PermissionError as error:
        print("refused:", error.__notes__[0])
"""


@pytest.mark.realtime
def test_a_folder_that_may_not_be_written_in() -> None:
    # Not in pytest's folders: whenever another pytest begins, it makes them private again.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prices.json"
        path.write_bytes(b"x")
        path.parent.chmod(0o555)
        with run_python(UNPRIVILEGED, str(path)) as child:
            assert "the right to write in the folder" in child.expect("refused:")
        path.parent.chmod(0o755)
        assert path.read_bytes() == b"x"


# Kill -9 after every step


def take_steps(file: FencedFile, data: bytes, token: int) -> Iterator[str]:
    """A write, step by step."""
    with file._locked() as folder:
        yield "locked"
        yield from file._write_steps(folder, memoryview(data), Mark(token))


def write_and_die_after(file: FencedFile, data: bytes, token: int, step: str) -> None:
    """In a process of its own, by SIGKILL: no handler and no ``finally`` of its runs."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            for taken in take_steps(file, data, token):
                if taken == step:
                    os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"it was not killed after {step!r}"


def steps_of(file: FencedFile, data: bytes, token: int) -> list[str]:
    return list(take_steps(file, data, token))


@pytest.mark.realtime
def test_every_step_is_counted(file: FencedFile, tmp_path: Path) -> None:
    """What the tests below enumerate: a step that is added shows up here."""
    new, fence = ".prices.json.new", ".prices.json.fence.new"
    written = [f"{new} written up to {(each + 1) * CHUNK_BYTES}" for each in range(4)]
    data = ["locked", "checked", f"{new} created", *written, f"{new} stored"]
    advanced = [
        f"{fence} created",
        f"{fence} written up to {CHUNK_BYTES}",
        f"{fence} stored",
        "fence replaced",
    ]
    end = ["fence stored", "data replaced", "data stored"]
    assert steps_of(file, NEW, 42) == [*data, *advanced, *end]
    assert steps_of(file, NEW, 42) == [*data, *end], "the same grant again"
    assert names_in(tmp_path) == [".prices.json.fence", ".prices.json.lock", "prices.json"]


@pytest.mark.realtime
def test_a_writer_killed_after_any_step_leaves_the_old_or_the_new_content(tmp_path: Path) -> None:
    steps = steps_of_a_new_holder(tmp_path / "counted")
    for number, step in enumerate(steps):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        file = FencedFile(folder / "data")
        file.write(OLD, 41)
        write_and_die_after(file, NEW, 42, step)
        is_replaced = number >= steps.index("data replaced")
        is_advanced = number >= steps.index("fence replaced")
        assert file.read() == (NEW if is_replaced else OLD), step
        assert file.newest() == Fence("", 42 if is_advanced else 41, ""), step
        if is_advanced:
            with pytest.raises(StaleToken):
                file.write(b"stale", 41)
            assert file.read() == (NEW if is_replaced else OLD), step
        file.write(b"the next one", 42)
        assert file.read() == b"the next one"
        assert names_in(folder) == [".data.fence", ".data.lock", "data"], step


def steps_of_a_new_holder(folder: Path) -> list[str]:
    folder.mkdir()
    file = FencedFile(folder / "data")
    file.write(OLD, 41)
    return steps_of(file, NEW, 42)


@pytest.mark.realtime
def test_a_first_writer_killed_after_any_step_leaves_nothing_or_all(tmp_path: Path) -> None:
    (tmp_path / "counted").mkdir()
    steps = steps_of(FencedFile(tmp_path / "counted" / "data"), NEW, 42)
    for number, step in enumerate(steps):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        file = FencedFile(folder / "data")
        write_and_die_after(file, NEW, 42, step)
        if number >= steps.index("data replaced"):
            assert file.read() == NEW
            assert file.newest() == Fence("", 42, "")
        else:
            with pytest.raises(FileNotFoundError):
                file.read()


def test_an_error_in_the_middle_leaves_no_new_files(file: FencedFile, tmp_path: Path) -> None:
    file.write(OLD, 41)
    for step in steps_of(FencedFile(tmp_path / "other"), NEW, 42)[1:-2]:
        with contextlib.suppress(KeyboardInterrupt), file._locked() as folder:
            for taken in file._write_steps(folder, memoryview(NEW), Mark(42)):
                if taken == step.replace("other", "prices.json"):
                    raise KeyboardInterrupt
        assert not [name for name in names_in(tmp_path) if name.endswith(".new")], step
        assert file.read() == OLD


# Stopped writers, and many


WRITER = """
    import sys
    from holdfast.errors import LockTimeout, StaleToken
    from holdfast.fencing import FencedFile
    from holdfast.fencing.rule import Mark

    file = FencedFile(sys.argv[1])
    token = int(sys.argv[2])
    print("ready")
    for line in sys.stdin:
        if line.strip() == "stop inside":
            with file._locked() as folder:
                for step in file._write_steps(folder, memoryview(b"%d" % token), Mark(token)):
                    print("after", step)
                    input()
            print("done")
            continue
        try:
            file.write(b"%d" % token, token)
            print("done")
        except StaleToken as refusal:
            print("refused, newest is", refusal.newest)
"""


@pytest.mark.realtime
def test_a_holder_that_was_stopped_is_refused_when_it_wakes(file: FencedFile) -> None:
    with run_python(WRITER, file.path, "41") as zombie:
        zombie.expect("ready")
        zombie.send("write")
        zombie.expect("done")
        zombie.stop()
        file.advance(42)
        assert file.read() == b"41"
        file.write(b"42", 42)
        zombie.send("write")
        zombie.cont()
        assert zombie.expect("refused, newest is") == "42"
    assert file.read() == b"42"


@pytest.mark.realtime
def test_a_writer_stopped_inside_keeps_the_flock_and_the_others_get_an_error(file: FencedFile) -> None:
    file.write(b"40", 40)
    with run_python(WRITER, file.path, "41") as zombie:
        zombie.expect("ready")
        zombie.send("stop inside")
        zombie.expect("after checked")
        zombie.stop()
        with pytest.raises(LockTimeout, match=r"nothing was written.*fuser .*\.prices\.json\.lock") as caught:
            FencedFile(file.path, timeout=0.05).write(b"42", 42)
        assert caught.value.name == file.path
        assert file.read() == b"40"
        zombie.kill()
    file.write(b"42", 42)
    assert file.read() == b"42"


COUNTER = """
    import sys
    from holdfast.errors import StaleToken
    from holdfast.fencing import FencedFile

    file, token = FencedFile(sys.argv[1], timeout=60), int(sys.argv[2])
    print("ready")
    input()
    try:
        file.advance(token)
        for _ in range(15):
            lines = file.read().splitlines()
            file.write(b"\\n".join([*lines, b"%d" % token]), token)
        print("finished")
    except StaleToken:
        print("refused")
"""


@pytest.mark.realtime
def test_no_update_is_lost_between_processes_that_all_believe_to_hold_the_lock(file: FencedFile) -> None:
    file.write(b"", 0)
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(run_python(COUNTER, file.path, str(each))) for each in range(1, 5)]
        for writer in writers:
            writer.expect("ready", timeout=60)
        for writer in writers:
            writer.send()
        outcomes = [writer.expect("", timeout=60) for writer in writers]
    log = [int(line) for line in file.read().split()]
    assert log == sorted(log), "an older holder wrote after a newer one"
    assert (outcomes[-1], log.count(4)) == ("finished", 15)


def test_a_lock_that_was_removed_while_waiting_for_it_is_not_relied_on(
    file: FencedFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next writer makes a new one of that name, and both would be alone otherwise."""
    wait, waits = FencedFile._wait, []

    def remove_after_waiting(self: FencedFile, descriptor: int, deadline: float) -> None:
        wait(self, descriptor, deadline)
        waits.append(os.fstat(descriptor).st_ino)
        if len(waits) == 1:
            path.with_name(".prices.json.lock").unlink()

    monkeypatch.setattr(FencedFile, "_wait", remove_after_waiting)
    file.write(b"x", 1)
    assert waits[1:] == [path.with_name(".prices.json.lock").stat().st_ino]
