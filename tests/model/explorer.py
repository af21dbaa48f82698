"""All that can happen to a few attempts on three nodes, in every order: the shipped rules, to the end.

A state is what the nodes keep and how far each attempt has come. Messages need no place in it: what was sent
may arrive at any later time, or never, or again. An answer, once given, stays true ("this node issued that
number to this attempt"), so a client that receives it late is a client that decides late. Claims run out
whenever it suits them: that covers releases, slow clients and clocks gone wrong. A client that crashed is one
that does nothing any more.

Nodes are alike, so their order does not matter; attempts start in their order, so their names do not. Columns
(one node each) and rows (all attempts) are kept once and known by number: a state is one integer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Final, NamedTuple

from holdfast.protocols.quorum.tally import Counted, ToStamp, Verdict, after_acquire, after_stamp
from holdfast.rules import node

__all__ = ["Bounds", "ClientRule", "Explorer", "Found", "NodeRule", "RejoinRule"]

NODES: Final = 3
MARK: Final = node.mark_text("set", NODES, "run")
READY: Final = node.Mark(MARK, MARK)
NEVER: Final = 1 << 50

IDLE, ASKING, STAMPING, DECIDED = range(4)
ACQUIRE, STAMP = range(2)


class Column(NamedTuple):
    """One node."""

    fence: int
    owner: int
    """The attempt that has its claim; −1: none."""
    number: int
    ready: bool
    issued: tuple[int, ...]
    """For each attempt the numbers that were issued to it, as bits: the answers that may be under way."""
    taken: tuple[int, ...]
    """Those of them with which a claim of it began, and was not merely stamped."""
    arrived: tuple[bool, ...]
    """For each attempt whether its Acquire did something here; from then on it is a copy that does."""


class Row(NamedTuple):
    """One attempt."""

    phase: int
    hint: int
    floor: int
    """The largest token that was decided when it started."""
    number: int
    """What it stamps, or its token; 0 once decided: it gave up."""


class Bounds(NamedTuple):
    """How much is explored."""

    attempts: int
    hints: tuple[int, ...] = (1, 2)
    copies: int = 0
    """How many requests the network may deliver twice."""
    forgets: int = 0
    """How often a node may forget."""
    spreads: int = 0
    """How often one who was granted it may have one more node give it to it, under a hint of its own."""


class Rows(NamedTuple):
    """All attempts, and what may still go wrong."""

    forgets: int
    copies: int
    spreads: int
    attempts: tuple[Row, ...]


class Violation(Exception):
    """A promise was broken."""


@dataclass(frozen=True)
class NodeRule:
    """What a node does; the shipped rule unless a test says otherwise."""

    apply: Callable[[node.Mark, node.NodeRecord, node.NodeRequest, str, int], node.NodeStep] = node.apply


@dataclass(frozen=True)
class ClientRule:
    """What a client makes of answers; the shipped functions unless a test says otherwise."""

    after_acquire: Callable[..., Verdict | None] = after_acquire
    after_stamp: Callable[..., Verdict | None] = after_stamp
    stamps: bool = True


@dataclass(frozen=True)
class RejoinRule:
    """What a node that forgot has to do before it takes part again."""

    needs_mark: bool = True
    waits: bool = True
    copies: bool = True


@dataclass(slots=True)
class Found:
    """What an exploration came to."""

    states: int = 0
    transitions: int = 0
    decided: int = 0
    """In how many states an attempt has just got a token."""
    violation: str = ""


@dataclass
class Explorer:
    """Visits every state that can be reached."""

    bounds: Bounds
    nodes: NodeRule = NodeRule()
    clients: ClientRule = ClientRule()
    rejoin: RejoinRule = RejoinRule()
    _columns: list[Column] = field(default_factory=list)
    _column_ids: dict[Column, int] = field(default_factory=dict)
    _rows: list[Rows] = field(default_factory=list)
    _row_ids: dict[Rows, int] = field(default_factory=dict)
    _asked: dict[tuple[int, ...], int] = field(default_factory=dict)
    _judged: dict[tuple[int, ...], tuple[Verdict, ...]] = field(default_factory=dict)

    def explore(self) -> Found:
        """All states; ends with the first broken promise."""
        found = Found()
        start = self._first()
        seen = {start}
        frontier = [start]
        try:
            while frontier:
                for after in self._steps(frontier.pop(), found):
                    found.transitions += 1
                    if after not in seen:
                        seen.add(after)
                        frontier.append(after)
        except Violation as violation:
            found.violation = str(violation)
        found.states = len(seen)
        return found

    # --- states ---------------------------------------------------------------------------------

    def _first(self) -> int:
        count = self.bounds.attempts
        empty = Column(0, -1, 0, True, (0,) * count, (0,) * count, (False,) * count)
        bounds = self.bounds
        rows = Rows(bounds.forgets, bounds.copies, bounds.spreads, (Row(IDLE, 0, 0, 0),) * count)
        return self._state([self._column(empty)] * NODES, self._row(rows))

    def _column(self, column: Column) -> int:
        known = self._column_ids.get(column)
        if known is None:
            known = self._column_ids[column] = len(self._columns)
            self._columns.append(column)
        return known

    def _row(self, rows: Rows) -> int:
        known = self._row_ids.get(rows)
        if known is None:
            known = self._row_ids[rows] = len(self._rows)
            self._rows.append(rows)
        return known

    def _state(self, columns: list[int], rows: int) -> int:
        a, b, c = sorted(columns)
        return ((rows << 20 | a) << 20 | b) << 20 | c

    # --- what can happen ------------------------------------------------------------------------

    def _steps(self, state: int, found: Found) -> list[int]:
        low = (1 << 20) - 1
        columns = [state >> 40 & low, state >> 20 & low, state & low]
        rows_id = state >> 60
        rows = self._rows[rows_id]
        after: list[int] = []
        for who, row in enumerate(rows.attempts):
            if row.phase == IDLE:
                after += self._started(columns, rows, who)
                break
            after += self._arrived(columns, rows_id, who, ACQUIRE, row.hint)
            if row.phase == ASKING:
                after += self._judged_answers(columns, rows, who, found)
            elif row.number and self.clients.stamps:
                after += self._arrived(columns, rows_id, who, STAMP, row.number)
                if row.phase == STAMPING:
                    after += self._judged_stamps(columns, rows, who, found)
            if row.phase == DECIDED and row.number and rows.spreads:
                after += self._spread(columns, rows, who)
        after += self._expired(columns, rows_id)
        if self.bounds.forgets:
            after += self._forgotten(columns, rows)
        return after

    def _started(self, columns: list[int], rows: Rows, who: int) -> list[int]:
        floor = max((row.number for row in rows.attempts if row.phase == DECIDED), default=0)
        return [
            self._state(columns, self._row(_with_row(rows, who, Row(ASKING, hint, floor, 0))))
            for hint in self.bounds.hints
        ]

    def _arrived(self, columns: list[int], rows_id: int, who: int, what: int, argument: int) -> list[int]:
        """An Acquire or a Stamp arrives at one of the nodes."""
        after = []
        for place, column in enumerate(columns):
            if place and column == columns[place - 1]:
                continue  # the same node, as far as any client can tell
            changed = self._changed(column, who, what, argument)
            if changed == column:
                continue
            if what == ACQUIRE and self._columns[column].arrived[who]:
                rows = self._rows[rows_id]
                if rows.copies:
                    fewer = self._row(rows._replace(copies=rows.copies - 1))
                    after.append(self._state(_with_at(columns, place, changed), fewer))
            else:
                after.append(self._state(_with_at(columns, place, changed), rows_id))
        return after

    def _spread(self, columns: list[int], rows: Rows, who: int) -> list[int]:
        """What is held goes to one more node, late or not, whether a majority still has it or not."""
        fewer = self._row(rows._replace(spreads=rows.spreads - 1))
        after = []
        for place, column in enumerate(columns):
            for hint in self.bounds.hints:
                changed = self._changed(column, who, ACQUIRE, hint)
                if changed != column:
                    after.append(self._state(_with_at(columns, place, changed), fewer))
        return after

    def _changed(self, *asked: int) -> int:
        """The node after that: column, attempt, what it asks for, and with which hint or number."""
        changed = self._asked.get(asked)
        if changed is None:
            changed = self._asked[asked] = self._ask(*asked)
        return changed

    def _ask(self, column_id: int, who: int, what: int, argument: int) -> int:
        column = self._columns[column_id]
        record = _record_of(column)
        request: node.NodeRequest = node.Stamp(f"{who}", argument)
        if what == ACQUIRE:
            request = node.Acquire(f"{who}", argument, NEVER, 0, "", "", "")
        step = self.nodes.apply(READY if column.ready else node.FRESH, record, request, MARK, 0)
        issued, taken, arrived = column.issued, column.taken, column.arrived
        if step.record == record and what == ACQUIRE:
            return column_id  # it did nothing: as good as lost
        if isinstance(step.reply, node.Issued):
            issued = _with_bit(issued, who, step.reply.number)
            if what == ACQUIRE:
                taken = _with_bit(taken, who, step.reply.number)
        if what == ACQUIRE:
            arrived = (*arrived[:who], True, *arrived[who + 1 :])
        claim = step.record.claim
        owner, number = (-1, 0) if claim is None else (int(claim.owner), claim.number)
        return self._column(Column(step.record.fence, owner, number, column.ready, issued, taken, arrived))

    def _expired(self, columns: list[int], rows_id: int) -> list[int]:
        after = []
        for place, column_id in enumerate(columns):
            column = self._columns[column_id]
            if column.owner >= 0:
                free = self._column(column._replace(owner=-1, number=0))
                after.append(self._state(_with_at(columns, place, free), rows_id))
        return after

    # --- what clients make of it ----------------------------------------------------------------

    def _judged_answers(self, columns: list[int], rows: Rows, who: int, found: Found) -> list[int]:
        """The client has received some of the replies, and decides."""
        after = []
        for verdict in self._verdicts(tuple([self._columns[column].issued[who] for column in columns])):
            if isinstance(verdict, Counted):
                after.append(self._decided(columns, rows, who, verdict.token, found))
            elif isinstance(verdict, ToStamp):
                row = rows.attempts[who]._replace(phase=STAMPING, number=verdict.number)
                after.append(self._state(columns, self._row(_with_row(rows, who, row))))
        return after

    def _verdicts(self, masks: tuple[int, ...]) -> tuple[Verdict, ...]:
        """All that any set of these answers can amount to."""
        known = self._judged.get(masks)
        if known is None:
            verdicts: dict[Verdict, None] = {}
            for numbers in product(*[(0, *_bits(mask)) for mask in masks]):
                answers = {n: node.Issued(number) for n, number in enumerate(numbers) if number}
                verdict = self.clients.after_acquire(answers, NODES)
                if isinstance(verdict, ToStamp):
                    verdict = ToStamp(verdict.number, ())
                if verdict is not None:
                    verdicts[verdict] = None
            known = self._judged[masks] = tuple(verdicts)
        return known

    def _judged_stamps(self, columns: list[int], rows: Rows, who: int, found: Found) -> list[int]:
        number = rows.attempts[who].number
        issued = [n for n, c in enumerate(columns) if self._columns[c].issued[who] >> number & 1]
        verdict = self.clients.after_stamp(number, issued, {}, NODES)
        if not isinstance(verdict, Counted):
            return []
        return [self._decided(columns, rows, who, verdict.token, found)]

    def _decided(self, columns: list[int], rows: Rows, who: int, token: int, found: Found) -> int:
        found.decided += 1
        rows = _with_row(rows, who, rows.attempts[who]._replace(phase=DECIDED, number=token))
        self._check(columns, rows.attempts, who)
        return self._state(columns, self._row(rows))

    def _check(self, columns: list[int], rows: tuple[Row, ...], who: int) -> None:
        mine = rows[who]
        if mine.number <= mine.floor:
            raise Violation(f"not monotone: token {mine.number}, {mine.floor} was granted before it asked")
        for other, row in enumerate(rows):
            if other == who or row.phase != DECIDED:
                continue
            if row.number == mine.number:
                raise Violation(f"not unique: two grants with token {mine.number}")
            for column_id in columns:
                _check_succession(self._columns[column_id], rows, who, other)

    # --- nodes that forget ----------------------------------------------------------------------

    def _forgotten(self, columns: list[int], rows: Rows) -> list[int]:
        after = []
        for place, column_id in enumerate(columns):
            column = self._columns[column_id]
            if column.ready and rows.forgets:
                lost = column._replace(fence=0, owner=-1, number=0, ready=not self.rejoin.needs_mark)
                fewer = self._row(rows._replace(forgets=rows.forgets - 1))
                after.append(self._state(_with_at(columns, place, self._column(lost)), fewer))
            elif not column.ready:
                others = [self._columns[c] for n, c in enumerate(columns) if n != place]
                if all(other.ready for other in others):
                    after.append(self._rejoined(columns, rows, place, others))
        return after

    def _rejoined(self, columns: list[int], rows: Rows, place: int, others: list[Column]) -> int:
        column = self._columns[columns[place]]
        fence = max(other.fence for other in others) if self.rejoin.copies else 0
        if self.rejoin.waits:
            # A client that it answered before it forgot can no longer decide: that took longer than it lasts.
            for who, row in enumerate(rows.attempts):
                if row.phase in (ASKING, STAMPING) and column.issued[who]:
                    rows = _with_row(rows, who, row._replace(phase=DECIDED, number=0))
        changed = self._column(column._replace(fence=fence, ready=True))
        return self._state(_with_at(columns, place, changed), self._row(rows))


def _check_succession(column: Column, rows: tuple[Row, ...], who: int, other: int) -> None:
    """On a node that counted for both, whose claim came later has the larger token."""
    mine, theirs = rows[who].number, rows[other].number
    if not (column.issued[who] >> mine & 1 and column.issued[other] >> theirs & 1):
        return
    if (_began(column, who, mine) < _began(column, other, theirs)) != (mine < theirs):
        raise Violation(f"no succession: token {mine} beside {theirs}, in the wrong order")


def _record_of(column: Column) -> node.NodeRecord:
    claim = None
    if column.owner >= 0:
        claim = node.Claim(f"{column.owner}", column.number, 0, NEVER, NEVER, 0, "", "", "")
    return node.NodeRecord(column.fence, claim)


def _began(column: Column, who: int, number: int) -> int:
    """The number with which the claim began that this number was issued to."""
    return max((bit for bit in _bits(column.taken[who]) if bit <= number), default=0)


def _bits(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def _with_row(rows: Rows, who: int, row: Row) -> Rows:
    attempts = rows.attempts
    return rows._replace(attempts=(*attempts[:who], row, *attempts[who + 1 :]))


def _with_bit(masks: tuple[int, ...], who: int, bit: int) -> tuple[int, ...]:
    return (*masks[:who], masks[who] | 1 << bit, *masks[who + 1 :])


def _with_at(values: list[int], place: int, value: int) -> list[int]:
    changed = values.copy()
    changed[place] = value
    return changed
