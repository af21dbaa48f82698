"""One node of a quorum: it issues each number once, and only to the attempt that has its claim."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings

from holdfast.rules import node
from holdfast.rules.node.transitions import BROKEN_KEPT_US, NOT_EXPORTED, TOMBSTONES_MAX
from holdfast.rules.record import MAX_TOKEN
from rules.node_moves import EXPECTED, READY, NodeMove, made, moves
from support.thorough import examples

SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND


@dataclass
class OneNode:
    """A node, one name on it, and a clock that the test moves."""

    mark: node.Mark = READY
    record: node.NodeRecord = node.UNUSED
    now: int = NOW
    expected: str = EXPECTED
    issued: list[int] = field(default_factory=list)

    def ask(self, request: node.NodeRequest) -> node.NodeReply:
        step = node.apply(self.mark, self.record, request, self.expected, self.now)
        self.mark, self.record = step.mark, step.record
        return step.reply

    def acquire(
        self, owner: str, hint: int | None = None, ttl: int = 5 * SECOND, max_hold: int = 0, **more: Any
    ) -> node.NodeReply:
        ask = node.Acquire(owner, self.now if hint is None else hint, ttl, max_hold, "c", "h/1/t", "{}")
        return self.ask(ask._replace(**more))

    def must_issue(self, owner: str, hint: int | None = None) -> int:
        reply = self.acquire(owner, hint)
        assert isinstance(reply, node.Issued)
        return reply.number


# --- taking -------------------------------------------------------------------------------------


def test_the_hint_is_issued_where_it_is_new() -> None:
    one = OneNode()
    assert one.acquire("a") == node.Issued(NOW)
    assert one.record.fence == NOW


def test_a_number_that_was_issued_is_never_issued_again() -> None:
    one = OneNode()
    first = one.must_issue("a")
    assert one.ask(node.Release("a")) == node.Applied()
    assert one.must_issue("b", first) == first + 1
    one.ask(node.Release("b"))
    assert one.must_issue("c", first - 5) == first + 2


def test_the_same_attempt_again_gets_the_same_answer() -> None:
    one = OneNode()
    first = one.must_issue("a")
    one.now += 1000
    assert one.acquire("a") == node.Issued(first)
    assert one.record.claim is not None
    assert one.record.claim.expires_at == NOW + 5 * SECOND


def test_one_at_a_time() -> None:
    one = OneNode()
    one.must_issue("a")
    reply = one.acquire("b")
    assert isinstance(reply, node.HeldByOther)
    assert (reply.claim.owner, reply.now) == ("a", NOW)
    assert one.record.fence == NOW


def test_what_ran_out_is_free_and_its_numbers_stay_used() -> None:
    one = OneNode()
    first = one.must_issue("a")
    one.now += 5 * SECOND - 1
    assert isinstance(one.acquire("b"), node.HeldByOther)
    one.now += 1
    assert one.must_issue("b", first) == first + 1


@pytest.mark.parametrize("off", [-node.HINT_SPAN_US - 1, node.HINT_SPAN_US + 1])
def test_a_hint_far_from_the_nodes_own_clock_is_refused(off: int) -> None:
    one = OneNode()
    assert one.acquire("a", NOW + off) == node.ClockSkewed(NOW)
    assert one.record == node.UNUSED
    assert one.acquire("a", NOW + off + (1 if off < 0 else -1)) != node.ClockSkewed(NOW)


def test_a_withdrawn_attempt_that_arrives_late_is_refused() -> None:
    one = OneNode()
    assert one.ask(node.Release("a", 60 * SECOND)) == node.Lost("expired")
    one.now += 59 * SECOND
    assert one.acquire("a") == node.Lost("withdrawn")
    assert one.record.claim is None
    one.now += SECOND
    assert isinstance(one.acquire("a"), node.Issued)


def test_an_attempt_that_had_arrived_needs_no_memory_of_its_end() -> None:
    one = OneNode()
    one.must_issue("a")
    assert one.ask(node.Release("a", 60 * SECOND)) == node.Applied()
    assert one.record == node.NodeRecord(NOW)


def test_withdrawing_again_never_shortens_the_memory() -> None:
    one = OneNode()
    one.ask(node.Release("a", 60 * SECOND))
    one.ask(node.Release("a", SECOND))
    one.now += 30 * SECOND
    one.ask(node.Release("a", 60 * SECOND))
    assert [ended.forget_at for ended in one.record.tombstones] == [NOW + 90 * SECOND]


def test_numbers_end_where_they_are_no_longer_exact() -> None:
    one = OneNode(record=node.NodeRecord(MAX_TOKEN - 2))
    assert one.acquire("a") == node.Issued(MAX_TOKEN - 1)
    assert one.ask(node.Stamp("a", MAX_TOKEN)) == node.Issued(MAX_TOKEN - 1)
    one.ask(node.Release("a"))
    assert one.acquire("b") == node.TokensExhausted()


# --- stamping -----------------------------------------------------------------------------------


def test_a_stamp_goes_upward_and_only_for_the_owner() -> None:
    one = OneNode()
    one.must_issue("a")
    assert one.ask(node.Stamp("a", NOW + 7)) == node.Issued(NOW + 7)
    assert one.record.fence == NOW + 7
    assert one.ask(node.Stamp("a", NOW + 7)) == node.Issued(NOW + 7)
    assert one.ask(node.Stamp("a", NOW + 3)) == node.Issued(NOW + 7)
    assert one.ask(node.Stamp("b", NOW + 9)) == node.Lost("stolen")
    assert one.ask(node.Stamp("b", NOW + 7)) == node.Lost("stolen")
    assert one.record.fence == NOW + 7


def test_a_stamp_after_the_claim_ran_out_is_refused() -> None:
    one = OneNode()
    one.must_issue("a")
    one.now += 5 * SECOND
    assert one.ask(node.Stamp("a", NOW + 7)) == node.Lost("expired")
    assert one.must_issue("b", NOW) == NOW + 1
    assert one.ask(node.Stamp("a", NOW + 7)) == node.Lost("stolen")


def test_a_number_that_the_node_must_never_issue_is_not_stamped() -> None:
    """A fence may be beyond the number of the claim: it was copied from others."""
    one = OneNode()
    one.must_issue("a")
    one.record = one.record._replace(fence=NOW + 10)
    assert one.ask(node.Stamp("a", NOW + 10)) == node.Issued(NOW)
    assert one.ask(node.Stamp("a", NOW + 11)) == node.Issued(NOW + 11)


# --- giving back, living on ---------------------------------------------------------------------


def test_only_its_owner_releases_it() -> None:
    one = OneNode()
    one.must_issue("a")
    assert one.ask(node.Release("b")) == node.Lost("stolen")
    assert one.ask(node.Release("a")) == node.Applied()
    assert one.ask(node.Release("a")) == node.Lost("expired")


def test_a_renewal_extends_never_shortens_never_revives() -> None:
    one = OneNode()
    one.must_issue("a")
    one.now += SECOND
    assert one.ask(node.Renew("a", 5 * SECOND)) == node.Applied()
    assert one.record.claim is not None
    assert one.record.claim.expires_at == NOW + 6 * SECOND
    assert one.ask(node.Renew("a", 1000)) == node.Applied()
    assert one.record.claim.expires_at == NOW + 6 * SECOND
    one.now += 5 * SECOND
    assert one.ask(node.Renew("a", 5 * SECOND)) == node.Lost("expired")
    assert node.settle(one.record, one.now).claim is None


def test_no_renewal_goes_beyond_max_hold() -> None:
    one = OneNode()
    one.acquire("a", ttl=2 * SECOND, max_hold=3 * SECOND)
    for _ in range(3):
        one.now += SECOND - 1
        assert one.ask(node.Renew("a", 2 * SECOND)) == node.Applied()
    assert one.record.claim is not None
    assert one.record.claim.expires_at == NOW + 3 * SECOND


def test_a_hand_over_carries_the_token() -> None:
    one = OneNode()
    one.must_issue("a")
    assert one.ask(node.Adopt("a", "d", "h/2/t", "seal")) == node.Lost("stolen", NOT_EXPORTED)
    assert one.ask(node.Export("a", NOW + 4, "first")) == node.Applied()
    assert one.ask(node.Export("a", NOW + 4, "seal")) == node.Applied()
    assert one.ask(node.Adopt("a", "d", "h/2/t", "first")) == node.Lost("stolen", NOT_EXPORTED)
    assert one.ask(node.Adopt("a", "d", "h/2/t", "seal")) == node.Applied()
    assert one.ask(node.Adopt("a", "d", "h/2/t", "seal")) == node.Applied()
    assert one.ask(node.Adopt("a", "e", "h/3/t", "seal")).__class__ is node.Lost
    claim = one.record.claim
    assert claim is not None
    assert (claim.token, claim.client, claim.label) == (NOW + 4, "d", "h/2/t")
    assert one.ask(node.Export("b", 1, "seal")) == node.Lost("stolen")


# --- breaking -----------------------------------------------------------------------------------


def test_a_broken_claim_is_reported_to_its_holder_and_fenced_off() -> None:
    one = OneNode()
    first = one.must_issue("a")
    assert one.acquire("x", first, instead_of=("a",), note="it hangs") == node.Issued(first + 1)
    assert one.ask(node.Renew("a", SECOND)) == node.Lost("broken", "it hangs")
    assert one.acquire("a") == node.Lost("broken", "it hangs")
    one.now += 5 * SECOND + BROKEN_KEPT_US
    assert one.ask(node.Renew("a", SECOND)) == node.Lost("expired")


def test_only_whom_it_names_is_broken() -> None:
    one = OneNode()
    one.must_issue("a")
    assert isinstance(one.acquire("x", instead_of=("b", "c")), node.HeldByOther)
    assert one.ask(node.Renew("a", SECOND)) == node.Applied()


# --- the mark -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", [node.FRESH, node.Mark(ready=node.mark_text("5e7", 3, "run0"))])
def test_a_node_without_the_right_mark_does_nothing_but_let_go(mark: node.Mark) -> None:
    one = OneNode()
    one.must_issue("a")
    one.mark = mark
    for request in (
        node.Acquire("b", NOW, SECOND, 0, "c", "h/1/t", "{}"),
        node.Stamp("a", NOW + 3),
        node.Renew("a", SECOND),
        node.Export("a", NOW, "seal"),
        node.Adopt("a", "c", "h/1/t", "seal"),
        node.Inspect(),
    ):
        before = one.record
        assert one.ask(request) == node.Unready(mark.ready)
        assert one.record is before
    assert one.ask(node.Release("a")) == node.Applied()


def test_a_node_remembers_the_longest_ttl() -> None:
    one = OneNode()
    one.acquire("a", ttl=5 * SECOND)
    one.acquire("b", ttl=900 * SECOND)
    assert one.mark.longest == 5 * SECOND
    one.ask(node.Renew("a", 7 * SECOND))
    assert one.mark.longest == 7 * SECOND
    one.ask(node.Renew("b", 900 * SECOND))
    assert one.mark.longest == 7 * SECOND


def test_a_node_is_primed_once_and_started_as_primed() -> None:
    mine, other = node.mark_text("s1", 3, "run1"), node.mark_text("s2", 3, "run1")
    primed = node.change_mark(node.FRESH, node.Prime(mine, ""), "run1")
    assert primed == node.Mark("", mine)
    assert node.change_mark(primed, node.Prime(other, ""), "run1") == primed
    assert node.change_mark(primed, node.Start(other), "run1") == primed
    assert (
        node.change_mark(
            node.change_mark(primed, node.Prime(other, mine), "run1"), node.Start(other), "run1"
        ).ready
        == other
    )
    started = node.change_mark(primed, node.Start(mine), "run1")
    assert started.ready == mine
    assert node.change_mark(started, node.Prime(other, mine), "run1") == started
    assert node.change_mark(node.FRESH, node.Start(mine), "run1") == node.FRESH


def test_a_new_life_is_trusted_only_on_the_mark_that_was_seen() -> None:
    old, new = node.mark_text("s1", 3, "run1"), node.mark_text("s1", 3, "run2")
    assert node.change_mark(node.Mark(old), node.Trust(new, old), "run2").ready == new
    assert node.change_mark(node.FRESH, node.Trust(new, old), "run2") == node.FRESH


def test_a_node_that_is_admitted_has_forgotten_nothing_since_it_began_to_rejoin() -> None:
    new = node.mark_text("s1", 3, "run2")
    rejoining = node.change_mark(node.Mark(longest=3), node.Rejoin(new), "run2")
    assert node.change_mark(rejoining, node.Admit(new, 9), "run2") == node.Mark(new, new, "", 9)
    assert node.change_mark(node.FRESH, node.Admit(new, 9), "run2") == node.FRESH


@pytest.mark.parametrize("request_", [node.Prime, node.Start, node.Trust, node.Rejoin, node.Admit])
def test_what_was_meant_for_another_life_changes_nothing(request_: Any) -> None:
    text = node.mark_text("s1", 3, "run1")
    mark = node.Mark("", text, text, 5)
    asked = request_(text) if request_ in (node.Start, node.Rejoin) else request_(text, "")
    assert node.change_mark(mark, asked, "run2") == mark


# --- whatever is asked --------------------------------------------------------------------------


@settings(max_examples=examples(300))
@given(moves())
def test_whatever_is_asked_numbers_are_issued_once_and_upward(sequence: list[NodeMove]) -> None:
    one = OneNode()
    whose: dict[int, str] = {}
    for move in sequence:
        one.now += move.pause
        before = node.settle(one.record, one.now)
        one.expected = move.expected
        request = made(move, before.fence, one.now)
        reply = one.ask(request)
        after = one.record
        assert after.fence >= before.fence
        if isinstance(reply, node.Issued):
            assert after.claim is not None
            assert after.claim.owner == request.owner
            assert after.claim.number == reply.number <= after.fence
            new = before.claim is None or (before.claim.owner, before.claim.number) != after.claim[:2]
            assert (reply.number > before.fence) == new
            assert whose.setdefault(reply.number, request.owner) == request.owner
        if before.claim is not None and (after.claim is None or after.claim.owner != before.claim.owner):
            released = isinstance(request, node.Release) and request.owner == before.claim.owner
            broken = isinstance(request, node.Acquire) and before.claim.owner in request.instead_of
            assert released or broken
        if after.claim is not None and before.claim is not None and after.claim.owner == before.claim.owner:
            assert after.claim.expires_at >= before.claim.expires_at


def test_what_is_over_is_remembered_up_to_a_bound() -> None:
    """The latest: a node that was asked for much while it hung is not slow for ever."""
    one = OneNode()
    for number in range(TOMBSTONES_MAX + 20):
        one.ask(node.Release(f"late-{number}", 60 * SECOND))
    assert len(one.record.tombstones) == TOMBSTONES_MAX
    assert one.acquire(f"late-{TOMBSTONES_MAX + 19}") == node.Lost("withdrawn")
    assert isinstance(one.acquire("late-0"), node.Issued)
