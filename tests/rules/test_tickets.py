"""Tickets in order: whatever stands there, who holds, who waits, and for whom."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocols.tickets.payload import (
    decode_note,
    decode_settings,
    decode_ticket,
    decode_value,
    encode_note,
    encode_settings,
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
    holding,
    ordered,
    record_of,
    token_at,
    waiting,
    watched,
)

MODES = {"lock": ["exclusive"], "rwlock": ["read", "write"], "semaphore": ["permit"]}


def make(kind: str, mode: str, place: int) -> Ticket:
    return Ticket(place, token_at(place), f"n{place}", "c", "o", kind, mode, 30.0, 0.0, None, {})


@st.composite
def stands(draw: st.DrawFn, kinds: tuple[str, ...] = tuple(MODES)) -> LockView:
    kind = draw(st.sampled_from(kinds))
    places = draw(st.lists(st.integers(1, 40), unique=True, max_size=9))
    modes = draw(st.lists(st.sampled_from(MODES[kind]), min_size=len(places), max_size=len(places)))
    tickets = ordered([make(kind, mode, place) for place, mode in zip(places, modes, strict=True)])
    limit = draw(st.integers(1, 5)) if kind == "semaphore" else 0
    return LockView(LockConfig(kind, limit, limit), tickets)


def settings_of(stand: LockView) -> LockConfig:
    assert stand.settings is not None
    return stand.settings


def without(stand: LockView, *gone: str) -> LockView:
    return stand._replace(tickets=tuple(t for t in stand.tickets if t.nonce not in gone))


def nonces(tickets: tuple[Ticket, ...]) -> set[str]:
    return {ticket.nonce for ticket in tickets}


@given(stands())
def test_those_hold_whom_nobody_blocks_and_they_are_the_first_few(stand: LockView) -> None:
    free = [t for t in stand.tickets if not blockers(stand.tickets, t, settings_of(stand))]
    assert tuple(free) == holding(stand)
    assert holding(stand) + waiting(stand) == stand.tickets
    assert not stand.tickets or holding(stand), "somebody always holds"


@given(stands())
def test_no_more_hold_than_the_primitive_allows(stand: LockView) -> None:
    held = holding(stand)
    if settings_of(stand).kind == "semaphore":
        assert len(held) <= settings_of(stand).limit
    elif settings_of(stand).kind == "lock":
        assert len(held) <= 1
    else:
        assert len(held) <= 1 or {ticket.mode for ticket in held} == {"read"}


@given(stands())
def test_first_come_first_served(stand: LockView) -> None:
    """The first who waits is blocked by those who hold, and nobody passes it: writers do not starve."""
    queue = waiting(stand)
    if queue:
        assert blockers(stand.tickets, queue[0], settings_of(stand))
        assert all(ticket.place > queue[0].place for ticket in queue[1:])


@given(stands(), st.data())
def test_who_holds_goes_on_holding_whatever_the_others_do(stand: LockView, data: st.DataObject) -> None:
    gone = data.draw(
        st.sets(st.sampled_from([t.nonce for t in stand.tickets]) if stand.tickets else st.nothing())
    )
    end = max([t.place for t in stand.tickets], default=0) + 1
    mode = data.draw(st.sampled_from(MODES[settings_of(stand).kind]))
    after = without(stand, *gone)
    after = after._replace(tickets=(*after.tickets, make(settings_of(stand).kind, mode, end)))
    assert nonces(holding(stand)) - gone <= nonces(holding(after))


@given(stands())
def test_who_waits_waits_for_some_before_it_and_never_for_the_crowd(stand: LockView) -> None:
    for ticket in stand.tickets:
        one = watched(stand.tickets, ticket, settings_of(stand))
        before = nonces(tuple(t for t in stand.tickets if t.place < ticket.place))
        assert set(one.nonces) <= before
        assert bool(one.nonces) == (ticket in waiting(stand))
        if settings_of(stand).kind != "semaphore":
            assert len(one.nonces) <= 1
        elif one.nonces and one.limit:
            assert set(one.nonces) == nonces(holding(stand)), "only the first who waits watches all holders"
        elif one.nonces:
            assert len(one.nonces) == 1


@given(stands(), st.data())
def test_nobody_is_left_waiting_for_the_wrong_one(stand: LockView, data: st.DataObject) -> None:
    """As long as those whom one waits for are there (and tell nothing), one cannot hold."""
    queue = waiting(stand)
    if not queue:
        return
    me = data.draw(st.sampled_from(queue))
    one = watched(stand.tickets, me, settings_of(stand))
    others = [t.nonce for t in stand.tickets if t is not me and t.nonce not in one.nonces]
    gone = data.draw(st.sets(st.sampled_from(others))) if others else set()
    after = without(stand, *gone)
    told = one.turns and set(one.nonces) <= nonces(holding(after))
    assert told or me in waiting(after)


@given(stands())
def test_releases_wake_as_few_as_can_be(stand: LockView) -> None:
    """When the first leaves, whoever hears of it holds then; of a semaphore, at most one hears of it."""
    if not stand.tickets:
        return
    leaves = holding(stand)[0]
    settings = settings_of(stand)
    woken = [
        ticket for ticket in waiting(stand) if leaves.nonce in watched(stand.tickets, ticket, settings).nonces
    ]
    if settings.kind == "semaphore":
        assert len(woken) <= 1
    elif len(holding(stand)) == 1:
        assert nonces(tuple(woken)) <= nonces(holding(without(stand, leaves.nonce)))


@given(stands(kinds=("semaphore",)), st.integers(1, 5))
def test_lowering_the_limit_revokes_nobody_and_lets_nobody_in(stand: LockView, limit: int) -> None:
    held = holding(stand)
    seated = held[-1].place if held else 0
    after = stand._replace(settings=settings_of(stand)._replace(limit=limit, seated=seated))
    assert nonces(held) <= nonces(holding(after))
    if limit <= len(held):
        assert holding(after) == held
    for leaver in held:
        rest = without(after, leaver.nonce)
        assert len(holding(rest)) <= max(limit, len(held) - 1)


@given(stands())
def test_a_writer_that_turns_reader_keeps_its_place(stand: LockView) -> None:
    held = holding(stand)
    if not held or held[0].mode != "write":
        return
    reader = held[0]._replace(nonce="reader", mode="read", token=held[0].token + 1)
    after = stand._replace(tickets=(reader, *stand.tickets[1:]))
    assert holding(after)[0] is reader
    assert all(ticket.token > reader.token + 1 for ticket in after.tickets[1:]), "room for one more number"


@given(st.integers(1, 2**50), st.integers(1, 2**50))
def test_tokens_are_in_the_order_of_creation_with_room_between(one: int, other: int) -> None:
    assert (token_at(one) < token_at(other)) == (one < other)
    assert token_at(one + 1) - token_at(one) == TOKENS_PER_PLACE > 2


@given(stands())
def test_those_who_inspect_see_the_same(stand: LockView) -> None:
    record = record_of(stand._replace(newest=7), 100.0)
    assert [holder.nonce for holder in record.holders] == [t.nonce for t in holding(stand)]
    assert [waiter.nonce for waiter in record.queue] == [t.nonce for t in waiting(stand)]
    assert record.token == max([t.token for t in holding(stand)], default=7)


def test_settings_that_were_lost_are_those_of_whom_stands_there() -> None:
    stand = LockView(None, (make("lock", "exclusive", 3), make("lock", "exclusive", 4)))
    assert [t.place for t in holding(stand)] == [3]
    assert record_of(stand, 0.0).kind == "lock"
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
    owner: str, nonce: str, metadata: dict[str, str], ttl: float, lasts: float | None
) -> None:
    ticket = Ticket(5, 20, nonce, "c", owner, "rwlock", "read", ttl, 1.5, lasts, metadata, "handle", 9)
    assert decode_ticket(encode_ticket(ticket), 5, 20, "handle", 9) == ticket
    moved = decode_ticket(encode_ticket(ticket, 20, 5), 99, 400, "handle", 9)
    assert moved == ticket, "where it stands does not follow from when it was put"
    semaphore = LockConfig("semaphore", 3, 5, 12)
    assert decode_settings(encode_settings(semaphore)) == semaphore
    value = StoredValue(owner.encode(), 7, 123)
    assert decode_value(encode_value(value)) == value
    ended = Tombstone(nonce, "broken", owner, 0.0)
    assert decode_note(encode_note(ended)) == ended
