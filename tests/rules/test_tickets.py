"""Tickets in order: whatever stands there, who holds, who waits, and for whom."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocols.tickets.codec import (
    decode_config,
    decode_note,
    decode_ticket,
    decode_value,
    encode_config,
    encode_note,
    encode_ticket,
    encode_value,
)
from holdfast.rules.record import StoredValue, Tombstone
from holdfast.rules.tickets import (
    TOKENS_PER_PLACE,
    LockConfig,
    LockView,
    Ticket,
    blockers,
    holders_of,
    ordered,
    record_of,
    token_at,
    waiters_of,
    watched,
)

MODES = {"lock": ["exclusive"], "rwlock": ["read", "write"], "semaphore": ["permit"]}


def make(kind: str, mode: str, order: int) -> Ticket:
    return Ticket(order, token_at(order), f"n{order}", "c", "o", kind, mode, 30.0, 0.0, None, {})


@st.composite
def views(draw: st.DrawFn, kinds: tuple[str, ...] = tuple(MODES)) -> LockView:
    kind = draw(st.sampled_from(kinds))
    places = draw(st.lists(st.integers(1, 40), unique=True, max_size=9))
    modes = draw(st.lists(st.sampled_from(MODES[kind]), min_size=len(places), max_size=len(places)))
    tickets = ordered([make(kind, mode, order) for order, mode in zip(places, modes, strict=True)])
    limit = draw(st.integers(1, 5)) if kind == "semaphore" else 0
    return LockView(LockConfig(kind, limit, limit), tickets)


def config_of(view: LockView) -> LockConfig:
    assert view.config is not None
    return view.config


def without(view: LockView, *gone: str) -> LockView:
    return view._replace(tickets=tuple(t for t in view.tickets if t.nonce not in gone))


def nonces(tickets: tuple[Ticket, ...]) -> set[str]:
    return {ticket.nonce for ticket in tickets}


@given(views())
def test_tickets_that_nothing_blocks_hold_and_are_the_first_few(view: LockView) -> None:
    free = [t for t in view.tickets if not blockers(view.tickets, t, config_of(view))]
    assert tuple(free) == holders_of(view)
    assert holders_of(view) + waiters_of(view) == view.tickets
    assert not view.tickets or holders_of(view), "one ticket always holds"


@given(views())
def test_no_more_hold_than_the_primitive_allows(view: LockView) -> None:
    held = holders_of(view)
    if config_of(view).kind == "semaphore":
        assert len(held) <= config_of(view).limit
    elif config_of(view).kind == "lock":
        assert len(held) <= 1
    else:
        assert len(held) <= 1 or {ticket.mode for ticket in held} == {"read"}


@given(views())
def test_first_come_first_served(view: LockView) -> None:
    """The first who waits is blocked by those who hold, and nobody passes it: writers do not starve."""
    queue = waiters_of(view)
    if queue:
        assert blockers(view.tickets, queue[0], config_of(view))
        assert all(ticket.order > queue[0].order for ticket in queue[1:])


@given(views(), st.data())
def test_a_holder_goes_on_holding_whatever_the_others_do(view: LockView, data: st.DataObject) -> None:
    gone = data.draw(
        st.sets(st.sampled_from([t.nonce for t in view.tickets]) if view.tickets else st.nothing())
    )
    end = max([t.order for t in view.tickets], default=0) + 1
    mode = data.draw(st.sampled_from(MODES[config_of(view).kind]))
    after = without(view, *gone)
    after = after._replace(tickets=(*after.tickets, make(config_of(view).kind, mode, end)))
    assert nonces(holders_of(view)) - gone <= nonces(holders_of(after))


@given(views())
def test_a_waiter_waits_for_some_before_it_and_never_for_the_whole_queue(view: LockView) -> None:
    for ticket in view.tickets:
        one = watched(view.tickets, ticket, config_of(view))
        before = nonces(tuple(t for t in view.tickets if t.order < ticket.order))
        assert set(one.nonces) <= before
        assert bool(one.nonces) == (ticket in waiters_of(view))
        if config_of(view).kind != "semaphore":
            assert len(one.nonces) <= 1
        elif one.nonces and one.limit:
            assert set(one.nonces) == nonces(holders_of(view)), "only the first who waits watches all holders"
        elif one.nonces:
            assert len(one.nonces) == 1


@given(views(), st.data())
def test_nobody_is_left_waiting_for_the_wrong_one(view: LockView, data: st.DataObject) -> None:
    """As long as those whom one waits for are there (and tell nothing), one cannot hold."""
    queue = waiters_of(view)
    if not queue:
        return
    me = data.draw(st.sampled_from(queue))
    one = watched(view.tickets, me, config_of(view))
    others = [t.nonce for t in view.tickets if t is not me and t.nonce not in one.nonces]
    gone = data.draw(st.sets(st.sampled_from(others))) if others else set()
    after = without(view, *gone)
    told = one.turns and set(one.nonces) <= nonces(holders_of(after))
    assert told or me in waiters_of(after)


@given(views())
def test_releases_wake_as_few_as_can_be(view: LockView) -> None:
    """When the first leaves, the waiter that is notified holds; of a semaphore, at most one is notified."""
    if not view.tickets:
        return
    leaves = holders_of(view)[0]
    config = config_of(view)
    woken = [
        ticket for ticket in waiters_of(view) if leaves.nonce in watched(view.tickets, ticket, config).nonces
    ]
    if config.kind == "semaphore":
        assert len(woken) <= 1
    elif len(holders_of(view)) == 1:
        assert nonces(tuple(woken)) <= nonces(holders_of(without(view, leaves.nonce)))


@given(views(kinds=("semaphore",)), st.integers(1, 5))
def test_lowering_the_limit_revokes_nobody_and_lets_nobody_in(view: LockView, limit: int) -> None:
    held = holders_of(view)
    admitted_through = held[-1].order if held else 0
    after = view._replace(config=config_of(view)._replace(limit=limit, admitted_through=admitted_through))
    assert nonces(held) <= nonces(holders_of(after))
    if limit <= len(held):
        assert holders_of(after) == held
    for leaver in held:
        rest = without(after, leaver.nonce)
        assert len(holders_of(rest)) <= max(limit, len(held) - 1)


@given(views())
def test_a_writer_that_turns_reader_keeps_its_place(view: LockView) -> None:
    held = holders_of(view)
    if not held or held[0].mode != "write":
        return
    reader = held[0]._replace(nonce="reader", mode="read", token=held[0].token + 1)
    after = view._replace(tickets=(reader, *view.tickets[1:]))
    assert holders_of(after)[0] is reader
    assert all(ticket.token > reader.token + 1 for ticket in after.tickets[1:]), "room for one more number"


@given(st.integers(1, 2**50), st.integers(1, 2**50))
def test_tokens_are_in_the_order_of_creation_with_room_between(one: int, other: int) -> None:
    assert (token_at(one) < token_at(other)) == (one < other)
    assert token_at(one + 1) - token_at(one) == TOKENS_PER_PLACE > 2


@given(views())
def test_inspections_see_the_same(view: LockView) -> None:
    record = record_of(view._replace(newest_token=7), 100.0)
    assert [holder.nonce for holder in record.holders] == [t.nonce for t in holders_of(view)]
    assert [waiter.nonce for waiter in record.queue] == [t.nonce for t in waiters_of(view)]
    assert record.token == max([t.token for t in holders_of(view)], default=7)


def test_settings_that_were_lost_are_those_of_whom_stands_there() -> None:
    view = LockView(None, (make("lock", "exclusive", 3), make("lock", "exclusive", 4)))
    assert [t.order for t in holders_of(view)] == [3]
    assert record_of(view, 0.0).kind == "lock"
    assert record_of(LockView(), 0.0).kind is None


texts = st.text(max_size=20)


@given(
    texts,
    texts,
    st.dictionaries(texts, texts, max_size=3),
    st.floats(0.01, 1e6),
    st.none() | st.floats(0, 1e6),
)
def test_what_is_stored_is_read_again(
    owner: str, nonce: str, metadata: dict[str, str], ttl: float, max_hold: float | None
) -> None:
    ticket = Ticket(5, 20, nonce, "c", owner, "rwlock", "read", ttl, 1.5, max_hold, metadata, "handle", 9)
    assert decode_ticket(encode_ticket(ticket), 5, 20, "handle", 9) == ticket
    moved = decode_ticket(encode_ticket(ticket, 20, 5), 99, 400, "handle", 9)
    assert moved == ticket, "where it stands does not follow from when it was put"
    semaphore = LockConfig("semaphore", 3, 5, 12)
    assert decode_config(encode_config(semaphore)) == semaphore
    value = StoredValue(owner.encode(), 7, 123)
    assert decode_value(encode_value(value)) == value
    ended = Tombstone(nonce, "broken", owner, 0.0)
    assert decode_note(encode_note(ended)) == ended
