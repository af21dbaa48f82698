"""The scripts in a Cluster: one slot for everything of a lock, wake-ups that stay there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import hiredis
import pytest

from engines.redis.wire import Wire
from holdfast.engines.redis.codec import decode_all, encode_in_order, encode_renew_batch
from holdfast.engines.redis.keys import Keyspace, channel_of, key_of, slot_of, value_key_of
from holdfast.rules.requests import (
    Acquire,
    Busy,
    Done,
    Granted,
    Inspect,
    Queued,
    Release,
    Renew,
    Request,
    SetValue,
    Snapshot,
    Watch,
)
from support.servers import shared_redis_cluster

SPACE = Keyspace("cluster scripts", sharded=True)
NAMES = ("invoices", "orders/{42}", "{42}", "}a", "%a", "a}b", "a{}b{c}", "{{a}}", "é", "}{")


def ask_for(nonce: str, client: str = "c1", wait: bool = False) -> Acquire:
    return Acquire(nonce, client, f"host/1/{nonce}", "lock", "exclusive", 30.0, wait)


@pytest.fixture(scope="module")
def wires() -> Iterator[dict[int, Wire]]:
    """A connection to every master, by its port."""
    wires = {master.port: Wire(master, SPACE.scripts) for master in shared_redis_cluster().masters}
    yield wires
    for wire in wires.values():
        wire.close()


def wire_of(wires: dict[int, Wire], name: str) -> Wire:
    return wires[shared_redis_cluster().owner(slot_of(SPACE, name)).port]


@pytest.mark.parametrize("name", NAMES)
def test_everything_of_a_name_is_in_its_slot(name: str, wires: dict[int, Wire]) -> None:
    cluster, wire = shared_redis_cluster(), wire_of(wires, name)
    slots = {cluster.slot_of(key) for key in (key_of(SPACE, name), value_key_of(SPACE, name))}
    assert slots == {slot_of(SPACE, name)}
    assert cluster.slot_of(channel_of(SPACE, "c1", name)) == slot_of(SPACE, name)
    assert isinstance(wire.apply(SPACE, name, ask_for("n1")), Granted)
    assert wire.apply(SPACE, name, SetValue("n1", b"x", 60.0)) == Done()
    assert isinstance(wire.apply(SPACE, name, Inspect()), Snapshot)
    assert isinstance(wire.apply(SPACE, name, Watch("w1", "c9")), Snapshot)
    assert wire.apply(SPACE, name, Release("n1")) == Done()


@pytest.mark.parametrize("name", NAMES)
def test_wake_ups_come_to_the_sharded_channel(name: str, wires: dict[int, Wire]) -> None:
    wire = wire_of(wires, name)
    with closing(Wire(shared_redis_cluster().owner(slot_of(SPACE, name)))) as subscriber:
        channel = channel_of(SPACE, "c2", name)
        subscriber.ask(b"SSUBSCRIBE", channel)
        assert isinstance(wire.apply(SPACE, name, ask_for("n1")), Granted)
        waiting = ask_for("n2", "c2", wait=True)._replace(fair=False)  # it gets its turn, and no more
        assert isinstance(wire.apply(SPACE, name, waiting), Queued)
        assert wire.apply(SPACE, name, Release("n1")) == Done()
        assert subscriber.read() == [b"smessage", channel, b"n2"]
        assert isinstance(wire.apply(SPACE, name, waiting), Granted)
        assert wire.apply(SPACE, name, Release("n2")) == Done()


def test_several_names_of_one_tag_in_order(wires: dict[int, Wire]) -> None:
    steps = [(f"part {number} of {{basket}}", ask_for(f"n{number}")) for number in range(3)]
    steps.append((steps[0][0], ask_for("n9")))
    wire = wire_of(wires, steps[0][0])
    told = decode_all(steps, wire.call(encode_in_order(SPACE, steps, stop_when_refused=True)))
    assert [type(one) for one in told] == [Granted, Granted, Granted, Busy]


def test_names_of_several_slots_are_refused_in_order(wires: dict[int, Wire]) -> None:
    steps = [("a", ask_for("n1")), ("b", ask_for("n2"))]
    with pytest.raises(hiredis.ReplyError, match="CROSSSLOT"):
        wire_of(wires, "a").call(encode_in_order(SPACE, steps, stop_when_refused=True))


def test_a_batch_for_each_slot(wires: dict[int, Wire]) -> None:
    steps: list[tuple[str, Request]] = []
    for number in range(60):
        name = f"{number}/{{tag {number % 5}}}"
        assert isinstance(wire_of(wires, name).apply(SPACE, name, ask_for(f"n{number}")), Granted)
        steps.append((name, Renew(f"n{number}", 60.0)))
    told: dict[int, object] = {}
    for batch in encode_renew_batch(SPACE, steps):
        mine = [steps[place] for place in batch.places]
        answers = decode_all(mine, wire_of(wires, mine[0][0]).call(batch.command))
        told.update(zip(batch.places, answers, strict=True))
    assert told == dict.fromkeys(range(60), Done())


def test_another_node_says_where_it_is(wires: dict[int, Wire]) -> None:
    name = "elsewhere"
    stranger = next(wire for wire in wires.values() if wire is not wire_of(wires, name))
    with pytest.raises(hiredis.ReplyError, match=f"MOVED {slot_of(SPACE, name)} "):
        stranger.apply(SPACE, name, ask_for("n1"))
