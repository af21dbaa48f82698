"""The text of an exported lease: either it is as ``export`` writes it, or it is refused."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import InvalidArgument
from holdfast.core import handover
from holdfast.core.handover import Handover

PREFIX = handover.PREFIX
NONCE = "0123456789abcdef-" + "0f" * 16
SECRET = "0123456789abcdef-" + "e1" * 16
GOOD = Handover("shop", "invoices", "lock", "exclusive", NONCE, SECRET, 30.0, 5.0)


def written(fields: Any) -> str:
    return PREFIX + base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()


def fields_of(given: Handover) -> dict[str, Any]:
    return {each: getattr(given, each) for each in Handover.__slots__}


def refusal_of(text: Any) -> InvalidArgument | None:
    try:
        handover.parse(text)
    except InvalidArgument as refused:
        return refused
    return None


def round_trips_or_is_refused(text: Any) -> None:
    refused = refusal_of(text)
    if refused is not None:
        assert "export" in str(refused)
        assert refused.__cause__ is None
        return
    parsed = handover.parse(text)
    assert parsed.text() == text.strip()
    assert handover.NONCE.fullmatch(parsed.nonce)
    assert math.isfinite(parsed.ttl)
    assert parsed.spec(parsed.namespace).name == parsed.name


names = st.text(min_size=1, max_size=60).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(names, names, st.sampled_from(handover.KINDS_AND_MODES), st.floats(0.01, 1e6), st.floats(0, 0.5))
def test_what_is_exported_comes_back(
    namespace: str, name: str, what: tuple[str, str], ttl: float, grace: float
) -> None:
    exported = Handover(namespace, name, *what, NONCE, SECRET, ttl, ttl * grace)
    assert handover.parse(exported.text()) == exported
    assert handover.parse(f" {exported.text()}\n") == exported, "as a file or a shell returns it"


@given(st.text())
def test_any_text(text: str) -> None:
    round_trips_or_is_refused(text)
    round_trips_or_is_refused(PREFIX + text)


@given(st.binary(max_size=200))
def test_any_payload(data: bytes) -> None:
    round_trips_or_is_refused(PREFIX + base64.urlsafe_b64encode(data).decode())


@given(anything)
def test_any_document(document: Any) -> None:
    round_trips_or_is_refused(written(document))


@given(st.sampled_from(Handover.__slots__), anything | names)
def test_any_value_of_any_field(field: str, value: Any) -> None:
    round_trips_or_is_refused(written({**fields_of(GOOD), field: value}))


@given(st.text(max_size=100) | st.from_regex(r"[0-9a-f]{16}-[0-9a-f]{1,40}\n?"))
def test_any_nonce(nonce: str) -> None:
    """Engines make keys and paths of it: what is no nonce reaches none of them."""
    round_trips_or_is_refused(written({**fields_of(GOOD), "nonce": nonce}))


@given(st.integers(0, 500), st.characters())
def test_any_character_changed(index: int, character: str) -> None:
    text = GOOD.text()
    index %= len(text)
    round_trips_or_is_refused(text[:index] + character + text[index + 1 :])


@pytest.mark.parametrize(
    "nonce",
    ["", "x", "\ud800", "é-1", "../../c/1-1", f"{NONCE}\n", NONCE.upper(), "0" * 16 + "-" + "1" * 33, "1-1"],
)
def test_a_nonce_of_another_form_is_refused(nonce: str) -> None:
    with pytest.raises(InvalidArgument, match=r"nonce.*export") as refused:
        handover.parse(written({**fields_of(GOOD), "nonce": nonce}))
    assert not nonce or len(nonce) < 3 or nonce not in str(refused.value), "it may open a lease"


@pytest.mark.parametrize("secret", ["", "x", None, 7, NONCE + "0", "e1" * 16])
def test_a_secret_of_another_form_is_refused(secret: object) -> None:
    with pytest.raises(InvalidArgument, match=r"secret.*export"):
        handover.parse(written({**fields_of(GOOD), "secret": secret}))


@pytest.mark.parametrize("deep", ["[" * 6000, "{" * 6000, '{"a":' * 2000, '{"a":[' * 1000])
def test_depth_is_bounded(deep: str) -> None:
    with pytest.raises(InvalidArgument, match="flat"):
        handover.parse(PREFIX + base64.urlsafe_b64encode(deep.encode()).decode())


def test_size_is_bounded() -> None:
    with pytest.raises(InvalidArgument, match="characters"):
        handover.parse(written({**fields_of(GOOD), "name": "x" * 100_000}))
    longest = Handover("\x01" * 512, "\x01" * 512, "semaphore", "permit", NONCE, SECRET, 1e7, 1.25e6)
    assert handover.parse(longest.text()) == longest


@pytest.mark.parametrize(
    "payload",
    [
        '{"ttl": 1, "ttl": 2}',
        '{"ttl": NaN}',
        '{"ttl": -Infinity}',
        '{"ttl": 1e999}',
        '{"ttl": ' + "9" * 5000 + "}",
        "7",
        '"text"',
        "null",
    ],
)
def test_json_that_is_no_lease(payload: str) -> None:
    round_trips_or_is_refused(PREFIX + base64.urlsafe_b64encode(payload.encode()).decode())
    reported = json.dumps(fields_of(GOOD))
    round_trips_or_is_refused(
        PREFIX + base64.urlsafe_b64encode((reported[:-1] + "," + payload[1:]).encode()).decode()
    )
