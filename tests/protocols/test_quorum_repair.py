"""What is held is given to nodes that lack it, while a majority has it: else it would be on ever fewer."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.effects import NotApplied
from holdfast.protocols.quorum import Broadcast, Quorum, apply, renew_batch, repair
from holdfast.rules import node
from holdfast.rules.requests import Adopt, Break, Broken, Done, Export, Gone, Granted, Inspect, Release, Renew
from protocols.test_quorum import TTL_SECONDS, RuleNode, World, asking

AWAY = NotApplied("no route to host")
ALL_GONE = ["", "", ""]


def holding_x(world: World, quorum: Quorum, **terms: Any) -> int:
    granted = world.run(apply(quorum, "x", asking("x")._replace(**terms)))
    assert isinstance(granted, Granted)
    return granted.token


def renewed(world: World, quorum: Quorum) -> Any:
    """As the keeper does it."""
    (reply,) = world.run(renew_batch(quorum, (("x", Renew("me-x", TTL_SECONDS)),)))
    return reply


def pass_time(world: World, seconds: float) -> None:
    world.now += seconds
    world.node_us += round(seconds * 1e6)
    world.wall_us += round(seconds * 1e6)


def away_for_longer_than_the_ttl(world: World, quorum: Quorum, each: RuleNode) -> None:
    """It is renewed by the others meanwhile."""
    each.trouble = AWAY
    for _ in range(4):
        pass_time(world, TTL_SECONDS / 3)
        assert isinstance(renewed(world, quorum), Done)
    each.trouble = None


def test_a_node_that_was_not_there_when_it_was_granted_has_it_after_a_renewal() -> None:
    world = World()
    quorum = world.quorum()
    world.nodes[2].trouble = AWAY
    token = holding_x(world, quorum)
    owner = quorum.attempts["me-x"].owner
    assert world.owners("x") == [owner, owner, ""]
    world.nodes[2].trouble = None
    assert isinstance(renewed(world, quorum), Done)
    assert world.owners("x") == [owner] * 3
    world.rounds.clear()
    assert isinstance(renewed(world, quorum), Done)
    assert world.rounds == [["Renew"]], "nobody lacks it any more"
    assert [each.records["x"].claim.ttl for each in world.nodes if each.records["x"].claim] == [
        quorum.node_ttl_us(TTL_SECONDS)
    ] * 3
    (holder,) = world.run(apply(quorum, "x", Inspect())).record.holders
    assert holder.token == token
    assert isinstance(world.run(apply(quorum, "x", Release("me-x"))), Done)
    assert world.owners("x") == ALL_GONE


def test_it_outlives_all_nodes_being_away_one_after_another() -> None:
    """Each for longer than the ttl. In the end no node has issued its token; an inspection shows it
    anyway."""
    world = World()
    quorum = world.quorum()
    token = holding_x(world, quorum, metadata={"job": "7"})
    for each in (*world.nodes, *world.nodes):
        away_for_longer_than_the_ttl(world, quorum, each)
        assert isinstance(renewed(world, quorum), Done)
    assert len(set(world.owners("x"))) == 1
    assert token not in {each.records["x"].claim.number for each in world.nodes if each.records["x"].claim}
    (holder,) = world.run(apply(quorum, "x", Inspect())).record.holders
    assert (holder.token, holder.client, holder.metadata) == (token, "me", {"job": "7"})
    assert isinstance(world.run(apply(quorum, "x", Export("me-x", "seal"))), Done)
    adopted = world.run(apply(world.quorum("her"), "x", Adopt("me-x", "her", "her", "seal")))
    assert adopted.token == token


def test_the_next_holder_has_a_larger_token() -> None:
    world = World()
    quorum = world.quorum()
    token = holding_x(world, quorum)
    for each in world.nodes:
        away_for_longer_than_the_ttl(world, quorum, each)
        assert isinstance(renewed(world, quorum), Done)
    world.run(apply(quorum, "x", Release("me-x")))
    granted = world.run(apply(world.quorum("her"), "x", asking("x", client="her")))
    assert granted.token > token


def test_what_was_adopted_is_given_to_nodes_that_lack_it_too() -> None:
    world = World()
    quorum = world.quorum()
    world.nodes[2].trouble = AWAY
    token = holding_x(world, quorum, max_hold=600.0)
    assert isinstance(world.run(apply(quorum, "x", Export("me-x", "seal"))), Done)
    world.nodes[2].trouble = None
    pass_time(world, 5.0)
    heir = world.quorum("her")
    assert world.run(apply(heir, "x", Adopt("me-x", "her", "her", "seal"))).token == token
    pass_time(world, 5.0)
    assert isinstance(renewed(world, heir), Done)
    claims = [each.records["x"].claim for each in world.nodes]
    assert {(claim.client, claim.label) for claim in claims if claim} == {("her", "her")}
    first, _, last = [claim.until for claim in claims if claim]
    assert last == pytest.approx(first, abs=10_000), "none lasts longer than max_hold"


def test_max_hold_ends_it_on_all_nodes() -> None:
    world = World()
    quorum = world.quorum()
    world.nodes[2].trouble = AWAY
    holding_x(world, quorum, max_hold=60.0)
    world.nodes[2].trouble = None
    pass_time(world, 20.0)
    assert isinstance(renewed(world, quorum), Done)
    assert len(set(world.owners("x"))) == 1
    first, _, last = [each.records["x"].claim.until for each in world.nodes if each.records["x"].claim]
    assert last == pytest.approx(first, abs=10_000)


# --- what must not come back ----------------------------------------------------------------------


def test_what_a_majority_lost_is_given_to_nobody() -> None:
    world = World()
    quorum = world.quorum()
    holding_x(world, quorum)
    for each in world.nodes[:2]:
        each.records["x"] = each.records["x"]._replace(claim=None)
    world.rounds.clear()
    assert isinstance(renewed(world, quorum), Gone)
    assert world.rounds == [["Renew"]]


def test_nothing_is_given_to_nodes_while_too_few_answer() -> None:
    """Two kept it and one of these is away: nobody knows."""
    world = World()
    quorum = world.quorum()
    world.nodes[2].trouble = AWAY
    holding_x(world, quorum)
    world.nodes[2].trouble, world.nodes[0].trouble = None, AWAY
    world.rounds.clear()
    assert not isinstance(renewed(world, quorum), Done)
    assert ["Acquire"] not in world.rounds
    assert world.owners("x")[2] == ""


def test_what_was_broken_stays_broken_on_nodes_that_had_nothing_of_it() -> None:
    """The claim that is to go to the third node is under way while a majority, of which that node is one, has
    the lock broken."""
    world = World()
    quorum, breaker = world.quorum(), world.quorum("her")
    world.nodes[2].trouble = AWAY
    holding_x(world, quorum)
    owner = quorum.attempts["me-x"].owner
    world.nodes[2].trouble = None

    def break_it(kinds: list[str]) -> None:
        if kinds == ["Acquire"]:
            world.before_round = lambda kinds: None
            world.nodes[1].trouble = AWAY
            seen = world.nodes[0].records["x"].claim
            assert seen is not None
            assert isinstance(world.run(apply(breaker, "x", Break(None, "it hangs"))), Broken)
            world.nodes[1].trouble = None

    world.before_round = break_it
    assert isinstance(renewed(world, quorum), Done)
    assert world.owners("x") == ["", owner, ""]
    assert renewed(world, quorum) == Gone("broken", "it hangs")


def test_what_is_given_back_meanwhile_is_given_to_no_node() -> None:
    """The keeper has found that a node lacks it, and has yet to say so."""
    world = World()
    quorum = world.quorum()
    world.nodes[2].trouble = AWAY
    holding_x(world, quorum)
    attempt = quorum.attempts["me-x"]
    world.nodes[2].trouble = None
    assert attempt.absent == {2}
    asks = renew_batch(quorum, (("x", Renew("me-x", TTL_SECONDS)),))
    fan = asks.send(None)
    answers = world.fan(fan)
    assert isinstance(world.run(apply(quorum, "x", Release("me-x"))), Done)
    with pytest.raises(StopIteration):
        asks.send(answers)
    assert world.owners("x") == ALL_GONE


def test_a_release_is_sent_also_to_the_node_that_is_about_to_get_the_claim() -> None:
    """It had answered that it has nothing of it, and was not to be notified of the end."""
    world = World()
    quorum = world.quorum()
    world.nodes[2].trouble = AWAY
    holding_x(world, quorum)
    world.nodes[2].trouble = None

    def give_back(kinds: list[str]) -> None:
        if kinds == ["Acquire"]:
            world.before_round = lambda kinds: None
            assert isinstance(world.run(apply(quorum, "x", Release("me-x"))), Done)

    world.before_round = give_back
    renewed(world, quorum)
    assert world.owners("x") == ALL_GONE


# --- nodes that hang ------------------------------------------------------------------------------


def test_one_that_hangs_is_waited_for_now_and_then() -> None:
    world = World()
    quorum = world.quorum()
    holding_x(world, quorum)
    world.nodes[2].hangs = True
    for _ in range(5):
        assert isinstance(renewed(world, quorum), Done)
        pass_time(world, 1.0)
    assert world.waited_in_vain == 1
    pass_time(world, repair.UNRESPONSIVE_SECONDS)
    assert isinstance(renewed(world, quorum), Done)
    assert world.waited_in_vain == 2
    world.nodes[2].hangs = False
    pass_time(world, repair.UNRESPONSIVE_SECONDS)
    assert isinstance(renewed(world, quorum), Done)
    assert quorum.unresponsive == {}


def test_one_whose_answers_come_too_late_is_given_it_all_the_same() -> None:
    """Nobody knows whether it lacks anything: having it, it would not be changed by being asked."""
    world = World()
    quorum = world.quorum()
    world.nodes[2].trouble = AWAY
    holding_x(world, quorum)
    world.nodes[2].trouble = None
    asks = renew_batch(quorum, (("x", Renew("me-x", TTL_SECONDS)),))
    answers = world.fan(asks.send(None))
    del answers[2]
    world.fan(asks.send(answers))
    assert len(set(world.owners("x"))) == 1
    before = [each.records["x"] for each in world.nodes]
    quorum.unresponsive.clear()
    asks = renew_batch(quorum, (("x", Renew("me-x", TTL_SECONDS)),))
    answers = world.fan(asks.send(None))
    del answers[2]
    world.fan(asks.send(answers))
    assert [each.records["x"] for each in world.nodes] == before


@pytest.mark.parametrize(("ttl", "seconds"), [(30.0, 0.05), (0.2, 0.01)])
def test_a_renewal_waits_for_a_moment_beyond_a_majority_and_then_for_a_majority(
    ttl: float, seconds: float
) -> None:
    world = World()
    quorum = world.quorum(node_seconds=2.0)
    holding_x(world, quorum)
    asks = renew_batch(quorum, (("x", Renew("me-x", ttl)),))
    first = asks.send(None)
    assert isinstance(first, Broadcast)
    assert first.seconds == pytest.approx(seconds)
    some = world.fan(first)
    assert first.enough(some)
    assert not first.enough({0: some[0], 1: some[1]})
    again = asks.send({0: some[0]})
    assert isinstance(again, Broadcast)
    assert again.seconds == 2.0
    assert again.enough({0: some[0], 1: some[1]})
    asks.close()


def test_extend_waits_for_a_majority_only() -> None:
    world = World()
    quorum = world.quorum()
    holding_x(world, quorum)
    world.nodes[2].hangs = True
    assert isinstance(world.run(apply(quorum, "x", Renew("me-x", 5.0))), Done)
    assert world.waited_in_vain == 0


def test_many_are_given_at_once() -> None:
    """One round gives a node all that it lacks."""
    world = World()
    quorum = world.quorum()
    world.nodes[2].trouble = AWAY
    names = [f"n{number}" for number in range(5)]
    for name in names:
        assert isinstance(world.run(apply(quorum, name, asking(name))), Granted)
    world.nodes[2].trouble = None
    world.rounds.clear()
    world.run(renew_batch(quorum, [(name, Renew(f"me-{name}", TTL_SECONDS)) for name in names]))
    assert world.rounds == [["Renew"] * 5, ["Acquire"] * 5]
    for name in names:
        claims = [
            each.records[name].claim or node.Claim("", 0, 0, 0, 0, 0, "", "", "") for each in world.nodes
        ]
        assert {claim.owner for claim in claims} == {quorum.attempts[f"me-{name}"].owner}
