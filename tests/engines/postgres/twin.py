"""The rule in Python and its translation in a server, side by side, on a clock that the test sets.

``Twin.step`` asks the same of both and asserts that they answer the same, store the same, and wake the same.
The server runs the shipped script with a few things replaced: the two functions that read the clock;
``pg_notify``, whose calls are written down instead; and the sweep, which would now and then forget what
earlier tests stored, for the clock leaps by decades.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
from collections.abc import Iterable, Sequence

import psycopg
from psycopg import pq

from holdfast.engines.postgres.codec import Call, decode_replies, decode_reply, decode_snapshot
from holdfast.engines.postgres.scripts import install_script
from holdfast.engines.postgres.statements import Statements
from holdfast.rules.record import EMPTY, Record, StoredValue
from holdfast.rules.requests import Break, Refresh, Renew, Reply, Request, Wake, Watch, Withdraw
from holdfast.rules.transitions import Step, apply, apply_in_order
from rules.moves import Move, aimed, long_moves

__all__ = ["Rule", "Twin", "install_rule", "play_in_order", "quiet_moves"]

STAND_INS = """
CREATE OR REPLACE FUNCTION @schema@.clock_1() RETURNS float8
LANGUAGE sql VOLATILE AS $$ SELECT current_setting('test.now')::float8 $$;
CREATE OR REPLACE FUNCTION @schema@.wall_us_1(p_now float8) RETURNS bigint
LANGUAGE sql VOLATILE AS $$ SELECT current_setting('test.wall')::bigint $$;
CREATE OR REPLACE FUNCTION @schema@.note_wake(p_channel text, p_payload text) RETURNS text
LANGUAGE sql VOLATILE AS $$
    SELECT set_config(
        'test.woken', current_setting('test.woken') || p_channel || ' ' || p_payload || ';', false
    )
$$;
CREATE OR REPLACE FUNCTION @schema@.sweep_1(p_pages integer, p_now float8) RETURNS integer
LANGUAGE sql AS $$ SELECT 0 $$;
"""

SETTING = (
    "SELECT set_config('test.now', ${}, false), set_config('test.wall', ${}, false),"
    " set_config('test.woken', '', false), "
)

STORED = """
SELECT json_build_array(
    coalesce(current_setting('test.woken', true), ''),
    (SELECT @schema@.snapshot_1(l, 0) FROM @schema@.locks l WHERE l.namespace = $1 AND l.name = $2),
    (SELECT json_build_array(encode(v.data, 'base64'), v.token, v.forget_at_us)
        FROM @schema@.values v WHERE v.namespace = $1 AND v.name = $2)
)
"""


def install_rule(
    connection: psycopg.Connection, schema: str, replacing: tuple[str, str] | None = None
) -> None:
    """The part of the shipped script about leases, with the stand-ins; a mutant replaces one more part."""
    text = install_script(schema).partition("-- Session locks:")[0]
    if replacing is not None:
        old, new = (part.replace("@schema@", schema) for part in replacing)
        assert text.count(old) == 1, f"{text.count(old)} places in the script say {old!r}"
        text = text.replace(old, new)
    text = text.replace("pg_notify(", f"{schema}.note_wake(")
    connection.execute((text + STAND_INS.replace("@schema@", schema)).encode())


class Rule:
    """The translation in one schema of a server, and the records that it keeps there."""

    def __init__(self, connection: psycopg.Connection, schema: str) -> None:
        self._connection = connection.pgconn
        self._stored = STORED.replace("@schema@", schema).encode()
        self.statements = Statements(schema, "space")
        self._numbers = itertools.count()
        self._prefix = schema
        self._prepared: dict[bytes, bytes] = {}

    def new_name(self) -> str:
        return f"name-{next(self._numbers)}"

    def call(self, call: Call, now: float, wall_us: int) -> bytes:
        (_, text, formats), parameters = call
        count = len(parameters)
        asked = SETTING.format(count + 1, count + 2).encode() + text.removeprefix(b"SELECT ")
        clocks = [repr(now).encode(), str(wall_us).encode()]
        return _only(self._execute(asked, [*parameters, *clocks], [*formats, 0, 0]), 3)

    def _execute(
        self, text: bytes, parameters: Sequence[bytes | None], formats: list[int]
    ) -> pq.abc.PGresult:
        name = self._prepared.get(text)
        if name is None:
            name = self._prepared[text] = f"{self._prefix}_{len(self._prepared)}".encode()
            self._connection.prepare(name, text)
        return self._connection.exec_prepared(name, parameters, formats)  # type: ignore[arg-type]  # None is NULL

    def stored(self, name: str) -> tuple[Record, set[Wake]]:
        """What is stored, as it is stored, and whom the last call woke."""
        result = self._execute(self._stored, [b"space", name.encode()], [1, 1])
        woken, told, value = json.loads(_only(result, 0))
        record = EMPTY if told is None else decode_snapshot(told.encode()).record
        if value is not None:
            record = record._replace(value=StoredValue(base64.b64decode(value[0]), *value[1:]))
        return record, {Wake(*each.removeprefix("holdfast_").split(" ")) for each in woken.split(";") if each}


def _only(result: pq.abc.PGresult, column: int) -> bytes:
    message = result.error_message.decode()
    assert not message, message
    value = result.get_value(0, column)
    assert value is not None
    return value


def quiet_moves(kind: str, seed: int, length: int = 20) -> list[Move]:
    """Few waiters or watchers: the load of most locks, which has fast paths of its own."""
    chance = random.Random(seed)
    return [
        move
        for move in long_moves(kind, seed, length * 3)
        if not isinstance(move.request, Watch | Break | Withdraw) or chance.random() < 0.05
        if not getattr(move.request, "wait", False) or chance.random() < 0.05
        if not getattr(move.request, "linger", 0) or chance.random() < 0.05
    ]


class Twin:
    """One record, kept twice."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.name = rule.new_name()
        self.record = EMPTY
        self.now = 1000.0

    def play(self, sequence: Iterable[Move]) -> None:
        for move in sequence:
            self.now += move.pause
            self.step(aimed(move, self.record), move.wall_us)

    def step(self, request: Request, wall_us: int) -> Step:
        told = f"{request} at {self.now} on {self.record}"
        expected = apply(self.record, request, self.now, wall_us)
        answer = self.rule.call(self.rule.statements.apply(self.name, request), self.now, wall_us)
        assert decode_reply(answer, request) == expected.reply, told
        self._compare(expected.record, set(expected.wake), told)
        return expected

    def _compare(self, expected: Record, woken: set[Wake], told: str) -> None:
        stored, wakes = self.rule.stored(self.name)
        assert stored == expected, told
        assert wakes == woken, told
        self.record = expected

    def renew_batch(self, requests: list[Renew | Refresh], wall_us: int) -> None:
        """All at once; refreshes tell where one stands when all of them are done."""
        requests = sorted(requests, key=lambda request: isinstance(request, Refresh))
        record = self.record
        wakes: set[Wake] = set()
        replies: list[Reply] = []
        for request in requests:
            done = apply(record, request, self.now, wall_us)
            record = done.record
            wakes |= set(done.wake)
            replies.append(done.reply)
        replies = [
            apply(record, request, self.now, wall_us).reply if isinstance(request, Refresh) else reply
            for request, reply in zip(requests, replies, strict=True)
        ]
        call = self.rule.statements.renew_batch([(self.name, request) for request in requests])
        answer = self.rule.call(call, self.now, wall_us)
        told = f"{requests} at {self.now} on {self.record}"
        assert decode_replies(answer, requests) == replies, told
        self._compare(record, wakes, told)


def play_in_order(
    rule: Rule, names: list[str], steps: list[tuple[str, Request]], now: float, stop: bool
) -> None:
    """Several names at once."""
    records = {name: rule.stored(name)[0] for name in names}
    expected = apply_in_order(records, steps, now, 0, stop)
    answer = rule.call(rule.statements.apply_in_order(tuple(steps), stop), now, 0)
    assert decode_replies(answer, [request for _, request in steps]) == [step.reply for step in expected]
    for (name, _), step in zip(steps, expected, strict=False):
        records[name] = step.record
    assert {name: rule.stored(name)[0] for name in names} == records
    assert rule.stored(names[0])[1] == {wake for step in expected for wake in step.wake}
