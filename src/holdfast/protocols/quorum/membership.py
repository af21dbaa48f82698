"""Which nodes may take part: those whose mark says that they have forgotten nothing.

A node that forgets would issue numbers again that are tokens already. So a node issues numbers only while its
mark carries the id of the set and of the server's present life, its run. The mark goes the way of everything
else: absent, the node has forgotten, and has to rejoin. The mark of an earlier life is renewed where the
node's own settings say that it remembers all it ever answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ...core.effects import Nonce, NotApplied, Pause, TransientError
from ...errors import EngineUnavailable
from ...rules.node import (
    Admit,
    ClockSkewed,
    DescribeNode,
    FencePage,
    ListFences,
    Marked,
    NodeDescription,
    Prime,
    RaiseFences,
    Rejoin,
    Start,
    Trust,
    Unready,
    mark_text,
)
from .effects import Answers, Batch
from .state import DECIDE_SECONDS, Quorum

__all__ = [
    "NodeState",
    "Status",
    "describe_shortfall",
    "initialise",
    "join",
    "note_node_replies",
    "rejoin",
    "restore_unready",
    "restore_unready_if_due",
    "run_id_of",
    "set_id_of",
    "state_of",
    "status",
    "too_few_nodes",
]

RESTORE_SECONDS: Final = 0.5
RESTORE_SECONDS_MAX: Final = 16.0
"""How long to wait before nodes that are not ready are looked after again: ever longer."""

JOIN_SECONDS: Final = 0.5
"""Who comes for the first time has connections to make, perhaps on a busy machine: so long at least."""

REJOIN_MARGIN_SECONDS: Final = 1.0
REJOIN_DRIFT: Final = 0.02
"""How much longer than the longest ttl one who rejoins waits: clocks run at different speeds."""

PAGE: Final = 500
PAGE_TRIES: Final = 20

DESCRIBE: Final[Batch] = (("", DescribeNode()),)


class NodeState(NamedTuple):
    """How a node stands, by its own word."""

    state: str
    """``ready``, ``restarted`` (its mark is of an earlier life), ``primed``, ``empty`` or ``unfit``."""
    set_id: str
    size: int
    run_id: str


class Status(NamedTuple):
    """One node, as ``holdfast redlock status`` shows it."""

    label: str
    state: str
    advice: str
    """What that means and what to do about it."""


def run_id_of(mark: str) -> str:
    return mark.rpartition("/")[2]


def set_id_of(mark: str) -> str:
    return mark.partition("/")[0]


def state_of(greeting: NodeDescription) -> NodeState:
    mark = greeting.mark
    if greeting.complaint:
        return NodeState("unfit", "", 0, greeting.run_id)
    for text, what in ((mark.ready, "ready"), (mark.primed, "primed")):
        if text:
            set_id, _, rest = text.partition("/")
            size, _, run = rest.partition("/")
            if run == greeting.run_id:
                return NodeState(what, set_id, int(size), greeting.run_id)
            if what == "ready":
                return NodeState("restarted", set_id, int(size), greeting.run_id)
    return NodeState("empty", "", 0, greeting.run_id)


async def describe_nodes(
    quorum: Quorum, nodes: Sequence[int], until_said: int, at_least: float = 0.0
) -> dict[int, NodeDescription]:
    """What nodes say of themselves; goes on when so many have said to which set they belong."""

    def enough(answers: Answers) -> bool:
        sets = Counter(
            state.set_id
            for answer in answers.values()
            if not isinstance(answer, TransientError) and (state := state_of(answer[0])).state == "ready"
        )
        return bool(sets) and max(sets.values()) >= until_said

    answers = await quorum.ask_each(dict.fromkeys(nodes, DESCRIBE), enough, at_least)
    greetings = {}
    for node in nodes:
        answer = answers.get(node)
        if answer is None or isinstance(answer, TransientError):
            quorum.node_reports[node] = str(answer or "no answer")
        else:
            quorum.node_reports[node] = greetings[node] = answer[0]
    _refuse_same_server(quorum, greetings)
    return greetings


def _refuse_same_server(quorum: Quorum, greetings: dict[int, NodeDescription]) -> None:
    """Two addresses of one server are one vote, whatever the list of addresses says."""
    by_run: dict[str, int] = {}
    for node, greeting in greetings.items():
        other = by_run.setdefault(greeting.run_id, node)
        if other != node:
            raise EngineUnavailable(
                f"{quorum.labels[other]} and {quorum.labels[node]} are one server: "
                "Redlock needs servers that fail independently"
            )


def _reason_against(quorum: Quorum, greeting: NodeDescription | str) -> str:
    """Why this node does not take part; empty: it does."""
    if isinstance(greeting, str):
        return greeting
    state = state_of(greeting)
    if state.state == "unfit":
        return greeting.complaint
    if state.set_id and state.size != quorum.size:
        return f"it belongs to a set of {state.size} nodes, not of {quorum.size}: name all nodes of the set"
    if state.set_id and quorum.set_id and state.set_id != quorum.set_id:
        return "it belongs to another set of nodes"
    if state.state == "empty":
        if not quorum.set_id and _all_are_empty(quorum):
            return "it has no mark, and neither have the others; run: holdfast redlock init"
        return "it has no mark: it has forgotten, or is new; run: holdfast redlock rejoin"
    if state.state == "restarted" and not greeting.durable:
        return (
            "it was restarted and may have forgotten (not appendonly yes with appendfsync always); "
            "run: holdfast redlock rejoin"
        )
    return "" if state.state == "ready" else "it is being started"


def _all_are_empty(quorum: Quorum) -> bool:
    """Whether there is no set that a node could rejoin."""
    return len(quorum.node_reports) == quorum.size and all(
        isinstance(heard, NodeDescription) and state_of(heard).state in ("empty", "primed")
        for heard in quorum.node_reports.values()
    )


def describe_shortfall(quorum: Quorum, answered: int) -> str:
    """Why there is no majority, for people."""
    told = [
        f"{quorum.labels[node]}: {why}"
        for node, heard in sorted(quorum.node_reports.items())
        if (why := _reason_against(quorum, heard))
    ]
    return f"{answered} of {quorum.size} nodes take part, {quorum.majority} must; {'; '.join(told)}"


def note_node_replies(quorum: Quorum, replies: Mapping[int, Any]) -> None:
    """Keep why nodes did not take part, for the message. Those not ready tell when looked after."""
    for node in quorum.nodes:
        reply = replies.get(node)
        if reply is None:
            quorum.node_reports[node] = (
                "no answer so far"  # nobody waits for all where some are enough to know
            )
        elif isinstance(reply, TransientError):
            quorum.node_reports[node] = str(reply)
        elif isinstance(reply, ClockSkewed):
            quorum.node_reports[node] = "its clock differs from the others' by more than a minute"
        elif isinstance(reply, Unready):
            quorum.unready.add(node)
        else:
            quorum.node_reports.pop(node, None)


async def too_few_nodes(quorum: Quorum, replies: Mapping[int, Any], answered: int) -> NotApplied:
    """Why a question came to nothing. Nodes that are not ready are looked after, for whoever asks again."""
    note_node_replies(quorum, replies)
    if quorum.unready:
        await restore_unready(quorum)
    return NotApplied(describe_shortfall(quorum, answered))


# --- joining ------------------------------------------------------------------------------------


async def join(quorum: Quorum) -> None:
    """Learn which set this is; initialise it if nobody has. Nothing to do where it is known already."""
    if quorum.set_id:
        return
    greetings = await describe_nodes(quorum, range(quorum.size), quorum.majority, JOIN_SECONDS)
    states = {node: state_of(greeting) for node, greeting in greetings.items()}
    set_id = _set_of_majority(quorum, states)
    if set_id is None:
        if len(states) < quorum.size or any(s.state not in ("empty", "primed") for s in states.values()):
            raise NotApplied(
                describe_shortfall(quorum, sum(1 for s in states.values() if s.state == "ready"))
            )
        if not quorum.initialises:
            raise EngineUnavailable(
                "the nodes are empty and init=manual: run holdfast redlock init once for this set"
            )
        set_id = await initialise(quorum, greetings)
        greetings = {}
    quorum.set_membership(set_id)
    await _restore_marks(quorum, greetings)


def _set_of_majority(quorum: Quorum, states: dict[int, NodeState]) -> str | None:
    """The set to which a majority belongs."""
    sets = Counter(s.set_id for s in states.values() if s.state in ("ready", "restarted"))
    for set_id, count in sets.items():
        if count >= quorum.majority:
            sizes = {s.size for s in states.values() if s.set_id == set_id}
            if sizes != {quorum.size}:
                raise EngineUnavailable(
                    f"these nodes belong to a set of {max(sizes)} nodes, and {quorum.size} are named: "
                    "clients of one set must name the same nodes"
                )
            return set_id
    return None


async def initialise(quorum: Quorum, greetings: dict[int, NodeDescription]) -> str:
    """Make one set of nodes that are all there and all empty. Others may be doing the same at this moment:
    the node with the smallest run decides whose set it becomes."""
    first = min(greetings, key=lambda node: greetings[node].run_id)
    greeting = greetings[first]
    set_id = (
        set_id_of(greeting.mark.primed)
        if run_id_of(greeting.mark.primed) == greeting.run_id
        else await Nonce()
    )
    troubles: list[str] = []
    primed = await _prime(quorum, {first: greeting}, set_id, troubles)
    if first not in primed:
        raise NotApplied("; ".join([f"{quorum.labels[first]} does not answer, or was restarted", *troubles]))
    set_id = set_id_of(primed[first])
    others = {node: each for node, each in greetings.items() if node != first}
    primed |= await _prime(quorum, others, set_id, troubles)
    if len(primed) < quorum.size or {set_id_of(mark) for mark in primed.values()} != {set_id}:
        told = "the nodes are being initialised by somebody else, or some of them do not answer"
        raise NotApplied("; ".join([told, *troubles]))
    starts: dict[int, Batch] = {node: (("", Start(mark)),) for node, mark in primed.items()}
    answers = await quorum.ask_each(starts, lambda told: _count_ready(told) >= quorum.size)
    if _count_ready(answers) < quorum.majority:
        raise NotApplied("the nodes were primed, but too few of them could be started")
    return set_id


async def _prime(
    quorum: Quorum, greetings: dict[int, NodeDescription], set_id: str, troubles: list[str]
) -> dict[int, str]:
    """Node → how it is primed now. ``troubles``: what kept nodes from it is added to these."""
    asks: dict[int, Batch] = {}
    for node, greeting in greetings.items():
        wanted = mark_text(set_id, quorum.size, greeting.run_id)
        asks[node] = (("", Prime(wanted, greeting.mark.primed)),)
    answers = await quorum.ask_each(asks, lambda told: len(told) >= len(asks))
    primed = {}
    for node, answer in answers.items():
        if isinstance(answer, TransientError):
            troubles.append(str(answer))
        elif isinstance(answer[0], Marked):
            mark = answer[0].mark.primed
            if run_id_of(mark) == greetings[node].run_id:
                primed[node] = mark
    return primed


def _count_ready(answers: Answers) -> int:
    return sum(
        1
        for answer in answers.values()
        if not isinstance(answer, TransientError) and isinstance(answer[0], Marked) and answer[0].mark.ready
    )


# --- looking after nodes that are not ready -----------------------------------------------------


async def restore_unready(quorum: Quorum) -> bool:
    """Nodes said that they are not ready: renew the marks of those that remember. True: some are, now."""
    greetings = await describe_nodes(quorum, sorted(quorum.unready), quorum.size + 1)
    mended = await _restore_marks(quorum, greetings)
    quorum.unready.clear()  # they will say so again
    quorum.failed_restores = 0 if mended else quorum.failed_restores + 1
    pause = min(RESTORE_SECONDS * 2 ** min(quorum.failed_restores, 10), RESTORE_SECONDS_MAX)
    quorum.restores_at = quorum.now() + pause
    return mended


async def restore_unready_if_due(quorum: Quorum) -> None:
    """Now and then, before anything is asked that is counted by the clock."""
    if quorum.is_restore_due():
        await restore_unready(quorum)


async def _restore_marks(quorum: Quorum, greetings: dict[int, NodeDescription]) -> bool:
    asks: dict[int, Batch] = {}
    mended = False
    for node, greeting in greetings.items():
        state = state_of(greeting)
        if (state.set_id, state.size) != (quorum.set_id, quorum.size):
            continue  # empty, or of another set
        wanted = mark_text(quorum.set_id, quorum.size, greeting.run_id)
        if state.state == "restarted" and greeting.durable:
            asks[node] = (("", Trust(wanted, greeting.mark.ready)),)
        elif state.state == "primed":
            asks[node] = (("", Start(wanted)),)
        elif state.state == "ready":
            mended = True  # by somebody else, since it was asked
    if asks:
        answers = await quorum.ask_each(asks, lambda told: len(told) >= len(asks))
        mended = mended or _count_ready(answers) > 0
    return mended


# --- rejoining ----------------------------------------------------------------------------------


async def rejoin(
    quorum: Quorum, nodes: frozenset[int], wait: float | None = None, remembers: bool = False
) -> dict[int, str]:
    """Have nodes that forgot take part again: wait until nothing they granted can still be relied on, tell
    them all fences, set their marks. Node → what became of it.

    ``remembers``: the operator knows that a restarted node has lost nothing.
    """
    await join(quorum)
    greetings = await describe_nodes(quorum, range(quorum.size), quorum.size + 1, JOIN_SECONDS)
    intact = {node for node, each in greetings.items() if _is_intact(quorum, each)}
    wanted = {node: each for node, each in greetings.items() if node in nodes and node not in intact}
    told = dict.fromkeys(nodes - greetings.keys(), "did not answer")
    told |= dict.fromkeys(nodes & intact, "is ready")
    told |= {node: f"cannot: {each.complaint}" for node, each in wanted.items() if each.complaint}
    wanted = {node: each for node, each in wanted.items() if not each.complaint}
    if remembers:
        told |= await _trust(quorum, wanted)
        wanted = {node: each for node, each in wanted.items() if node not in told}
    if not wanted:
        return told
    if len(intact) < quorum.majority:
        raise EngineUnavailable(
            f"{len(intact)} of {quorum.size} nodes have forgotten nothing; {quorum.majority} must, "
            "for only a majority knows all numbers that were issued"
        )
    told |= await _mark_rejoining(quorum, wanted)
    wanted = {node: each for node, each in wanted.items() if node not in told}
    longest = max(greetings[node].mark.longest for node in intact)
    waited = 0.0
    while True:
        missing = (rejoin_seconds(longest) if wait is None else wait) - waited
        await Pause(missing)
        waited += missing
        fences, longest = await _fences_of_majority(quorum, intact)
        # An attempt that was under way when we first looked may have asked for a longer ttl than all before.
        if wait is not None or rejoin_seconds(longest) <= waited:
            return told | await _admit(quorum, wanted, fences, longest)


def rejoin_seconds(longest_us: int) -> float:
    """How long whatever a node granted before it forgot can still be relied on, or decided."""
    return max(longest_us / 1e6, DECIDE_SECONDS) * (1.0 + REJOIN_DRIFT) + REJOIN_MARGIN_SECONDS


def _is_intact(quorum: Quorum, greeting: NodeDescription) -> bool:
    return state_of(greeting) == NodeState("ready", quorum.set_id, quorum.size, greeting.run_id)


async def _trust(quorum: Quorum, wanted: dict[int, NodeDescription]) -> dict[int, str]:
    asks: dict[int, Batch] = {}
    for node, greeting in wanted.items():
        state = state_of(greeting)
        if state.state == "restarted" and state.set_id == quorum.set_id:
            mark = mark_text(quorum.set_id, quorum.size, greeting.run_id)
            asks[node] = (("", Trust(mark, greeting.mark.ready)),)
    answers = await quorum.ask_each(asks, lambda told: len(told) >= len(asks)) if asks else {}
    return {
        node: "trusted: its mark was renewed"
        for node, answer in answers.items()
        if not isinstance(answer, TransientError) and isinstance(answer[0], Marked) and answer[0].mark.ready
    }


async def _mark_rejoining(quorum: Quorum, wanted: dict[int, NodeDescription]) -> dict[int, str]:
    """Those that did not hear it."""
    marks = {node: mark_text(quorum.set_id, quorum.size, each.run_id) for node, each in wanted.items()}
    asks: dict[int, Batch] = {node: (("", Rejoin(mark)),) for node, mark in marks.items()}
    answers = await quorum.ask_each(asks, lambda told: len(told) >= len(asks))
    heard = {
        node
        for node, answer in answers.items()
        if not isinstance(answer, TransientError)
        and answer[0] == Marked(answer[0].mark._replace(rejoins=marks[node]))
    }
    return dict.fromkeys(wanted.keys() - heard, "did not answer")


async def _fences_of_majority(quorum: Quorum, intact: set[int]) -> tuple[dict[str, int], int]:
    """The largest fence of every name among a majority that has forgotten nothing, and their longest ttl."""
    fences: dict[str, int] = {}
    complete = 0
    longest = 0
    for node in sorted(intact):
        pages = await _fences_of_node(quorum, node)
        greeting = (await describe_nodes(quorum, (node,), 1)).get(node)
        if pages is None or greeting is None or not _is_intact(quorum, greeting):
            continue
        complete += 1
        longest = max(longest, greeting.mark.longest)
        for name, fence in pages.items():
            fences[name] = max(fences.get(name, 0), fence)
    if complete < quorum.majority:
        raise NotApplied(f"only {complete} of {quorum.size} nodes told all their fences: run it again")
    return fences, longest


async def _fences_of_node(quorum: Quorum, node: int) -> dict[str, int] | None:
    """All fences of one node; None: it stopped answering."""
    fences: dict[str, int] = {}
    cursor = ""
    failures = 0
    while failures < PAGE_TRIES:
        answers = await quorum.ask_each({node: (("", ListFences(cursor)),)}, bool)
        answer = answers.get(node)
        if answer is None or isinstance(answer, TransientError):
            failures += 1
            await Pause(quorum.node_seconds)
            continue
        page = answer[0]
        if not isinstance(page, FencePage):
            return None
        fences.update(page.fences)
        cursor = page.cursor
        if not cursor:
            return fences
    return None


async def _admit(
    quorum: Quorum, wanted: dict[int, NodeDescription], fences: dict[str, int], longest: int
) -> dict[int, str]:
    told = {}
    for node, greeting in wanted.items():
        mark = mark_text(quorum.set_id, quorum.size, greeting.run_id)
        steps: list[RaiseFences | Admit] = [
            *(RaiseFences(page) for page in _in_pages(fences)),
            Admit(mark, longest),
        ]
        admitted = await _ask_in_order(quorum, node, steps)
        told[node] = (
            f"rejoined: {len(fences)} fences were copied"
            if admitted is not None and admitted.mark.ready == mark
            else "was restarted or emptied meanwhile, or does not answer: run it again"
        )
    return told


def _in_pages(fences: dict[str, int]) -> list[tuple[tuple[str, int], ...]]:
    items = tuple(fences.items())
    return [items[start : start + PAGE] for start in range(0, len(items), PAGE)]


async def _ask_in_order(quorum: Quorum, node: int, steps: Sequence[RaiseFences | Admit]) -> Marked | None:
    """One step after the other; the last answer, or None where one was not answered."""
    last: Marked | None = None
    for step in steps:
        answer = (await quorum.ask_each({node: (("", step),)}, bool)).get(node)
        if answer is None or isinstance(answer, TransientError) or not isinstance(answer[0], Marked):
            return None
        last = answer[0]
    return last


# --- for people ---------------------------------------------------------------------------------


async def status(quorum: Quorum) -> list[Status]:
    """How every node stands. Changes nothing."""
    greetings = await describe_nodes(quorum, range(quorum.size), quorum.size + 1, JOIN_SECONDS)
    sets = Counter(state_of(each).set_id for each in greetings.values() if state_of(each).set_id)
    if sets and not quorum.set_id:
        quorum.set_membership(max(sets, key=lambda each: sets[each]))
    found = []
    for node, label in enumerate(quorum.labels):
        each = greetings.get(node)
        what = "unreachable" if each is None else state_of(each).state
        found.append(Status(label, what, _reason_against(quorum, quorum.node_reports[node])))
    return found
