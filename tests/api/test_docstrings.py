"""``help()`` says what every parameter is for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
import holdfast.aio
from holdfast import client
from holdfast.core.lock_options import DEFAULTS, LockOptions


def _public() -> Iterator[tuple[str, Callable[..., Any]]]:
    for module in (client, holdfast.aio):
        for name in module.__all__:
            found = getattr(module, name)
            if not inspect.isclass(found):
                yield f"{module.__name__}.{name}", found
                continue
            for method, function in inspect.getmembers(found, inspect.isfunction):
                if not method.startswith("_") or method == "__call__":
                    yield f"{module.__name__}.{name}.{method}", function


PUBLIC = dict(_public())


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_parameter_is_named(name: str) -> None:
    function = PUBLIC[name]
    reported = inspect.getdoc(function) or ""
    assert reported, f"{name} has no docstring"
    for parameter in inspect.signature(function).parameters:
        if parameter != "self":
            assert parameter in reported.replace("`", " ").replace(":", " ").replace("=", " ").split() or (
                f"``{parameter}" in reported
            ), f"the docstring of {name} does not say what {parameter} is for"


def test_there_is_something_to_look_at() -> None:
    assert len(PUBLIC) > 60
    assert "holdfast.client.Client.lock" in PUBLIC


@pytest.mark.parametrize("kind", ["lock", "rlock", "rwlock", "semaphore", "any"])
@pytest.mark.parametrize(
    ("facade", "if_lost"), [(client.Client, "raise"), (holdfast.aio.AsyncClient, "cancel")]
)
def test_help_shows_every_lock_option_with_its_default(facade: type, if_lost: str, kind: str) -> None:
    method = getattr(facade, kind)
    shown = inspect.signature(method).parameters
    defaults = {name: each.default for name, each in shown.items() if each.kind is each.KEYWORD_ONLY}
    assert defaults == {**DEFAULTS, "if_lost": if_lost}
    assert set(defaults) == set(LockOptions.__annotations__), "a lock option has no default"
    assert f'"{if_lost}"' in method.__doc__


@pytest.mark.parametrize("kind", ["lock", "rlock", "rwlock", "semaphore"])
@pytest.mark.parametrize("connect", [holdfast.connect, holdfast.aio.connect])
@pytest.mark.parametrize(
    ("option", "suggestion"),
    [
        ("tttl", "did you mean 'ttl'"),
        ("time_out", "did you mean 'timeout'"),
        ("lease_time", "did you mean 'ttl'"),
        ("blocking_timeout", "did you mean 'timeout'"),
        ("colour", "the options are ttl, timeout, "),
    ],
)
def test_an_unknown_lock_option_is_a_type_error_with_a_suggestion(
    connect: Callable[[str], Any], kind: str, option: str, suggestion: str
) -> None:
    """Nothing listens at the address: the option is refused before any I/O."""
    limit = (3,) if kind == "semaphore" else ()
    locks = connect("redis://127.0.0.1:1/0")
    with pytest.raises(TypeError, match=f"no option '{option}': {suggestion}"):
        getattr(locks, kind)("x", *limit, **{option: 3})
