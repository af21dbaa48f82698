"""The guard for object stores: the rule, lost replies, every interleaving of requests, and a real store."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from hypothesis import given, settings

from fencing.against_rule import compare_with_rule, holder, sequences
from fencing.fake_s3 import AwaitedS3, MemoryS3, RefusedByStore
from fencing.test_interleavings import READ_MODIFY_WRITE, loses_an_update
from fencing.test_interleavings import schedules as interleavings
from holdfast.errors import Conflict, HoldfastError, InvalidArgument, StaleToken, Unsupported
from holdfast.fencing import AsyncFencedObject, FencedObject
from holdfast.fencing.arguments import Presentable
from holdfast.fencing.object_plans import MAX_ENVELOPE_BYTES, Got, Layout, ObjectPlans, Pause, decode_object
from holdfast.fencing.plans import TRIES, Plan
from holdfast.fencing.rule import Mark
from holdfast.model import Fence
from support import run_python
from support.servers import shared_seaweedfs
from support.thorough import examples

LAYOUTS: list[Layout] = ["envelope", "manifest"]


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> Layout:
    chosen: Layout = request.param
    return chosen


@pytest.fixture
def s3() -> MemoryS3:
    return MemoryS3()


@pytest.fixture
def guarded(s3: MemoryS3, layout: Layout) -> FencedObject:
    return FencedObject(s3, "shop", "prices", layout=layout)


@pytest.fixture(autouse=True)
def no_pauses(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the store in memory there is nothing to wait for."""
    if request.node.get_closest_marker("realtime"):
        return
    monkeypatch.setattr("holdfast.fencing.object_plans.FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("holdfast.fencing.object_store.time.sleep", lambda seconds: None)


# The story


def test_the_holder_that_woke_up_late_is_refused(guarded: FencedObject) -> None:
    guarded.put(b"in time", holder(41))
    guarded.advance(holder(42))
    assert guarded.get() == b"in time"
    with pytest.raises(StaleToken, match=r"token 41 .*'s3://shop/prices'.* token 42") as caught:
        guarded.put(b"too late", holder(41))
    assert (caught.value.resource, caught.value.token, caught.value.newest) == ("s3://shop/prices", 41, 42)
    guarded.put(b"by the new holder", holder(42))
    assert guarded.get() == b"by the new holder"
    assert guarded.newest() == Fence("s", 42, "nonce-42")


def test_nothing_is_there_before_the_first_put(guarded: FencedObject) -> None:
    assert (guarded.get(), guarded.newest()) == (None, None)
    guarded.advance(holder(1))
    assert (guarded.get(), guarded.newest()) == (None, Fence("s", 1, "nonce-1"))
    with pytest.raises(StaleToken):
        guarded.put(b"x", 0)


def test_a_deletion_keeps_the_fence(guarded: FencedObject, s3: MemoryS3) -> None:
    guarded.put(b"x", holder(42))
    guarded.delete(holder(42))
    assert guarded.get() is None
    assert list(s3.objects) == ["prices"]
    with pytest.raises(StaleToken):
        guarded.put(b"back again", holder(41))


def test_an_empty_content_is_one(guarded: FencedObject) -> None:
    guarded.put(b"", 1)
    assert guarded.get() == b""


def test_read_leases_and_text_are_refused_before_any_request(guarded: FencedObject, s3: MemoryS3) -> None:
    with pytest.raises(InvalidArgument, match="read lease"):
        guarded.put(b"x", holder(1, mode="read"))
    with pytest.raises(InvalidArgument, match="neither bytes nor"):
        guarded.put("text", 1)  # type: ignore[arg-type]  # what a user may try
    with pytest.raises(InvalidArgument, match="a day ahead"):
        guarded.advance(2**62)
    assert s3.calls == []


@pytest.mark.parametrize(
    ("bucket", "key", "options"),
    [
        ("", "k", {}),
        ("b", "", {}),
        ("b", "k" * 1000, {}),
        ("b", "\ud800", {}),
        ("b", "k", {"layout": "metadata"}),
    ],
)
def test_arguments(bucket: str, key: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        FencedObject(MemoryS3(), bucket, key, **options)
    with pytest.raises(InvalidArgument, match="has no get_object"):
        FencedObject(object(), "b", "k")


# The rule


class ObjectGuard:
    def __init__(self, s3: MemoryS3, guarded: FencedObject) -> None:
        self._s3, self._guarded = s3, guarded
        self.write, self.advance, self.move = guarded.put, guarded.advance, guarded.move
        self.content = guarded.get

    def stored(self) -> Mark | None:
        return mark_in(self._s3)


class AwaitedGuard:
    """Each call in a loop of its own."""

    def __init__(self, s3: MemoryS3, layout: Layout) -> None:
        self._s3 = s3
        self._guarded = AsyncFencedObject(AwaitedS3(s3), "shop", "prices", layout=layout)

    def write(self, content: bytes, presented: Presentable) -> None:
        asyncio.run(self._guarded.put(content, presented))

    def advance(self, presented: Presentable) -> None:
        asyncio.run(self._guarded.advance(presented))

    def move(self, source: str) -> None:
        asyncio.run(self._guarded.move(source))

    def content(self) -> bytes | None:
        return asyncio.run(self._guarded.get())

    def stored(self) -> Mark | None:
        return mark_in(self._s3)


def mark_in(s3: MemoryS3) -> Mark | None:
    found = s3.objects.get("prices")
    return None if found is None else decode_object("", Got(found, "")).header.mark


@pytest.mark.parametrize("layout", LAYOUTS)
@given(sequence=sequences)
def test_object_and_rule_give_the_same_decisions(
    layout: Layout, sequence: list[tuple[str, Presentable]]
) -> None:
    s3 = MemoryS3()
    compare_with_rule(ObjectGuard(s3, FencedObject(s3, "shop", "prices", layout=layout)), sequence)
    assert len(s3.objects) <= 2, "what was replaced is deleted"


@pytest.mark.realtime
@settings(max_examples=examples(15))
@pytest.mark.parametrize("layout", LAYOUTS)
@given(sequence=sequences)
def test_so_does_the_awaited_form(layout: Layout, sequence: list[tuple[str, Presentable]]) -> None:
    compare_with_rule(AwaitedGuard(MemoryS3(), layout), sequence)


# Conditions


def test_the_same_bytes_written_twice_are_two_versions(s3: MemoryS3, guarded: FencedObject) -> None:
    """An ETag alone would not tell them apart."""
    etags = set()
    for _ in range(3):
        guarded.put(b"same", holder(34))
        etags.add(s3.etag("prices"))
    assert len(etags) == 3


def test_a_newer_holder_between_read_and_write(s3: MemoryS3, guarded: FencedObject, layout: Layout) -> None:
    guarded.put(b"33", holder(33))
    other = FencedObject(s3, "shop", "prices", layout=layout)
    once(s3, lambda: other.put(b"33", holder(35)))
    with pytest.raises(StaleToken):
        guarded.put(b"34", holder(34))
    assert guarded.get() == b"33"
    assert len(s3.objects) == (1 if layout == "envelope" else 2), "what the refused one uploaded is deleted"


def test_the_same_holder_in_another_thread_is_no_conflict(s3: MemoryS3, guarded: FencedObject) -> None:
    other = FencedObject(s3, "shop", "prices")
    once(s3, lambda: other.put(b"first", holder(34)))
    guarded.put(b"second", holder(34))
    assert guarded.get() == b"second"


def once(s3: MemoryS3, do: Callable[[], None]) -> None:
    """Just before the next write of the key itself."""

    def before(key: str) -> None:
        if key == "prices":
            s3.before_put = lambda key: None
            do()

    s3.before_put = before


def test_others_that_change_it_each_time(s3: MemoryS3, guarded: FencedObject, layout: Layout) -> None:
    guarded.put(b"0", holder(34))
    before = dict(s3.objects)

    def meddle(key: str) -> None:
        if key == "prices":
            s3.objects["prices"] += b" "

    s3.before_put = meddle
    with pytest.raises(Conflict, match=f"{TRIES} times in a row"):
        guarded.put(b"1", holder(34))
    assert s3.objects.keys() == before.keys()


def test_an_answer_that_was_lost(s3: MemoryS3, guarded: FencedObject, layout: Layout) -> None:
    """The client library sends the PUT again, and its condition fails for what it has stored itself."""
    guarded.put(b"0", holder(33))

    def lose(key: str) -> None:
        if key == "prices":
            s3.after_put = lambda key: None
            FencedObject(s3, "shop", "prices", layout=layout).advance(holder(35))
            raise RefusedByStore(412, "PreconditionFailed")

    s3.after_put = lose
    guarded.put(b"1", holder(34))
    assert (guarded.get(), guarded.newest()) == (b"1", Fence("s", 35, "nonce-35"))
    assert len(s3.objects) == (1 if layout == "envelope" else 2)


def test_busy_is_tried_again(s3: MemoryS3, guarded: FencedObject) -> None:
    refusals = [409] * (TRIES - 1)

    def refuse(key: str) -> None:
        if refusals:
            raise RefusedByStore(refusals.pop(), "ConditionalRequestConflict")

    s3.before_put = refuse
    guarded.put(b"x", 1)
    assert guarded.get() == b"x"
    refusals += [409] * (2 * TRIES)
    with pytest.raises(Conflict, match="nothing was written"):
        guarded.put(b"y", 1)
    refusals.clear()
    assert guarded.get() == b"x"


@pytest.mark.parametrize("call", ["put", "advance"])
def test_what_is_deleted_meanwhile_is_not_made_anew(s3: MemoryS3, guarded: FencedObject, call: str) -> None:
    """The newest mark is gone with it, so nothing says that this holder is not a stale one."""
    guarded.put(b"x", holder(34))
    once(s3, lambda: s3.objects.__delitem__("prices"))
    with pytest.raises(Conflict, match="deleted while it was written"):
        guarded.put(b"y", holder(35)) if call == "put" else guarded.advance(holder(35))
    assert "prices" not in s3.objects


def test_stores_and_clients_without_conditions(s3: MemoryS3, guarded: FencedObject) -> None:
    class ParamValidationError(Exception):
        pass

    for error in (RefusedByStore(501, "NotImplemented"), ParamValidationError('Unknown "IfNoneMatch"')):

        def refuse(key: str, error: Exception = error) -> None:
            raise error

        s3.before_put = refuse
        with pytest.raises(Unsupported, match="conditional PUTs"):
            guarded.put(b"x", 1)


def test_other_errors_are_the_clients_and_say_what_is_not_known(s3: MemoryS3, guarded: FencedObject) -> None:
    def fail(error: Exception) -> None:
        raise error

    for error, is_noted in [(TimeoutError(), True), (RefusedByStore(403, "AccessDenied"), False)]:
        s3.before_put = lambda key, error=error: fail(error)  # type: ignore[misc]  # bound at once
        with pytest.raises(type(error)) as caught:
            guarded.put(b"x", 1)
        assert any("not known" in note for note in getattr(caught.value, "__notes__", [])) == is_noted


# What is in the store


@pytest.mark.parametrize(
    "found", [b"", b"plain", b"plain\ntext", b'{"holdfast_fence":1}', b'{"holdfast_fence":1}\n']
)
def test_an_object_that_no_guard_wrote_is_not_touched(
    s3: MemoryS3, guarded: FencedObject, found: bytes
) -> None:
    s3.objects["prices"] = found
    for call in (guarded.get, guarded.newest, lambda: guarded.put(b"x", 1), lambda: guarded.advance(1)):
        with pytest.raises(HoldfastError, match="not written by a guard"):
            call()
    assert s3.objects == {"prices": found}


def test_a_put_reads_the_header_alone(s3: MemoryS3) -> None:
    guarded = FencedObject(s3, "shop", "prices")
    guarded.put(b"x" * (1 << 20), 1)
    s3.calls.clear()
    guarded.put(b"y", 2)
    assert s3.calls == ["get prices bytes=0-65535", "put prices"]


def test_either_layout_reads_what_the_other_wrote(s3: MemoryS3) -> None:
    envelope, manifest = (FencedObject(s3, "shop", "prices", layout=each) for each in LAYOUTS)
    for writer, reader, content in [
        (envelope, manifest, b"1"),
        (manifest, envelope, b"2"),
        (envelope, manifest, b"3"),
    ]:
        writer.put(content, 1)
        assert reader.get() == content
    assert list(s3.objects) == ["prices"]


def test_an_envelope_has_a_bound_and_a_manifest_takes_files(s3: MemoryS3) -> None:
    envelope, manifest = (FencedObject(s3, "shop", "prices", layout=each) for each in LAYOUTS)
    with pytest.raises(InvalidArgument, match="layout='manifest'"):
        envelope.put(bytes(MAX_ENVELOPE_BYTES + 1), 1)
    with pytest.raises(InvalidArgument, match="layout='manifest'"):
        envelope.put(io.BytesIO(b"x"), 1)
    assert s3.calls == []
    content = b"0123456789" * 300_000
    manifest.put(io.BytesIO(content), 1)
    for guarded in (envelope, manifest):
        copy = io.BytesIO()
        assert guarded.download(copy)
        assert copy.getvalue() == content
    envelope.delete(1)
    assert not manifest.download(io.BytesIO())


def test_a_reader_that_is_overtaken_reads_the_new_content(s3: MemoryS3) -> None:
    manifest = FencedObject(s3, "shop", "prices", layout="manifest")
    manifest.put(b"old", 1)
    plan = ObjectPlans("", "prices", "manifest").get()
    request = next(plan)
    request = plan.send(Got(s3.objects["prices"], ""))
    manifest.put(b"new", 1)
    assert request.key not in s3.objects
    request = plan.send(None)
    request = plan.send(Got(s3.objects["prices"], ""))
    assert s3.objects[request.key] == b"new"


def test_content_that_is_missing_for_good(s3: MemoryS3) -> None:
    manifest = FencedObject(s3, "shop", "prices", layout="manifest")
    manifest.put(b"x", 1)
    del s3.objects[next(key for key in s3.objects if key != "prices")]
    with pytest.raises(HoldfastError, match="that is not there: prices\\."):
        manifest.get()


def test_what_cannot_be_deleted_stays_and_the_write_counts(
    s3: MemoryS3, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(**_: str) -> None:
        raise RefusedByStore(403, "AccessDenied")

    manifest = FencedObject(s3, "shop", "prices", layout="manifest")
    manifest.put(b"old", 41)
    monkeypatch.setattr(s3, "delete_object", refuse)
    manifest.put(b"new", 42)
    assert manifest.get() == b"new"
    assert "is left behind" in caplog.text
    once(s3, lambda: FencedObject(s3, "shop", "prices").put(b"newer", 44))
    with pytest.raises(StaleToken):
        manifest.put(b"late", 43)


def test_too_many_peers_for_a_header(guarded: FencedObject) -> None:
    crowd = replace(holder(10_000), peers=tuple(range(20_000)))
    with pytest.raises(InvalidArgument, match="peers"):
        guarded.put(b"x", crowd)


def test_the_wrong_kind_of_client(s3: MemoryS3) -> None:
    with pytest.raises(InvalidArgument, match="use AsyncFencedObject"):
        FencedObject(AwaitedS3(s3), "shop", "prices").put(b"x", 1)


@pytest.mark.realtime
def test_the_wrong_kind_of_client_awaited(s3: MemoryS3) -> None:
    with pytest.raises(InvalidArgument, match="use FencedObject"):
        asyncio.run(AsyncFencedObject(s3, "shop", "prices").put(b"x", 1))
    assert s3.objects == {}


# Every interleaving of the requests of two holders


def test_no_interleaving_of_requests_loses_an_update_or_lets_a_stale_one_in(layout: Layout) -> None:
    """The old holder's put against the new one's advance, get and put, which appends to what it read."""
    for schedule in schedules(old=2 if layout == "envelope" else 3, new=6 if layout == "envelope" else 9):
        s3 = MemoryS3()
        FencedObject(s3, "shop", "prices", layout=layout).put(b"0", holder(40))
        plans = ObjectPlans("prices", "prices", layout, fraction=lambda: 0.0)
        old, new = Steps(s3, old_holder(plans)), Steps(s3, new_holder(plans))
        for turn in schedule:
            (old if turn == "old" else new).step()
        old.finish()
        new.finish()
        content = FencedObject(s3, "shop", "prices").get()
        assert new.error is None, schedule
        if old.error is None:
            assert content == b"0 41 42", schedule
        else:
            assert isinstance(old.error, StaleToken), schedule
            assert content == b"0 42", schedule


def schedules(old: int, new: int) -> Iterator[list[str]]:
    for places in combinations(range(old + new), old):
        yield ["old" if each in places else "new" for each in range(old + new)]


def old_holder(plans: ObjectPlans) -> Plan[None]:
    yield from plans.put(b"0 41", Mark(41, "s", "a"))


def new_holder(plans: ObjectPlans) -> Plan[None]:
    mark = Mark(42, "s", "b")
    yield from plans.advance(mark)
    found = yield from plans.get()
    yield from plans.put((found or b"") + b" 42", mark)


class Steps:
    """A plan whose requests are carried out one at a time."""

    def __init__(self, s3: MemoryS3, plan: Plan[None]) -> None:
        self._client = FencedObject(s3, "shop", "prices")
        self._plan = plan
        self._answer: Any = None
        self._is_over = False
        self.error: Exception | None = None

    def step(self) -> None:
        """One request; pauses are none."""
        while not self._is_over:
            try:
                request = self._plan.send(self._answer)
            except StopIteration:
                self._is_over = True
            except HoldfastError as error:
                self.error, self._is_over = error, True
            else:
                self._answer = self._client._carry_out(request)
                if not isinstance(request, Pause):
                    return

    def finish(self) -> None:
        while not self._is_over:
            self.step()


@pytest.mark.parametrize(
    ("script", "lost", "total"),
    [(READ_MODIFY_WRITE * 2, 22, 70), (("advance", *READ_MODIFY_WRITE * 2), 0, 252)],
)
def test_lost_updates(layout: Layout, script: tuple[str, ...], lost: int, total: int) -> None:
    """As ``test_interleavings`` counts them: a guard that checks writes alone is not enough."""
    outcomes = []
    for schedule in interleavings(len(script)):
        guarded = FencedObject(MemoryS3(), "shop", "prices", layout=layout)
        outcomes.append(loses_an_update(schedule, script, passes(guarded)))
    assert (sum(outcomes), len(outcomes)) == (lost, total)


def passes(guarded: FencedObject) -> Callable[[int], bool]:
    def guard(token: int) -> bool:
        try:
            guarded.put(b"", holder(token))
        except StaleToken:
            return False
        return True

    return guard


# A real store


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """boto3's client of SeaweedFS."""
    for name, value in shared_seaweedfs().environment().items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    yield client
    client.close()


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name}/prices"


def bucket() -> str:
    return shared_seaweedfs().bucket


@pytest.mark.realtime
def test_an_etag_is_no_version_so_a_token_in_metadata_lets_the_stale_holder_in(store: Any, key: str) -> None:
    """What this guard is made to prevent, on a real store."""
    where = {"Bucket": bucket(), "Key": key, "Body": b"same"}
    seen = store.put_object(**where, Metadata={"token": "33"})["ETag"]
    newer = store.put_object(**where, Metadata={"token": "35"}, IfMatch=seen)["ETag"]
    assert newer == seen
    store.put_object(**where | {"Body": b"stale"}, Metadata={"token": "34"}, IfMatch=seen)


@pytest.mark.realtime
def test_on_a_real_store(store: Any, key: str, layout: Layout) -> None:
    guarded = FencedObject(store, bucket(), key, layout=layout)
    assert guarded.get() is None
    guarded.advance(holder(40))
    guarded.put(b"same", holder(41))
    guarded.put(b"same", holder(42))
    with pytest.raises(StaleToken):
        guarded.put(b"late", holder(41))
    assert (guarded.get(), guarded.newest()) == (b"same", Fence("s", 42, "nonce-42"))
    if layout == "manifest":
        content = b"0123456789" * 1_000_000
        guarded.put(io.BytesIO(content), holder(42))
        copy = io.BytesIO()
        assert guarded.download(copy)
        assert copy.getvalue() == content
    guarded.delete(holder(42))
    assert guarded.get() is None
    found = store.list_objects_v2(Bucket=bucket(), Prefix=key)["Contents"]
    assert [each["Key"] for each in found] == [key]


@pytest.mark.realtime
def test_on_a_real_store_awaited(store: Any, key: str, layout: Layout) -> None:
    async def main() -> None:
        guarded = AsyncFencedObject(AwaitedS3(store), bucket(), key, layout=layout)
        await guarded.advance(holder(41))
        await guarded.put(b"x", holder(42))
        with pytest.raises(StaleToken):
            await guarded.put(b"late", holder(41))
        copy = io.BytesIO()
        assert await guarded.download(copy)
        assert (copy.getvalue(), await guarded.newest()) == (b"x", Fence("s", 42, "nonce-42"))
        await guarded.delete(holder(42))
        assert await guarded.get() is None

    asyncio.run(main())


@pytest.mark.realtime
def test_a_bucket_that_is_not_there(store: Any) -> None:
    with pytest.raises(ClientError, match="NoSuchBucket"):
        FencedObject(store, "missing", "x").put(b"x", 1)


@pytest.mark.realtime
def test_no_update_is_lost_between_holders_that_all_believe_to_hold_the_lock(
    store: Any, key: str, layout: Layout
) -> None:
    FencedObject(store, bucket(), key, layout=layout).put(b"", 0)
    together = threading.Barrier(4)
    outcomes: dict[int, str] = {}

    def count(token: int) -> None:
        guarded = FencedObject(store, bucket(), key, layout=layout)
        together.wait(20)
        try:
            until_no_conflict(partial(guarded.advance, token))
            for _ in range(6):
                content = (guarded.get() or b"") + b"%d " % token
                until_no_conflict(partial(guarded.put, content, token))
            outcomes[token] = "finished"
        except StaleToken:
            outcomes[token] = "refused"

    threads = [threading.Thread(target=count, args=(token,)) for token in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log = [int(each) for each in (FencedObject(store, bucket(), key).get() or b"").split()]
    assert log == sorted(log), "an older holder wrote after a newer one"
    assert (outcomes[4], log.count(4)) == ("finished", 6)


def until_no_conflict(do: Callable[[], None]) -> None:
    """Nothing was written, so it may be done again: no older holder has come in since this one advanced."""
    while True:
        try:
            return do()
        except Conflict:
            continue


WRITER = """
    import sys, boto3
    from holdfast.errors import StaleToken
    from holdfast.fencing import FencedObject

    guarded = FencedObject(boto3.client("s3"), sys.argv[1], sys.argv[2])
    print("ready")
    for line in sys.stdin:
        try:
            guarded.put(line.strip().encode(), 41)
            print("done")
        except StaleToken as refusal:
            print("refused, newest is", refusal.newest)
"""


@pytest.mark.realtime
def test_a_holder_that_was_stopped_is_refused_when_it_wakes(store: Any, key: str) -> None:
    guarded = FencedObject(store, bucket(), key)
    with run_python(WRITER, bucket(), key) as zombie:
        zombie.expect("ready")
        zombie.send("in time")
        zombie.expect("done")
        zombie.stop()
        guarded.advance(42)
        assert guarded.get() == b"in time"
        zombie.send("too late")
        zombie.cont()
        assert zombie.expect("refused, newest is") == "42"
    assert guarded.get() == b"in time"
