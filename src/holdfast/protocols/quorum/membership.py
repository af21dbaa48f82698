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
    FencePage,
    Fences,
    Greeting,
    Hello,
    Marked,
    Prime,
    Raise,
    Rejoin,
    Skewed,
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
    "described",
    "hear",
    "initialise",
    "join",
    "look_after",
    "look_after_in_time",
    "rejoin",
    "run_of",
    "set_of",
    "state_of",
    "status",
    "too_few",
]

LOOK_AFTER_SECONDS: Final = 0.5
LOOK_AFTER_SECONDS_MAX: Final = 16.0
"""How long to wait before nodes that are not ready are looked after again: ever longer."""

JOIN_SECONDS: Final = 0.5
"""Who comes for the first time has connections to make, perhaps on a busy machine: so long at least."""

REJOIN_MARGIN_SECONDS: Final = 1.0
REJOIN_DRIFT: Final = 0.02
"""How much longer than the longest ttl one who rejoins waits: clocks run at different speeds."""

PAGE: Final = 500
PAGE_TRIES: Final = 20

HELLO: Final[Batch] = (("", Hello()),)


class NodeState(NamedTuple):
    """How a node stands, by its own word."""

    what: str
    """``ready``, ``restarted`` (its mark is of an earlier life), ``primed``, ``empty`` or ``unfit``."""
    set_id: str
    size: int
    run: str


class Status(NamedTuple):
    """One node, as ``holdfast redlock status`` shows it."""

    label: str
    state: str
    told: str
    """What that means and what to do about it."""


def run_of(mark: str) -> str:
    return mark.rpartition("/")[2]


def set_of(mark: str) -> str:
    return mark.partition("/")[0]


def state_of(greeting: Greeting) -> NodeState:
    mark = greeting.mark
    if greeting.complaint:
        return NodeState("unfit", "", 0, greeting.run)
    for text, what in ((mark.ready, "ready"), (mark.primed, "primed")):
        if text:
            set_id, _, rest = text.partition("/")
            size, _, run = rest.partition("/")
            if run == greeting.run:
                return NodeState(what, set_id, int(size), greeting.run)
            if what == "ready":
                return NodeState("restarted", set_id, int(size), greeting.run)
    return NodeState("empty", "", 0, greeting.run)


async def greet(
    quorum: Quorum, nodes: Sequence[int], until_said: int, at_least: float = 0.0
) -> dict[int, Greeting]:
    """What nodes say of themselves; goes on when so many have said to which set they belong."""

    def enough(answers: Answers) -> bool:
        sets = Counter(
            state.set_id
            for answer in answers.values()
            if not isinstance(answer, TransientError) and (state := state_of(answer[0])).what == "ready"
        )
        return bool(sets) and max(sets.values()) >= until_said

    answers = await quorum.ask_each(dict.fromkeys(nodes, HELLO), enough, at_least)
    greetings = {}
    for node in nodes:
        answer = answers.get(node)
        if answer is None or isinstance(answer, TransientError):
            quorum.heard[node] = str(answer or "no answer")
        else:
            quorum.heard[node] = greetings[node] = answer[0]
    _refuse_doubles(quorum, greetings)
    return greetings


def _refuse_doubles(quorum: Quorum, greetings: dict[int, Greeting]) -> None:
    """Two addresses of one server are one vote, whatever the list of addresses says."""
    by_run: dict[str, int] = {}
    for node, greeting in greetings.items():
        other = by_run.setdefault(greeting.run, node)
        if other != node:
            raise EngineUnavailable(
                f"{quorum.labels[other]} and {quorum.labels[node]} are one server: "
                "Redlock needs servers that fail independently"
            )


def _trouble_with(quorum: Quorum, greeting: Greeting | str) -> str:
    """Why this node does not take part; empty: it does."""
    if isinstance(greeting, str):
        return greeting
    state = state_of(greeting)
    if state.what == "unfit":
        return greeting.complaint
    if state.set_id and state.size != quorum.size:
        return f"it belongs to a set of {state.size} nodes, not of {quorum.size}: name all nodes of the set"
    if state.set_id and quorum.set_id and state.set_id != quorum.set_id:
        return "it belongs to another set of nodes"
    if state.what == "empty":
        if not quorum.set_id and _all_are_empty(quorum):
            return "it has no mark, and neither have the others; run: holdfast redlock init"
        return "it has no mark: it has forgotten, or is new; run: holdfast redlock rejoin"
    if state.what == "restarted" and not greeting.durable:
        return (
            "it was restarted and may have forgotten (not appendonly yes with appendfsync always); "
            "run: holdfast redlock rejoin"
        )
    return "" if state.what == "ready" else "it is being started"


def _all_are_empty(quorum: Quorum) -> bool:
    """Whether there is no set that a node could rejoin."""
    return len(quorum.heard) == quorum.size and all(
        isinstance(heard, Greeting) and state_of(heard).what in ("empty", "primed")
        for heard in quorum.heard.values()
    )


def described(quorum: Quorum, answered: int) -> str:
    """Why there is no majority, for people."""
    told = [
        f"{quorum.labels[node]}: {why}"
        for node, heard in sorted(quorum.heard.items())
        if (why := _trouble_with(quorum, heard))
    ]
    return f"{answered} of {quorum.size} nodes take part, {quorum.majority} must; {'; '.join(told)}"


def hear(quorum: Quorum, replies: Mapping[int, Any]) -> None:
    """Keep why nodes did not take part, for the message. Those not ready tell when looked after."""
    for node in quorum.nodes:
        reply = replies.get(node)
        if reply is None:
            quorum.heard[node] = "no answer so far"  # nobody waits for all where some are enough to know
        elif isinstance(reply, TransientError):
            quorum.heard[node] = str(reply)
        elif isinstance(reply, Skewed):
            quorum.heard[node] = "its clock differs from the others' by more than a minute"
        elif isinstance(reply, Unready):
            quorum.unready.add(node)
        else:
            quorum.heard.pop(node, None)


async def too_few(quorum: Quorum, replies: Mapping[int, Any], answered: int) -> NotApplied:
    """Why a question came to nothing. Nodes that are not ready are looked after, for whoever asks again."""
    hear(quorum, replies)
    if quorum.unready:
        await look_after(quorum)
    return NotApplied(described(quorum, answered))


# --- joining ------------------------------------------------------------------------------------


async def join(quorum: Quorum) -> None:
    """Learn which set this is; initialise it if nobody has. Nothing to do where it is known already."""
    if quorum.set_id:
        return
    greetings = await greet(quorum, range(quorum.size), quorum.majority, JOIN_SECONDS)
    states = {node: state_of(greeting) for node, greeting in greetings.items()}
    set_id = _set_named(quorum, states)
    if set_id is None:
        if len(states) < quorum.size or any(s.what not in ("empty", "primed") for s in states.values()):
            raise NotApplied(described(quorum, sum(1 for s in states.values() if s.what == "ready")))
        if not quorum.initialises:
            raise EngineUnavailable(
                "the nodes are empty and init=manual: run holdfast redlock init once for this set"
            )
        set_id = await initialise(quorum, greetings)
        greetings = {}
    quorum.belongs_to(set_id)
    await _mend(quorum, greetings)


def _set_named(quorum: Quorum, states: dict[int, NodeState]) -> str | None:
    """The set to which a majority belongs."""
    sets = Counter(s.set_id for s in states.values() if s.what in ("ready", "restarted"))
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


async def initialise(quorum: Quorum, greetings: dict[int, Greeting]) -> str:
    """Make one set of nodes that are all there and all empty. Others may be doing the same at this moment:
    the node with the smallest run decides whose set it becomes."""
    first = min(greetings, key=lambda node: greetings[node].run)
    greeting = greetings[first]
    set_id = set_of(greeting.mark.primed) if run_of(greeting.mark.primed) == greeting.run else await Nonce()
    troubles: list[str] = []
    primed = await _prime(quorum, {first: greeting}, set_id, troubles)
    if first not in primed:
        raise NotApplied("; ".join([f"{quorum.labels[first]} does not answer, or was restarted", *troubles]))
    set_id = set_of(primed[first])
    others = {node: each for node, each in greetings.items() if node != first}
    primed |= await _prime(quorum, others, set_id, troubles)
    if len(primed) < quorum.size or {set_of(mark) for mark in primed.values()} != {set_id}:
        told = "the nodes are being initialised by somebody else, or some of them do not answer"
        raise NotApplied("; ".join([told, *troubles]))
    starts: dict[int, Batch] = {node: (("", Start(mark)),) for node, mark in primed.items()}
    answers = await quorum.ask_each(starts, lambda told: _marked(told) >= quorum.size)
    if _marked(answers) < quorum.majority:
        raise NotApplied("the nodes were primed, but too few of them could be started")
    return set_id


async def _prime(
    quorum: Quorum, greetings: dict[int, Greeting], set_id: str, troubles: list[str]
) -> dict[int, str]:
    """Node → how it is primed now. ``troubles``: what kept nodes from it is added to these."""
    asks: dict[int, Batch] = {}
    for node, greeting in greetings.items():
        wanted = mark_text(set_id, quorum.size, greeting.run)
        asks[node] = (("", Prime(wanted, greeting.mark.primed)),)
    answers = await quorum.ask_each(asks, lambda told: len(told) >= len(asks))
    primed = {}
    for node, answer in answers.items():
        if isinstance(answer, TransientError):
            troubles.append(str(answer))
        elif isinstance(answer[0], Marked):
            mark = answer[0].mark.primed
            if run_of(mark) == greetings[node].run:
                primed[node] = mark
    return primed


def _marked(answers: Answers) -> int:
    return sum(
        1
        for answer in answers.values()
        if not isinstance(answer, TransientError) and isinstance(answer[0], Marked) and answer[0].mark.ready
    )


# --- looking after nodes that are not ready -----------------------------------------------------


async def look_after(quorum: Quorum) -> bool:
    """Nodes said that they are not ready: renew the marks of those that remember. True: some are, now."""
    greetings = await greet(quorum, sorted(quorum.unready), quorum.size + 1)
    mended = await _mend(quorum, greetings)
    quorum.unready.clear()  # they will say so again
    quorum.looked_in_vain = 0 if mended else quorum.looked_in_vain + 1
    pause = min(LOOK_AFTER_SECONDS * 2 ** min(quorum.looked_in_vain, 10), LOOK_AFTER_SECONDS_MAX)
    quorum.looks_after_at = quorum.now() + pause
    return mended


async def look_after_in_time(quorum: Quorum) -> None:
    """Now and then, before anything is asked that is counted by the clock."""
    if quorum.is_to_look_after():
        await look_after(quorum)


async def _mend(quorum: Quorum, greetings: dict[int, Greeting]) -> bool:
    asks: dict[int, Batch] = {}
    mended = False
    for node, greeting in greetings.items():
        state = state_of(greeting)
        if (state.set_id, state.size) != (quorum.set_id, quorum.size):
            continue  # empty, or of another set
        wanted = mark_text(quorum.set_id, quorum.size, greeting.run)
        if state.what == "restarted" and greeting.durable:
            asks[node] = (("", Trust(wanted, greeting.mark.ready)),)
        elif state.what == "primed":
            asks[node] = (("", Start(wanted)),)
        elif state.what == "ready":
            mended = True  # by somebody else, since it was asked
    if asks:
        answers = await quorum.ask_each(asks, lambda told: len(told) >= len(asks))
        mended = mended or _marked(answers) > 0
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
    greetings = await greet(quorum, range(quorum.size), quorum.size + 1, JOIN_SECONDS)
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
    told |= await _begin_to_rejoin(quorum, wanted)
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


def _is_intact(quorum: Quorum, greeting: Greeting) -> bool:
    return state_of(greeting) == NodeState("ready", quorum.set_id, quorum.size, greeting.run)


async def _trust(quorum: Quorum, wanted: dict[int, Greeting]) -> dict[int, str]:
    asks: dict[int, Batch] = {}
    for node, greeting in wanted.items():
        state = state_of(greeting)
        if state.what == "restarted" and state.set_id == quorum.set_id:
            mark = mark_text(quorum.set_id, quorum.size, greeting.run)
            asks[node] = (("", Trust(mark, greeting.mark.ready)),)
    answers = await quorum.ask_each(asks, lambda told: len(told) >= len(asks)) if asks else {}
    return {
        node: "trusted: its mark was renewed"
        for node, answer in answers.items()
        if not isinstance(answer, TransientError) and isinstance(answer[0], Marked) and answer[0].mark.ready
    }


async def _begin_to_rejoin(quorum: Quorum, wanted: dict[int, Greeting]) -> dict[int, str]:
    """Those that did not hear it."""
    marks = {node: mark_text(quorum.set_id, quorum.size, each.run) for node, each in wanted.items()}
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
        pages = await _pages(quorum, node)
        greeting = (await greet(quorum, (node,), 1)).get(node)
        if pages is None or greeting is None or not _is_intact(quorum, greeting):
            continue
        complete += 1
        longest = max(longest, greeting.mark.longest)
        for name, fence in pages.items():
            fences[name] = max(fences.get(name, 0), fence)
    if complete < quorum.majority:
        raise NotApplied(f"only {complete} of {quorum.size} nodes told all their fences: run it again")
    return fences, longest


async def _pages(quorum: Quorum, node: int) -> dict[str, int] | None:
    """All fences of one node; None: it stopped answering."""
    fences: dict[str, int] = {}
    cursor = ""
    failures = 0
    while failures < PAGE_TRIES:
        answers = await quorum.ask_each({node: (("", Fences(cursor)),)}, bool)
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
    quorum: Quorum, wanted: dict[int, Greeting], fences: dict[str, int], longest: int
) -> dict[int, str]:
    told = {}
    for node, greeting in wanted.items():
        mark = mark_text(quorum.set_id, quorum.size, greeting.run)
        steps: list[Raise | Admit] = [*(Raise(page) for page in _in_pages(fences)), Admit(mark, longest)]
        admitted = await _told_all(quorum, node, steps)
        told[node] = (
            f"rejoined: {len(fences)} fences were copied"
            if admitted is not None and admitted.mark.ready == mark
            else "was restarted or emptied meanwhile, or does not answer: run it again"
        )
    return told


def _in_pages(fences: dict[str, int]) -> list[tuple[tuple[str, int], ...]]:
    items = tuple(fences.items())
    return [items[start : start + PAGE] for start in range(0, len(items), PAGE)]


async def _told_all(quorum: Quorum, node: int, steps: Sequence[Raise | Admit]) -> Marked | None:
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
    greetings = await greet(quorum, range(quorum.size), quorum.size + 1, JOIN_SECONDS)
    sets = Counter(state_of(each).set_id for each in greetings.values() if state_of(each).set_id)
    if sets and not quorum.set_id:
        quorum.belongs_to(max(sets, key=lambda each: sets[each]))
    found = []
    for node, label in enumerate(quorum.labels):
        each = greetings.get(node)
        what = "unreachable" if each is None else state_of(each).what
        found.append(Status(label, what, _trouble_with(quorum, quorum.heard[node])))
    return found
