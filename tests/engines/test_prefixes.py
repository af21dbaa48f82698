"""Prefixes with several parts, and namespaces: no two of them share a key."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from engines.etcd.admin import Admin
from holdfast import InvalidArgument
from holdfast.core.urls import parse_url
from holdfast.engines.etcd import open_engine as open_etcd
from holdfast.engines.etcd.keys import Keys
from holdfast.engines.zookeeper import open_engine as open_zookeeper
from holdfast.engines.zookeeper.keys import Paths
from support.servers import shared_etcd

PARTS = st.sampled_from(["a", "b", "n", "c", "s", "t", "x", "k"])
PLACES = st.tuples(st.lists(PARTS, min_size=1, max_size=5), PARTS)


def refused(scheme: str, place: tuple[list[str], str]) -> bool:
    url = parse_url(f"{scheme}://localhost/{'/'.join(place[0])}")
    try:
        (open_etcd if scheme == "etcd" else open_zookeeper)(url, place[1], {})
    except InvalidArgument:
        return True
    return False


def of_etcd(place: tuple[list[str], str]) -> list[bytes]:
    keys = Keys("/".join(place[0]), place[1])
    return [keys.names, keys.client("").removesuffix(b"/")]


def of_zookeeper(place: tuple[list[str], str]) -> list[bytes]:
    paths = Paths("/" + "/".join(place[0]), place[1])
    return [f"{paths.names}/".encode(), f"{paths.sessions}/".encode()]


@pytest.mark.parametrize(("scheme", "of"), [("etcd", of_etcd), ("zookeeper", of_zookeeper)])
@given(one=PLACES, other=PLACES)
def test_what_is_not_refused_lies_apart(scheme: str, of: object, one: object, other: object) -> None:
    places: list[tuple[list[str], str]] = [one, other]  # type: ignore[list-item]  # as the strategy makes them
    if one == other or any(refused(scheme, place) for place in places):
        return
    for here, there in itertools.product(*[of(place) for place in places]):  # type: ignore[operator]  # as above
        assert not here.startswith(there)
        assert not there.startswith(here)


@pytest.mark.parametrize(
    ("prefix", "namespace"), [("a/b", "n"), ("a/b", "c"), ("a/b/n", "x"), ("a/b/c/d", "x"), ("a/b/d/n", "x")]
)
def test_what_could_lie_among_others_is_refused_before_anything_is_sent(prefix: str, namespace: str) -> None:
    with pytest.raises(InvalidArgument, match="another prefix"):
        holdfast.connect(f"etcd://nowhere.invalid/{prefix}", namespace=namespace)


@pytest.mark.parametrize(("prefix", "namespace"), [("/a/b", "n"), ("/a/b", "s"), ("/a/b/s", "x")])
def test_the_same_for_zookeeper(prefix: str, namespace: str) -> None:
    with pytest.raises(InvalidArgument, match="another prefix"):
        holdfast.connect(f"zookeeper://nowhere.invalid{prefix}", namespace=namespace)


def test_names_are_free_and_so_are_namespaces_with_one_part() -> None:
    for scheme in ("etcd", "zookeeper"):
        for namespace in ("n", "c", "s"):
            for prefix in (["a"], ["n"]):
                assert not refused(scheme, (prefix, namespace))
        assert not refused(scheme, (["c", "n"], "x"))


def test_a_control_character_is_no_part_of_a_prefix() -> None:
    with pytest.raises(InvalidArgument, match="prefix"):
        holdfast.connect("etcd://nowhere.invalid/a%00b")


def test_overlapping_prefixes_on_a_real_server() -> None:
    """What was ambiguous in words is not in keys."""
    address, admin = shared_etcd().address, Admin(shared_etcd())
    with (
        holdfast.connect(f"etcd://{address}/overlap", namespace="b/d") as one,
        holdfast.connect(f"etcd://{address}/overlap/b", namespace="d") as other,
        one.lock("x") as first,
        other.lock("x") as second,
    ):
        first.check()
        second.check()
        assert [info.name for info in one.list()] == ["x"]
        assert [info.name for info in other.list()] == ["x"]
        assert {key.rpartition("/n/x/")[0] for key in admin.keys("overlap") if "/t/" in key} == {
            "overlap/b%2Fd",
            "overlap/b/d",
        }
