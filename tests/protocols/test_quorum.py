"""The quorum family over nodes that are nothing but their rule: a step at a time, in made-up time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import pytest

from holdfast.core.deadlines import lease_deadline
from holdfast.core.effects import NotApplied, Pause, TransientError
from holdfast.errors import Unsupported
from holdfast.protocols.quorum import (
    Broadcast,
    Quorum,
    QuorumCoroutine,
    apply,
    apply_in_order,
    list_names,
    rejoin,
)
from holdfast.protocols.quorum.membership import rejoin_seconds
from holdfast.protocols.quorum.state import DECIDE_SECONDS
from holdfast.rules import node
from holdfast.rules.requests import (
    Acquire,
    Adopt,
    Break,
    Busy,
    Done,
    Downgrade,
    Export,
    Granted,
    Inspect,
    Queued,
    Release,
    Renew,
    Request,
    Resize,
    SetValue,
)

WALL_US = 10**15
MINUTE_US = 60_000_000
TTL_SECONDS = 30.0


class World:
    """Three nodes, and one client's clocks."""

    def __init__(self) -> None:
        self.now = 100.0
        self.wall_us = WALL_US
        """What the clock of the client shows."""
        self.node_us = WALL_US
        """What the clocks of all nodes show."""
        self.nodes = [RuleNode(self, index) for index in range(3)]
        self.rounds: list[list[str]] = []
        """What was asked, round for round."""
        self.waited_in_vain = 0
        """How often a client waited for a node until the time was up."""
        self.before_round: Callable[[list[str]], None] = lambda kinds: None
        self.pauses: list[float] = []
        self.while_pausing: Callable[[], None] = lambda: None

    def quorum(self, client: str = "me", **changes: Any) -> Quorum:
        given: dict[str, Any] = {
            "node_seconds": 0.05,
            "drift": 0.01,
            "retry_seconds": 0.2,
            "jitter_seconds": 0.1,
            "linger": 60.0,
            "set_id": "set",
        } | changes
        return Quorum(client, ("a", "b", "c"), now=lambda: self.now, wall_us=lambda: self.wall_us, **given)

    def run(self, script: QuorumCoroutine[Any]) -> Any:
        told: Any = None
        while True:
            try:
                op = script.send(told)
            except StopIteration as end:
                return end.value
            if isinstance(op, Pause):
                self.pauses.append(op.seconds)
                self.while_pausing()
            told = self.fan(op) if isinstance(op, Broadcast) else 0.5

    def fan(self, op: Broadcast) -> dict[int, Any]:
        kinds = [type(request).__name__ for _, request in op.asks[0][1]]
        self.before_round(kinds)
        self.rounds.append(kinds)
        answers = {
            each: self.nodes[each].trouble
            or tuple(self.nodes[each].answer(name, request, op.member) for name, request in batch)
            for each, batch in op.asks
            if not self.nodes[each].hangs
        }
        if len(answers) < len(op.asks) and not op.enough(answers):
            self.waited_in_vain += 1
        return answers

    def owners(self, name: str) -> list[str]:
        """On each node whose claim stands; empty: nobody's."""
        claims = [each.records.get(name, node.UNUSED).claim for each in self.nodes]
        return ["" if claim is None else claim.owner for claim in claims]


class RuleNode:
    """A node that remembers everything."""

    def __init__(self, world: World, index: int) -> None:
        self.world = world
        self.run = f"run{index}"
        text = node.mark_text("set", 3, self.run)
        self.mark = node.Mark(text, text)
        self.records: dict[str, node.NodeRecord] = {}
        self.durable = True
        self.trouble: TransientError | None = None
        self.hangs = False

    def answer(self, name: str, request: Any, member: str) -> Any:
        if isinstance(request, node.DescribeNode):
            return node.NodeDescription(self.run, self.mark, self.durable)
        if isinstance(request, node.Trust | node.Rejoin | node.Admit):
            self.mark = node.change_mark(self.mark, request, self.run)
            return node.Marked(self.mark)
        if isinstance(request, node.ListFences):
            return node.FencePage(tuple([(name, each.fence) for name, each in self.records.items()]), "")
        if isinstance(request, node.RaiseFences):
            self.records |= {name: node.UNUSED._replace(fence=fence) for name, fence in request.fences}
            return node.Marked(self.mark)
        if isinstance(request, node.List):
            is_ready = self.mark.ready == f"{member}/{self.run}"
            return node.NamePage((), self.world.node_us, "") if is_ready else node.Unready(self.mark.ready)
        record = self.records.get(name, node.UNUSED)
        step = node.apply(self.mark, record, request, f"{member}/{self.run}", self.world.node_us)
        self.mark, self.records[name] = step.mark, step.record
        return step.reply

    def restart(self) -> None:
        self.run += "'"

    def forget(self) -> None:
        """It loses all that it knew, and is not one that says that it never would."""
        self.durable = False
        self.restart()
        self.mark, self.records = node.FRESH, {}


def asking(name: str, wait: bool = False, client: str = "me") -> Acquire:
    nonce = f"{client}-{name}"
    return Acquire(nonce, client, client, "lock", "exclusive", TTL_SECONDS, wait)


def taken_in_order(world: World, quorum: Quorum, names: Sequence[str]) -> list[Any]:
    steps = [(name, asking(name)) for name in names]
    return world.run(apply_in_order(quorum, steps, True))  # type: ignore[no-any-return]  # run() is of any script


def occupied(world: World, name: str) -> None:
    """Another client has it."""
    reply = world.run(apply(world.quorum("other"), name, asking(name, client="other")))
    assert isinstance(reply, Granted)
    world.rounds.clear()


# --- several names, and a round that teaches us something ---------------------------------------


def test_what_the_first_round_granted_is_not_asked_for_again() -> None:
    """A node was restarted: another round is worth while for the name that was refused, and for no other."""
    world = World()
    occupied(world, "b")
    world.nodes[2].restart()
    granted, refused = taken_in_order(world, quorum := world.quorum(), ("a", "b"))
    assert isinstance(granted, Granted)
    assert isinstance(refused, Busy)
    assert [holder.client for holder in refused.holders] == ["other"]
    assert world.owners("a") == [quorum.attempts["me-a"].owner] * 2 + [""]
    assert world.rounds == [["Acquire", "Acquire"], ["DescribeNode"], ["Trust"], ["Acquire"]]
    world.run(apply(quorum, "a", Release("me-a")))
    assert world.owners("a") == ["", "", ""]


def test_what_the_first_round_granted_is_given_back_once_it_took_too_long() -> None:
    """The second round takes its time; what was granted before it has run out by then, or nearly so."""
    world = World()
    occupied(world, "b")
    world.nodes[2].restart()

    def tick(kinds: list[str]) -> None:
        if kinds == ["Acquire"]:
            world.now += TTL_SECONDS

    world.before_round = tick
    replies = taken_in_order(world, quorum := world.quorum(), ("a", "b"))
    assert [type(reply) for reply in replies] == [Busy]
    assert world.owners("a") == ["", "", ""]
    assert quorum.attempts == {}


def test_the_second_round_grants_what_the_first_could_not() -> None:
    """Two nodes were restarted: there was no majority for either name."""
    world = World()
    for each in world.nodes[:2]:
        each.restart()
    replies = taken_in_order(world, quorum := world.quorum(), ("a", "b"))
    assert [type(reply) for reply in replies] == [Granted, Granted]
    for name in ("a", "b"):
        assert world.owners(name) == [quorum.attempts[f"me-{name}"].owner] * 3


# --- nodes that are not ready -------------------------------------------------------------------


def test_nodes_that_nobody_needs_are_not_looked_after_at_every_try() -> None:
    """One forgot; the others tell who has it. It is asked now and then how it is, ever less often."""
    world = World()
    occupied(world, "x")
    world.nodes[2].forget()
    quorum = world.quorum()
    for _ in range(20):
        assert isinstance(world.run(apply(quorum, "x", asking("x"))), Busy)
    assert world.rounds.count(["DescribeNode"]) == 1
    world.now += 3600
    assert isinstance(world.run(apply(quorum, "x", asking("x"))), Busy)
    assert world.rounds.count(["DescribeNode"]) == 2


def test_nodes_that_are_needed_are_looked_after_at_once() -> None:
    world = World()
    quorum = world.quorum()
    for _ in range(3):
        for each in world.nodes[:2]:
            each.restart()
        assert isinstance(world.run(apply(quorum, "x", asking("x"))), Granted)
        world.run(apply(quorum, "x", Release("me-x")))


QUESTIONS: dict[str, Callable[[Quorum], QuorumCoroutine[Any]]] = {
    "inspect": lambda quorum: apply(quorum, "x", Inspect()),
    "break": lambda quorum: apply(quorum, "x", Break(None, "")),
    "adopt": lambda quorum: apply(quorum, "x", Adopt("his", "me", "me", "seal")),
    "list": lambda quorum: list_names(quorum, ""),
}


@pytest.mark.parametrize("what", QUESTIONS)
def test_errors_say_why_nodes_do_not_take_part(what: str) -> None:
    world = World()
    world.nodes[0].trouble = NotApplied("no route to host")
    world.nodes[1].forget()
    with pytest.raises(NotApplied, match=r"1 of 3 nodes.*; a: no route to host; b: it has no mark"):
        world.run(QUESTIONS[what](world.quorum()))


@pytest.mark.parametrize("what", QUESTIONS)
def test_any_request_lets_restarted_nodes_take_part_again(what: str) -> None:
    """An inspection does not wait for a client that wants a lock."""
    world = World()
    quorum = world.quorum()
    for each in world.nodes:
        each.restart()
    with pytest.raises(NotApplied):
        world.run(QUESTIONS[what](quorum))
    world.run(QUESTIONS[what](quorum))


# --- the clock of a client ----------------------------------------------------------------------


@pytest.mark.parametrize("minutes", [-600, -0.5, 0.5, 600])
def test_a_client_whose_wall_clock_is_set(minutes: float) -> None:
    """Numbers are measured by the clocks of the nodes: its tokens go on growing, by small steps."""
    world = World()
    quorum = world.quorum()
    first = world.run(apply(quorum, "x", asking("x")))
    world.run(apply(quorum, "x", Release("me-x")))
    world.wall_us += round(minutes * MINUTE_US)
    second = world.run(apply(quorum, "x", asking("x")))
    assert isinstance(second, Granted)
    assert first.token < second.token <= WALL_US + MINUTE_US
    world.run(apply(quorum, "x", Release("me-x")))
    world.rounds.clear()
    third = world.run(apply(quorum, "x", asking("x")))
    assert third.token > second.token
    assert world.rounds == [["Acquire"]], "it has learned what its clock lacks"


# --- handing over -------------------------------------------------------------------------------


def kept_seconds(world: World, name: str) -> float:
    """How long a majority of the nodes keeps it from now on, by their clocks."""
    claims = [each.records[name].claim for each in world.nodes]
    ends = sorted((claim.expires_at - world.node_us) / 1e6 for claim in claims if claim is not None)
    return ends[-2]


@pytest.mark.parametrize("drift", [0.01, 0.2])
def test_what_is_handed_over_lasts_as_long_as_before(drift: float) -> None:
    """Nodes keep it for longer than it is relied on; however often it is handed over, it is for so much."""
    world = World()
    quorum = world.quorum(drift=drift)
    ask = asking("x")._replace(max_hold=600.0)
    assert isinstance(world.run(apply(quorum, "x", ask)), Granted)
    for client in ("her", "him"):
        world.node_us += 5_000_000
        assert isinstance(world.run(apply(quorum, "x", Export(ask.nonce, "seal"))), Done)
        quorum = world.quorum(client, drift=drift)
        granted = world.run(apply(quorum, "x", Adopt(ask.nonce, client, client, "seal")))
        assert granted.ttl == pytest.approx(TTL_SECONDS)
        assert kept_seconds(world, "x") * (1.0 - drift) >= lease_deadline(0.0, granted.ttl)
        assert isinstance(world.run(apply(quorum, "x", Renew(ask.nonce, granted.ttl))), Done)
    assert granted.lasts == pytest.approx(590.0)
    (holder,) = world.run(apply(quorum, "x", Inspect())).record.holders
    assert (holder.ttl, holder.until) == pytest.approx((TTL_SECONDS, 590.0))


def test_an_adopter_does_not_rely_on_a_ttl_that_a_majority_never_got() -> None:
    """One node missed that the lease was renewed for a shorter time."""
    world = World()
    quorum = world.quorum()
    assert isinstance(world.run(apply(quorum, "x", asking("x"))), Granted)
    missed = world.nodes[0].records["x"]
    assert isinstance(world.run(apply(quorum, "x", Renew("me-x", 2.0))), Done)
    world.nodes[0].records["x"] = missed
    world.node_us += 20_000_000
    assert isinstance(world.run(apply(quorum, "x", Export("me-x", "seal"))), Done)
    granted = world.run(apply(world.quorum("her"), "x", Adopt("me-x", "her", "her", "seal")))
    assert kept_seconds(world, "x") * (1.0 - 0.01) >= lease_deadline(0.0, granted.ttl)


# --- rejoining ----------------------------------------------------------------------------------


def test_a_node_that_rejoins_waits_for_longer_than_anything_is_relied_on_or_decided() -> None:
    for ttl_us in (0, 1_000_000, 30_000_000, 86_400_000_000):
        relied = max(ttl_us / 1e6, DECIDE_SECONDS)
        assert relied * 1.01 < rejoin_seconds(ttl_us) < relied * 1.03 + 2.0


def test_a_node_that_forgot_waits_for_the_longest_ttl_that_was_asked_for() -> None:
    world = World()
    quorum = world.quorum()
    granted = world.run(apply(quorum, "x", asking("x")))
    world.nodes[2].forget()
    assert world.run(rejoin(quorum, frozenset({2}))) == {2: "rejoined: 1 fences were copied"}
    assert world.pauses == [rejoin_seconds(quorum.node_ttl_us(TTL_SECONDS))]
    assert world.nodes[2].records["x"].fence == granted.token


def test_an_attempt_under_way_when_a_node_begins_to_rejoin_is_waited_for() -> None:
    """It has the word of the node from before it forgot, and asked for a longer ttl than all the others."""
    world = World()
    quorum = world.quorum()
    world.run(apply(quorum, "x", asking("x")))
    world.nodes[2].forget()

    def arrives() -> None:
        late = asking("y", client="her")._replace(ttl=600.0)
        world.run(apply(world.quorum("her"), "y", late))

    world.while_pausing = arrives
    assert world.run(rejoin(quorum, frozenset({2}))) == {2: "rejoined: 2 fences were copied"}
    assert sum(world.pauses) == pytest.approx(rejoin_seconds(quorum.node_ttl_us(600.0)))
    assert world.nodes[2].mark.longest == quorum.node_ttl_us(600.0)


def test_a_given_wait_of_a_rejoin_is_used() -> None:
    world = World()
    quorum = world.quorum()
    world.run(apply(quorum, "x", asking("x")))
    world.nodes[2].forget()
    assert "rejoined" in world.run(rejoin(quorum, frozenset({2}), wait=0.2))[2]
    assert world.pauses == [0.2]


# --- what independent nodes cannot do -----------------------------------------------------------

REFUSED: dict[str, tuple[Request, str]] = {
    "semaphore": (asking("x")._replace(kind="semaphore", limit=2), "cannot be split over a quorum"),
    "reading": (asking("x")._replace(kind="rwlock", mode="read"), "no reader/writer locks"),
    "writing": (asking("x")._replace(kind="rwlock", mode="write"), "no reader/writer locks"),
    "value": (SetValue("me-x", b"", 60.0), "no one place for a value"),
    "resize": (Resize(2, 3), "plain locks only"),
    "downgrade": (Downgrade("me-x", "reader"), "plain locks only"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_quorum_cannot_do_is_refused_with_the_reason_before_any_request(what: str) -> None:
    world = World()
    request, why = REFUSED[what]
    with pytest.raises(Unsupported, match=rf"{why}.*: sqlite://, redis:// and postgresql:// can"):
        world.run(apply(world.quorum(), "x", request))
    if isinstance(request, Acquire):
        with pytest.raises(Unsupported, match=why):
            world.run(apply_in_order(world.quorum(), [("x", request)], True))
    assert not world.rounds


# --- options ------------------------------------------------------------------------------------


def test_a_waiter_looks_ever_less_often_up_to_a_limit() -> None:
    quorum = World().quorum(retry_seconds=0.2, jitter_seconds=0.0)
    pauses = [quorum.poll_after(tries, inf, 0.7) for tries in range(1, 100)]
    assert pauses[:3] == pytest.approx([0.2, 0.3, 0.45])
    assert pauses == sorted(pauses)
    assert pauses[-1] == 1.0
    assert [World().quorum(retry_seconds=each).poll_after(99, inf, 0.0) for each in (0.1, 2.0)] == [0.5, 10.0]


def test_a_waiter_looks_when_what_is_held_expires() -> None:
    quorum = World().quorum(retry_seconds=0.2, jitter_seconds=0.0)
    assert quorum.poll_after(99, 0.05, 0.0) == 0.05
    assert quorum.poll_after(1, 30.0, 0.0) == 0.2


def test_jitter_keeps_waiters_for_one_name_apart() -> None:
    """Also those who all look when it runs out."""
    quorum = World().quorum(retry_seconds=0.2, jitter_seconds=0.1)
    assert [quorum.poll_after(1, inf, chance) for chance in (0.0, 0.5, 1.0)] == pytest.approx(
        [0.2, 0.25, 0.3]
    )
    assert quorum.poll_after(5, 0.0, 0.5) == 0.05


def test_a_waiter_is_notified_when_to_look_again() -> None:
    world = World()
    occupied(world, "x")
    quorum = world.quorum(jitter_seconds=0.0)
    told = [world.run(apply(quorum, "x", asking("x", wait=True))) for _ in range(3)]
    assert all(isinstance(reply, Queued) for reply in told)
    assert [reply.poll_after for reply in told] == pytest.approx([0.2, 0.3, 0.45])


@pytest.mark.parametrize("drift", [0.0, 0.01, 0.05, 0.5])
@pytest.mark.parametrize("ttl", [1.0, 4.0, TTL_SECONDS])
def test_nodes_whose_clocks_run_fast_keep_it_as_long_as_it_is_relied_on(drift: float, ttl: float) -> None:
    quorum = World().quorum(drift=drift)
    kept_in_our_seconds = quorum.node_ttl_us(ttl) / 1e6 * (1.0 - drift)
    assert kept_in_our_seconds >= lease_deadline(0.0, ttl)
    assert quorum.node_ttl_us(ttl) >= ttl * 1e6


def test_what_takes_too_long_is_no_grant() -> None:
    """Longer than it lasts where clocks run as fast as they may, and never longer than who rejoins waits."""
    assert World().quorum(drift=0.01).valid_until(100.0, 2.0) == pytest.approx(101.979)
    assert World().quorum(drift=0.0).valid_until(100.0, 2.0) == pytest.approx(101.979)
    assert World().quorum(drift=0.2).valid_until(100.0, 2.0) == pytest.approx(101.599)
    assert World().quorum(drift=0.01).valid_until(100.0, 3600.0) == 100.0 + DECIDE_SECONDS
