"""Names become keys and keys become names again; everything of a name is in one slot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engines.redis import codec, keys
from holdfast.engines.redis.codec import encode, encode_packed, encode_renew_batch, pack
from holdfast.engines.redis.keys import Keyspace, channel_of, key_of, name_of, slot_of, value_key_of
from holdfast.engines.redis.scripts import NAMES, assemble, load
from holdfast.rules.requests import Acquire, Refresh, Release, Renew

pytestmark = pytest.mark.timeless

SPACE = Keyspace("shop")
CLUSTER = Keyspace("shop", sharded=True)

odd_names = st.text("{}%:*?[\\aé", min_size=1, max_size=8)
names = odd_names | st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def hashed_part(key: bytes) -> bytes:
    """What a Cluster hashes of a key, as its specification tells it."""
    begin = key.find(b"{")
    if begin == -1:
        return key
    end = key.find(b"}", begin + 1)
    return key if end in (-1, begin + 1) else key[begin + 1 : end]


@given(names)
def test_a_key_tells_its_name(name: str) -> None:
    assert name_of(SPACE, key_of(SPACE, name)) == name
    assert name_of(SPACE, value_key_of(SPACE, name)) == name


@given(odd_names, odd_names)
def test_two_names_have_two_keys(one: str, other: str) -> None:
    keys_of_one = {key_of(SPACE, one), value_key_of(SPACE, one)}
    assert len(keys_of_one) == 2
    if one != other:
        assert not keys_of_one & {key_of(SPACE, other), value_key_of(SPACE, other)}


@given(st.binary() | st.builds(lambda ending: SPACE.prefix + b"lock:" + ending, st.binary(max_size=8)))
def test_other_keys_have_no_name(key: bytes) -> None:
    name = name_of(SPACE, key)
    assert name is None or key in (key_of(SPACE, name), value_key_of(SPACE, name))


@given(names)
def test_everything_of_a_name_is_in_one_slot(name: str) -> None:
    tag = hashed_part(key_of(CLUSTER, name))
    assert tag
    assert hashed_part(value_key_of(CLUSTER, name)) == tag
    assert hashed_part(channel_of(CLUSTER, "c1", name)) == tag


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("invoices", b"invoices"),
        ("orders/{42}", b"42"),
        ("{42}", b"42"),
        ("a{b}c{d}", b"b"),
        ("a{}b{c}", b"a{"),
        ("}{", b"%"),
        ("}a", b"%"),
        ("%a", b"%%a"),
        ("a}b", b"a"),
        ("{{a}}", b"{a"),
    ],
)
def test_what_decides_the_slot(name: str, tag: bytes) -> None:
    assert hashed_part(key_of(SPACE, name)) == tag
    assert name_of(SPACE, key_of(SPACE, name)) == name


def test_namespaces_do_not_mix() -> None:
    for one, other in (("a", "a:lock"), ("a:b", "a"), ("a", "a%3A"), ("{a}", "a"), ("x", "xy")):
        assert name_of(Keyspace(one), key_of(Keyspace(other), "n")) is None
        assert b"{" not in Keyspace(one).prefix


def test_one_channel_for_each_client_where_there_is_no_cluster() -> None:
    assert channel_of(SPACE, "c1", "a") == channel_of(SPACE, "c1", "b") != channel_of(SPACE, "c2", "a")


def test_a_batch_is_no_larger_than_it_may_be() -> None:
    steps = [(f"n{number}", Renew(f"a{number}", 30.0)) for number in range(1201)]
    batches = encode_renew_batch(SPACE, steps)
    assert [len(batch.places) for batch in batches] == [500, 500, 201]
    assert [place for batch in batches for place in batch.places] == list(range(1201))


def test_a_batch_of_a_cluster_is_of_one_slot() -> None:
    steps = [(f"{{{number % 7}}}/{number}", Refresh(f"a{number}")) for number in range(100)]
    batches = encode_renew_batch(CLUSTER, steps)
    assert len(batches) == 7
    for batch in batches:
        assert len({slot_of(CLUSTER, steps[place][0]) for place in batch.places}) == 1
        assert batch.command.keys == tuple(key_of(CLUSTER, steps[place][0]) for place in batch.places)
    assert sorted(place for batch in batches for place in batch.places) == list(range(100))


def test_only_renewals_and_refreshes_are_tended() -> None:
    with pytest.raises(TypeError, match="Release"):
        encode_renew_batch(SPACE, [("a", Release("n"))])


@given(names, st.text(st.characters(exclude_categories=["Cs"]), max_size=120))
def test_a_packed_command_is_the_command_packed(name: str, nonce: str) -> None:
    ask = Acquire(nonce, "c", "host/1/t", "lock", "exclusive", 30.0, False)
    for request in (ask, ask._replace(metadata={"a": "b"}), ask._replace(wait=True), Release(nonce, 1.5)):
        assert encode_packed(SPACE, name, request) == pack(encode(SPACE, name, request))


def test_kept_beginnings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "PREFIXES_MAX", 10)
    space = Keyspace("bounded")
    for number in range(35):
        encode_packed(space, f"n{number}", Release("a"))
    assert 0 < len(space.command_prefixes) <= 10


def test_scripts_for_a_cluster_publish_in_the_slot() -> None:
    for name in NAMES:
        assert ("SPUBLISH" in assemble(name, sharded=True)) == ("PUBLISH" in assemble(name))
        assert ("'PUBLISH'" in assemble(name, sharded=True)) is False
    publishing = {name for name in NAMES if "PUBLISH" in assemble(name)}
    same = {name for name in NAMES if load(True)[name].sha1 == load(False)[name].sha1}
    assert same == set(NAMES) - publishing == {"read_cell", "swap_cell"}


def test_every_script_is_put_together() -> None:
    for sharded in (False, True):
        for script in load(sharded).values():
            text = script.source.decode()
            assert text.startswith("#!lua"), script.name
            assert "@include" not in text
            assert "EXPIRES_AT" not in text


def test_slots_are_those_of_the_specification() -> None:
    # From the Cluster specification: CRC16 of "123456789" is 0x31c3.
    assert slot_of(SPACE, "123456789") == 0x31C3 % keys.SLOTS
