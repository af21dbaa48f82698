"""Which nodes may take part: those whose mark says that they have lost no data.

A node that lost data would issue numbers again that are tokens already. So a node issues numbers only while
its mark has the id of the set and the run id of its server. The mark is lost with the other data: a node
without a mark has to rejoin. The mark of an earlier run is renewed where the node's own settings say that no
answer is ever lost.
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
"""The pause between two attempts to restore unready nodes. It doubles with every failure."""

JOIN_SECONDS: Final = 0.5
"""The least time limit of the first round: the client has to connect, perhaps on a busy machine."""

REJOIN_MARGIN_SECONDS: Final = 1.0
REJOIN_DRIFT: Final = 0.02
"""A node that rejoins waits longer than the longest ttl by this part: clocks run at different rates."""

PAGE: Final = 500
PAGE_TRIES: Final = 20

DESCRIBE: Final[Batch] = (("", DescribeNode()),)


class NodeState(NamedTuple):
    """The state of a node, as it reports it."""

    state: str
    """``ready``, ``restarted`` (its mark is of an earlier run), ``primed``, ``empty`` or ``unfit``."""
    set_id: str
    size: int
    run_id: str


class Status(NamedTuple):
    """One node, as ``holdfast redlock status`` shows it."""

    label: str
    state: str
    advice: str
    """The reason and what to do about it; empty: the node takes part."""


def run_id_of(mark: str) -> str:
    return mark.rpartition("/")[2]


def set_id_of(mark: str) -> str:
    return mark.partition("/")[0]


def state_of(description: NodeDescription) -> NodeState:
    mark = description.mark
    if description.complaint:
        return NodeState("unfit", "", 0, description.run_id)
    for text, state in ((mark.ready, "ready"), (mark.primed, "primed")):
        if text:
            set_id, _, rest = text.partition("/")
            size, _, run = rest.partition("/")
            if run == description.run_id:
                return NodeState(state, set_id, int(size), description.run_id)
            if state == "ready":
                return NodeState("restarted", set_id, int(size), description.run_id)
    return NodeState("empty", "", 0, description.run_id)


async def describe_nodes(
    quorum: Quorum, nodes: Sequence[int], until_ready: int, seconds_min: float = 0.0
) -> dict[int, NodeDescription]:
    """Descriptions of nodes. Returns early once ``until_ready`` ready nodes are of one set."""

    def enough(answers: Answers) -> bool:
        sets = Counter(
            state.set_id
            for answer in answers.values()
            if not isinstance(answer, TransientError) and (state := state_of(answer[0])).state == "ready"
        )
        return bool(sets) and max(sets.values()) >= until_ready

    answers = await quorum.ask_each(dict.fromkeys(nodes, DESCRIBE), enough, seconds_min)
    descriptions = {}
    for node in nodes:
        answer = answers.get(node)
        if answer is None or isinstance(answer, TransientError):
            quorum.node_reports[node] = str(answer or "no answer")
        else:
            quorum.node_reports[node] = descriptions[node] = answer[0]
    _refuse_same_server(quorum, descriptions)
    return descriptions


def _refuse_same_server(quorum: Quorum, descriptions: dict[int, NodeDescription]) -> None:
    """Two addresses of one server are one vote."""
    by_run: dict[str, int] = {}
    for node, description in descriptions.items():
        other = by_run.setdefault(description.run_id, node)
        if other != node:
            raise EngineUnavailable(
                f"{quorum.labels[other]} and {quorum.labels[node]} are one server: "
                "Redlock needs servers that fail independently"
            )


def _reason_against(quorum: Quorum, description: NodeDescription | str) -> str:
    """Why this node does not take part; empty: it takes part."""
    if isinstance(description, str):
        return description
    state = state_of(description)
    if state.state == "unfit":
        return description.complaint
    if state.set_id and state.size != quorum.size:
        return f"it belongs to a set of {state.size} nodes, not of {quorum.size}: name all nodes of the set"
    if state.set_id and quorum.set_id and state.set_id != quorum.set_id:
        return "it belongs to another set of nodes"
    if state.state == "empty":
        if not quorum.set_id and _all_are_empty(quorum):
            return "it has no mark, and neither have the others; run: holdfast redlock init"
        return "it has no mark: it lost its data, or is new; run: holdfast redlock rejoin"
    if state.state == "restarted" and not description.durable:
        return (
            "it was restarted and may have lost data (not appendonly yes with appendfsync always); "
            "run: holdfast redlock rejoin"
        )
    return "" if state.state == "ready" else "it is being started"


def _all_are_empty(quorum: Quorum) -> bool:
    """Whether no set exists that a node could rejoin."""
    return len(quorum.node_reports) == quorum.size and all(
        isinstance(report, NodeDescription) and state_of(report).state in ("empty", "primed")
        for report in quorum.node_reports.values()
    )


def describe_shortfall(quorum: Quorum, answered: int) -> str:
    """The message of the error that there is no majority."""
    reasons = [
        f"{quorum.labels[node]}: {reason}"
        for node, report in sorted(quorum.node_reports.items())
        if (reason := _reason_against(quorum, report))
    ]
    return f"{answered} of {quorum.size} nodes take part, {quorum.majority} must; {'; '.join(reasons)}"


def note_node_replies(quorum: Quorum, replies: Mapping[int, Any]) -> None:
    """Note why nodes did not take part, for the message. Unready nodes say why when they are restored."""
    for node in quorum.nodes:
        reply = replies.get(node)
        if reply is None:
            quorum.node_reports[node] = "no answer so far"  # a round ends before all have answered
        elif isinstance(reply, TransientError):
            quorum.node_reports[node] = str(reply)
        elif isinstance(reply, ClockSkewed):
            quorum.node_reports[node] = "its clock differs from the others' by more than a minute"
        elif isinstance(reply, Unready):
            quorum.unready.add(node)
        else:
            quorum.node_reports.pop(node, None)


async def too_few_nodes(quorum: Quorum, replies: Mapping[int, Any], answered: int) -> NotApplied:
    """The error of a round with too few answers. Unready nodes are restored for the next try."""
    note_node_replies(quorum, replies)
    if quorum.unready:
        await restore_unready(quorum)
    return NotApplied(describe_shortfall(quorum, answered))


# --- joining ------------------------------------------------------------------------------------


async def join(quorum: Quorum) -> None:
    """Learn the id of the set. Initialise a set where all nodes are empty."""
    if quorum.set_id:
        return
    descriptions = await describe_nodes(quorum, range(quorum.size), quorum.majority, JOIN_SECONDS)
    states = {node: state_of(description) for node, description in descriptions.items()}
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
        set_id = await initialise(quorum, descriptions)
        descriptions = {}
    quorum.set_membership(set_id)
    await _restore_marks(quorum, descriptions)


def _set_of_majority(quorum: Quorum, states: dict[int, NodeState]) -> str | None:
    """The id of the set of a majority; None: there is none."""
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


async def initialise(quorum: Quorum, descriptions: dict[int, NodeDescription]) -> str:
    """Make a set of nodes that are all reachable and all empty. Other clients may be doing the same at this
    moment: the node with the smallest run id decides whose set it becomes."""
    first = min(descriptions, key=lambda node: descriptions[node].run_id)
    description = descriptions[first]
    set_id = (
        set_id_of(description.mark.primed)
        if run_id_of(description.mark.primed) == description.run_id
        else await Nonce()
    )
    errors: list[str] = []
    primed = await _prime(quorum, {first: description}, set_id, errors)
    if first not in primed:
        raise NotApplied("; ".join([f"{quorum.labels[first]} does not answer, or was restarted", *errors]))
    set_id = set_id_of(primed[first])
    others = {node: each for node, each in descriptions.items() if node != first}
    primed |= await _prime(quorum, others, set_id, errors)
    if len(primed) < quorum.size or {set_id_of(mark) for mark in primed.values()} != {set_id}:
        reason = "the nodes are being initialised by another client, or some of them do not answer"
        raise NotApplied("; ".join([reason, *errors]))
    starts: dict[int, Batch] = {node: (("", Start(mark)),) for node, mark in primed.items()}
    answers = await quorum.ask_each(starts, lambda answers: _count_ready(answers) >= quorum.size)
    if _count_ready(answers) < quorum.majority:
        raise NotApplied("the nodes were primed, but too few of them could be started")
    return set_id


async def _prime(
    quorum: Quorum, descriptions: dict[int, NodeDescription], set_id: str, errors: list[str]
) -> dict[int, str]:
    """Node → its primed mark. The errors of the other nodes are added to ``errors``."""
    asks: dict[int, Batch] = {}
    for node, description in descriptions.items():
        wanted = mark_text(set_id, quorum.size, description.run_id)
        asks[node] = (("", Prime(wanted, description.mark.primed)),)
    answers = await quorum.ask_each(asks, lambda answers: len(answers) >= len(asks))
    primed = {}
    for node, answer in answers.items():
        if isinstance(answer, TransientError):
            errors.append(str(answer))
        elif isinstance(answer[0], Marked):
            mark = answer[0].mark.primed
            if run_id_of(mark) == descriptions[node].run_id:
                primed[node] = mark
    return primed


def _count_ready(answers: Answers) -> int:
    return sum(
        1
        for answer in answers.values()
        if not isinstance(answer, TransientError) and isinstance(answer[0], Marked) and answer[0].mark.ready
    )


# --- unready nodes ------------------------------------------------------------------------------


async def restore_unready(quorum: Quorum) -> bool:
    """Renew the marks of unready nodes that have lost no data. Whether some are ready now."""
    descriptions = await describe_nodes(quorum, sorted(quorum.unready), quorum.size + 1)
    is_restored = await _restore_marks(quorum, descriptions)
    quorum.unready.clear()  # they answer so again if they still are
    quorum.failed_restores = 0 if is_restored else quorum.failed_restores + 1
    pause = min(RESTORE_SECONDS * 2 ** min(quorum.failed_restores, 10), RESTORE_SECONDS_MAX)
    quorum.restores_at = quorum.now() + pause
    return is_restored


async def restore_unready_if_due(quorum: Quorum) -> None:
    """Restore from time to time, before a request whose time counts."""
    if quorum.is_restore_due():
        await restore_unready(quorum)


async def _restore_marks(quorum: Quorum, descriptions: dict[int, NodeDescription]) -> bool:
    asks: dict[int, Batch] = {}
    is_restored = False
    for node, description in descriptions.items():
        state = state_of(description)
        if (state.set_id, state.size) != (quorum.set_id, quorum.size):
            continue  # empty, or of another set
        wanted = mark_text(quorum.set_id, quorum.size, description.run_id)
        if state.state == "restarted" and description.durable:
            asks[node] = (("", Trust(wanted, description.mark.ready)),)
        elif state.state == "primed":
            asks[node] = (("", Start(wanted)),)
        elif state.state == "ready":
            is_restored = True  # another client has renewed it
    if asks:
        answers = await quorum.ask_each(asks, lambda answers: len(answers) >= len(asks))
        is_restored = is_restored or _count_ready(answers) > 0
    return is_restored


# --- rejoining ----------------------------------------------------------------------------------


async def rejoin(
    quorum: Quorum, nodes: frozenset[int], wait: float | None = None, remembers: bool = False
) -> dict[int, str]:
    """Have nodes take part again after data loss: wait until every lease that they granted has ended, copy
    all fences to them, set their marks. Returns the result for each node.

    ``remembers``: the operator knows that a restarted node has lost nothing.
    """
    await join(quorum)
    descriptions = await describe_nodes(quorum, range(quorum.size), quorum.size + 1, JOIN_SECONDS)
    intact = {node for node, each in descriptions.items() if _is_intact(quorum, each)}
    wanted = {node: each for node, each in descriptions.items() if node in nodes and node not in intact}
    results = dict.fromkeys(nodes - descriptions.keys(), "did not answer")
    results |= dict.fromkeys(nodes & intact, "is ready")
    results |= {node: f"cannot: {each.complaint}" for node, each in wanted.items() if each.complaint}
    wanted = {node: each for node, each in wanted.items() if not each.complaint}
    if remembers:
        results |= await _trust(quorum, wanted)
        wanted = {node: each for node, each in wanted.items() if node not in results}
    if not wanted:
        return results
    if len(intact) < quorum.majority:
        raise EngineUnavailable(
            f"{len(intact)} of {quorum.size} nodes have lost no data; {quorum.majority} must, "
            "for only a majority knows all numbers that were issued"
        )
    results |= await _mark_rejoining(quorum, wanted)
    wanted = {node: each for node, each in wanted.items() if node not in results}
    longest = max(descriptions[node].mark.longest for node in intact)
    waited = 0.0
    while True:
        missing = (rejoin_seconds(longest) if wait is None else wait) - waited
        await Pause(missing)
        waited += missing
        fences, longest = await _fences_of_majority(quorum, intact)
        # An attempt that was under way at the first look may have requested a longer ttl than all before.
        if wait is not None or rejoin_seconds(longest) <= waited:
            return results | await _admit(quorum, wanted, fences, longest)


def rejoin_seconds(longest_us: int) -> float:
    """How long a lease that a node granted before its data loss can still be relied on, or decided."""
    return max(longest_us / 1e6, DECIDE_SECONDS) * (1.0 + REJOIN_DRIFT) + REJOIN_MARGIN_SECONDS


def _is_intact(quorum: Quorum, description: NodeDescription) -> bool:
    return state_of(description) == NodeState("ready", quorum.set_id, quorum.size, description.run_id)


async def _trust(quorum: Quorum, wanted: dict[int, NodeDescription]) -> dict[int, str]:
    asks: dict[int, Batch] = {}
    for node, description in wanted.items():
        state = state_of(description)
        if state.state == "restarted" and state.set_id == quorum.set_id:
            mark = mark_text(quorum.set_id, quorum.size, description.run_id)
            asks[node] = (("", Trust(mark, description.mark.ready)),)
    answers = await quorum.ask_each(asks, lambda answers: len(answers) >= len(asks)) if asks else {}
    return {
        node: "trusted: its mark was renewed"
        for node, answer in answers.items()
        if not isinstance(answer, TransientError) and isinstance(answer[0], Marked) and answer[0].mark.ready
    }


async def _mark_rejoining(quorum: Quorum, wanted: dict[int, NodeDescription]) -> dict[int, str]:
    """Mark the nodes as rejoining. Returns the nodes that did not answer."""
    marks = {node: mark_text(quorum.set_id, quorum.size, each.run_id) for node, each in wanted.items()}
    asks: dict[int, Batch] = {node: (("", Rejoin(mark)),) for node, mark in marks.items()}
    answers = await quorum.ask_each(asks, lambda answers: len(answers) >= len(asks))
    acknowledged = {
        node
        for node, answer in answers.items()
        if not isinstance(answer, TransientError)
        and answer[0] == Marked(answer[0].mark._replace(rejoins=marks[node]))
    }
    return dict.fromkeys(wanted.keys() - acknowledged, "did not answer")


async def _fences_of_majority(quorum: Quorum, intact: set[int]) -> tuple[dict[str, int], int]:
    """The largest fence of every name among a majority that has lost no data, and the longest ttl there."""
    fences: dict[str, int] = {}
    complete = 0
    longest = 0
    for node in sorted(intact):
        pages = await _fences_of_node(quorum, node)
        description = (await describe_nodes(quorum, (node,), 1)).get(node)
        if pages is None or description is None or not _is_intact(quorum, description):
            continue
        complete += 1
        longest = max(longest, description.mark.longest)
        for name, fence in pages.items():
            fences[name] = max(fences.get(name, 0), fence)
    if complete < quorum.majority:
        raise NotApplied(f"only {complete} of {quorum.size} nodes listed all their fences: run it again")
    return fences, longest


async def _fences_of_node(quorum: Quorum, node: int) -> dict[str, int] | None:
    """All fences of one node; None: the node stopped answering."""
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
    results = {}
    for node, description in wanted.items():
        mark = mark_text(quorum.set_id, quorum.size, description.run_id)
        steps: list[RaiseFences | Admit] = [
            *(RaiseFences(page) for page in _in_pages(fences)),
            Admit(mark, longest),
        ]
        admitted = await _ask_in_order(quorum, node, steps)
        results[node] = (
            f"rejoined: {len(fences)} fences were copied"
            if admitted is not None and admitted.mark.ready == mark
            else "was restarted or emptied meanwhile, or does not answer: run it again"
        )
    return results


def _in_pages(fences: dict[str, int]) -> list[tuple[tuple[str, int], ...]]:
    items = tuple(fences.items())
    return [items[start : start + PAGE] for start in range(0, len(items), PAGE)]


async def _ask_in_order(quorum: Quorum, node: int, steps: Sequence[RaiseFences | Admit]) -> Marked | None:
    """Ask one step after the other. Returns the last answer, or None if a step was not answered."""
    last: Marked | None = None
    for step in steps:
        answer = (await quorum.ask_each({node: (("", step),)}, bool)).get(node)
        if answer is None or isinstance(answer, TransientError) or not isinstance(answer[0], Marked):
            return None
        last = answer[0]
    return last


# --- status -------------------------------------------------------------------------------------


async def status(quorum: Quorum) -> list[Status]:
    """The status of every node. Changes nothing."""
    descriptions = await describe_nodes(quorum, range(quorum.size), quorum.size + 1, JOIN_SECONDS)
    sets = Counter(state_of(each).set_id for each in descriptions.values() if state_of(each).set_id)
    if sets and not quorum.set_id:
        quorum.set_membership(max(sets, key=lambda each: sets[each]))
    found = []
    for node, label in enumerate(quorum.labels):
        each = descriptions.get(node)
        state = "unreachable" if each is None else state_of(each).state
        found.append(Status(label, state, _reason_against(quorum, quorum.node_reports[node])))
    return found
