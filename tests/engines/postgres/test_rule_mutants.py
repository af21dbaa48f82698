"""The comparison sees: each translation that is broken on purpose answers, stores or wakes something else."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import psycopg
import pytest

from engines.postgres.twin import Rule, Twin, install_rule, quiet_moves
from holdfast.rules.requests import Refresh, Renew
from rules.moves import KINDS, handover_moves, long_moves
from support.servers import shared_postgresql

SEEDS = 40
HELD_BY_ONE = "cardinality(l.holders) = 1 AND (l.holders[1]).nonce = p_nonce"

MUTANTS: dict[str, tuple[str, str]] = {
    "a turn lasts a moment longer": ("w.turn_at + 2.0 <= r.next_at", "w.turn_at + 2.0 < r.next_at"),
    "a missed turn costs only itself": (
        "w.expires_at > r.next_at AND w.client <> ALL (v_late)",
        "w.expires_at > r.next_at AND w.turn_at + 2.0 > r.next_at IS NOT FALSE",
    ),
    "a lease lasts a moment longer": ("h.expires_at > r.next_at)", "h.expires_at >= r.next_at)"),
    "turns are dealt now, not when they began": (
        "r.queue := @schema@.turns_1(r, r.next_at);",
        "r.queue := @schema@.turns_1(r, p_now);",
    ),
    "a reader passes a writer": (
        "p_held = 0 OR (p_mode = 'read' AND p_writers = 0)",
        "p_mode = 'read' OR p_held = 0",
    ),
    "one permit too many": ("p_held < p_permits", "p_held <= p_permits"),
    "turns are forgotten behind a writer": (
        "IF w.mode = 'write' THEN\n                v_writers := v_writers + 1;",
        "IF w.mode = 'write' THEN",
    ),
    "a newcomer passes all waiters": ("IF a.fair AND r.queue IS NOT NULL THEN", "IF false THEN"),
    "barging is for those in the queue too": (
        "OR (NOT a.fair AND @schema@.admits_1(r.kind, v_held, v_writers, a.mode, r.permits));",
        "OR @schema@.admits_1(r.kind, v_held, v_writers, a.mode, r.permits);",
    ),
    "tokens are the clock's alone": (
        "v_token bigint := greatest(r.token + 1, p_wall);",
        "v_token bigint := p_wall;",
    ),
    "tokens ignore the clock": (
        "v_token bigint := greatest(r.token + 1, p_wall);",
        "v_token bigint := r.token + 1;",
    ),
    "a quick grant ignores the clock": (
        "token = greatest(l.token + 1, v_wall),\n            holders",
        "token = l.token + 1,\n            holders",
    ),
    "a quick grant overlooks the queue": (
        "AND l.holders IS NULL AND l.queue IS NULL AND l.ended",
        "AND l.holders IS NULL AND l.ended",
    ),
    "a quick grant overlooks what was withdrawn": (
        "AND l.queue IS NULL AND l.ended IS NULL AND l.watchers IS NULL\n            AND l.kind",
        "AND l.queue IS NULL AND l.watchers IS NULL\n            AND l.kind",
    ),
    "a quick grant overlooks the kind": ("AND l.kind = p_kind AND (p_kind", "AND (p_kind"),
    "a quick release asks nobody who it is": (
        f"AND l.next_at > v_now AND {HELD_BY_ONE}\n            AND",
        "AND l.next_at > v_now AND cardinality(l.holders) = 1\n            AND",
    ),
    "a quick release of what has expired": (
        f"AND l.next_at > v_now AND {HELD_BY_ONE}\n            AND",
        "AND cardinality(l.holders) = 1 AND (l.holders[1]).nonce = p_nonce\n            AND",
    ),
    "a renewal brings back what has expired": (
        f"AND l.next_at > v_now AND {HELD_BY_ONE}\n        AND",
        "AND cardinality(l.holders) = 1 AND (l.holders[1]).nonce = p_nonce\n        AND",
    ),
    "a renewal goes beyond max_hold": (
        "h.expires_at := greatest(h.expires_at, least(p_now + a.ttl, h.until));",
        "h.expires_at := greatest(h.expires_at, p_now + a.ttl);",
    ),
    "a renewal shortens": (
        "h.expires_at := greatest(h.expires_at, least(p_now + a.ttl, h.until));",
        "h.expires_at := least(p_now + a.ttl, h.until);",
    ),
    "a release is not remembered": (
        "IF p_linger <= 0 THEN\n        RETURN p_ended;",
        "IF p_linger <= 60 THEN\n        RETURN p_ended;",
    ),
    "what is remembered is never forgotten": (
        "WHERE e.forget_at > p_now);\n        r.ended",
        "WHERE true);\n        r.ended",
    ),
    "a withdrawal leaves the place in the queue": (
        "IF a.op = 'withdraw' OR v_index IS NOT NULL THEN",
        "IF v_index IS NOT NULL THEN",
    ),
    "a release takes the place in the queue too": (
        "IF a.op = 'withdraw' OR v_index IS NOT NULL THEN",
        "IF true THEN",
    ),
    "the next in line is not woken": ("EXIT WHEN v_waiter.turn_at IS NULL;", "EXIT;"),
    "who has its turn is woken again": (
        "IF (p_before.queue[@schema@.waiter_at_1(p_before.queue, v_waiter.nonce)]).turn_at IS NULL THEN",
        "IF true THEN",
    ),
    "watchers hear of renewals": ("AND (p_news OR @schema@.told_1(p_before) <> @schema@.told_1(r))", ""),
    "watchers are not told of values": ("(p_news OR @schema@.told_1(p_before)", "(@schema@.told_1(p_before)"),
    "a broken holder is not woken": ("IF v_victim.client <> '' THEN", "IF false THEN"),
    "breaking ignores the token": ("WHERE a.token IS NULL OR h.token = a.token);", "WHERE true);"),
    "an exported lease keeps its client": ("h.client := '';\n", ""),
    "every client may adopt": ("IF a.op = 'adopt' AND h.client <> a.client AND (", "IF false AND ("),
    "the secret is not compared": ("h.client = '' AND h.owner = a.seal", "h.client = ''"),
    "the secret is not kept": ("h.owner := a.seal;\n", ""),
    "a reader keeps the writer's token": (
        "h.token := @schema@.next_token_1(r, p_wall);",
        "h.token := h.token;",
    ),
    "every client may set the value": (
        "IF v_index IS NULL THEN\n        s.reply := @schema@.gone_1(r, a.nonce);",
        "IF v_index IS NULL AND a.op <> 'renew' THEN\n        s.reply := @schema@.gone_1(r, a.nonce);",
    ),
    "look a turn too early": ("+ v_ahead * 2.0", ""),
    "exported leases block nobody": (
        "IF h.client <> '' AND h.client <> ALL (v_blockers) THEN",
        "IF h.client <> ALL (v_blockers) THEN",
    ),
    "peers are all": ("AND o.nonce <> h.nonce", ""),
    "a refresh keeps nobody": (
        "r.queue[v_places[i]].expires_at := v_now + 5.0;",
        "r.queue[v_places[i]].expires_at := v_now + 4.0;",
    ),
    "a watcher is kept for ever": (
        "WHERE o.expires_at > p_now);\n        r.watchers",
        "WHERE true);\n        r.watchers",
    ),
    "time passes unseen": (
        "r.next_at := @schema@.next_at_1(r.holders, r.queue);\n        CONTINUE",
        "r.next_at := NULL;\n        CONTINUE",
    ),
}


@pytest.fixture
def connection() -> Iterator[psycopg.Connection]:
    with psycopg.connect(shared_postgresql().url, autocommit=True) as connection:
        # Some mutants never come to an end.
        connection.execute("SET statement_timeout = '1s'")
        yield connection


def is_caught(rule: Rule) -> bool:
    try:
        Twin(rule).play(handover_moves())
    except AssertionError:
        return True
    for seed in range(SEEDS):
        for kind in KINDS:
            twin = Twin(rule)
            try:
                twin.play(quiet_moves(kind, seed))
                twin = Twin(rule)
                twin.play(long_moves(kind, seed))
                holding = [Renew(holder.nonce, 7.25) for holder in twin.record.holders]
                waiting = [Refresh(waiter.nonce) for waiter in twin.record.queue]
                twin.renew_batch([*holding, *waiting, Refresh("w1")], 0)
                twin.now += 8.0
                twin.renew_batch([*holding, *waiting, Refresh("w1")], 0)
            except AssertionError:
                return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_comparison_catches(connection: psycopg.Connection, name: str) -> None:
    schema = f"mutant_{secrets.token_hex(4)}"
    install_rule(connection, schema, MUTANTS[name])
    assert is_caught(Rule(connection, schema)), f"nothing noticed that {name}"
    connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())
