"""Keys as names, payloads as fingerprints, and what is stored of an operation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import outcomes
from holdfast.core.canonical import canonical_bytes, fingerprint_of, key_text
from holdfast.core.outcomes import Outcome, decode, encode
from holdfast.errors import Conflict, InvalidArgument, ReplayedError
from holdfast.recipes import names

PARTS = st.one_of(st.text("ab,()#%/1 é\0"), st.integers(-20, 20), st.binary(max_size=2))
KEYS = st.recursive(
    PARTS, lambda keys: st.lists(keys, min_size=1, max_size=3).map(tuple), max_leaves=4
).filter(lambda key: key not in ("", b""))
PAYLOADS = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 3),
        st.floats(-2, 2),
        st.text("ab1:", max_size=3),
        st.binary(max_size=2),
    ),
    lambda values: (
        st.lists(values, max_size=3) | st.dictionaries(st.text("ab", max_size=2), values, max_size=3)
    ),
    max_leaves=6,
)


def typed(value: Any) -> Any:
    """Python takes 1, 1.0 and True for equal; 0.0 and -0.0 as well."""
    if isinstance(value, list | tuple):
        return "list", tuple(map(typed, value))
    if isinstance(value, dict):
        return "dict", frozenset((name, typed(each)) for name, each in value.items())
    return type(value).__name__, repr(value)


@given(KEYS, KEYS, KEYS, KEYS)
def test_two_keys_never_have_the_same_name(first: Any, second: Any, scope: Any, other: Any) -> None:
    same = typed((scope, first)) == typed((other, second))
    assert (names.idempotency(scope, first) == names.idempotency(other, second)) == same


@given(PAYLOADS, PAYLOADS)
def test_two_payloads_never_have_the_same_bytes(first: Any, second: Any) -> None:
    assert (canonical_bytes(first) == canonical_bytes(second)) == (typed(first) == typed(second))


def test_a_key_is_readable_and_a_long_one_is_hashed() -> None:
    assert names.idempotency("shop", ("order", 7)) == "_holdfast/idempotency:shop/(order,#7)"
    assert names.idempotency("", "a/b") == "_holdfast/idempotency:/a%2Fb"
    long = [names.idempotency("", "x" * 500), names.idempotency("", "x" * 501)]
    assert len(set(long)) == 2
    assert all(len(name) < 100 for name in long)
    assert len(fingerprint_of("payload")) == 32


WRONG_KEYS: list[Any] = [
    "",
    b"",
    (),
    None,
    True,
    1.5,
    ["a"],
    ("a", ()),
    ("a", None),
    "\ud800",
    "\ud800" * 600,
]


@pytest.mark.parametrize("key", WRONG_KEYS, ids=ascii)
def test_wrong_keys(key: Any) -> None:
    with pytest.raises(InvalidArgument, match="key"):
        names.idempotency("", key)


class Unknown:
    """Nothing that can be compared."""


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (Unknown(), "Unknown"),
        ({"a": {1, 2}}, "set"),
        ({1: "a"}, "keys are text"),
        (float("nan"), "nan"),
        ("\ud800", "surrogates"),
        (CYCLE, "nested"),
    ],
)
def test_a_payload_that_cannot_be_compared(payload: object, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        fingerprint_of(payload)


def test_deep_keys_are_refused() -> None:
    key: Any = "x"
    for _ in range(200):
        key = (key,)
    with pytest.raises(InvalidArgument, match="tuple"):
        key_text(key)


@given(st.sampled_from(outcomes.STATES), st.binary(max_size=32), st.binary())
def test_what_is_stored_is_read_again(state: bytes, fingerprint: bytes, data: bytes) -> None:
    outcome = Outcome(state, fingerprint, data)
    assert decode(encode(outcome)) == outcome


@pytest.mark.parametrize("stored", [b"", b"\1", b"\1S", b"\2S\0", b"\1X\0", b"\1S\4abc"])
def test_other_bytes_are_refused(stored: bytes) -> None:
    with pytest.raises(ValueError, match="not the outcome"):
        decode(stored)


class ShopError(Exception):
    """The user's."""


class OddError(ShopError):
    """Made from something else than its arguments."""

    def __init__(self, one: object, two: object) -> None:
        super().__init__("odd")


def raised(error: Exception, errors: tuple[type[Exception], ...]) -> Exception:
    try:
        outcomes.outcome_of(decode(encode(outcomes.error_outcome(b"", error))), errors)
    except Exception as found:
        return found
    raise AssertionError("nothing was raised")


def test_errors_come_back_as_what_they_were() -> None:
    found = raised(ShopError("no funds", 7), (ShopError,))
    assert (type(found), found.args) == (ShopError, ("no funds", 7))
    assert type(raised(KeyError("x"), (LookupError,))) is KeyError
    for error, errors in (
        (ShopError("no funds"), (KeyError,)),
        (OddError(1, 2), (ShopError,)),
        (ShopError(Unknown()), (ShopError,)),
        (ShopError("x" * 70_000), (ShopError,)),
    ):
        replayed = raised(error, errors)
        assert isinstance(replayed, ReplayedError)
        assert replayed.error_type.endswith(type(error).__qualname__)
        assert str(error)[:100] in replayed.error_text


@pytest.mark.parametrize(
    ("on_error", "store_errors", "why"),
    [
        ("retry", (), "on_error"),
        ("rerun", ("x",), "store_errors"),
        ("rerun", KeyboardInterrupt, "store_errors"),
    ],
)
def test_wrong_choices(on_error: str, store_errors: object, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        outcomes.check_errors(on_error, store_errors)


def test_which_errors_are_stored() -> None:
    assert outcomes.check_errors("rerun", ()) == ()
    assert outcomes.check_errors("replay", ()) == (Exception,)
    assert outcomes.check_errors("replay", (KeyError,)) == (KeyError,)
    assert outcomes.check_errors("rerun", KeyError) == (KeyError,)


@pytest.mark.parametrize(
    "result", [{1, 2}, object(), float("nan"), "\ud800", CYCLE, b"x" * 65473, "x" * 65471]
)
def test_results_that_cannot_be_stored(result: object) -> None:
    with pytest.raises(InvalidArgument, match="result"):
        outcomes.check_result(result)


def test_a_caller_that_compares_nothing_gets_the_result() -> None:
    outcomes.check_fingerprint("x", b"a", b"")
    outcomes.check_fingerprint("x", b"", b"a")
    with pytest.raises(Conflict) as refused:
        outcomes.check_fingerprint("x", b"a", b"b")
    assert refused.value.name == "x"
