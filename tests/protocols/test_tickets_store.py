"""The simulator's store has the same methods as the protocol that engines implement."""

from __future__ import annotations

import inspect

import pytest

from holdfast.protocols.tickets.store import TicketStore
from simulator.ordered import OrderedStore

METHODS = [name for name, member in vars(TicketStore).items() if inspect.iscoroutinefunction(member)]


def test_there_are_methods() -> None:
    assert {"create", "read_queue", "keep_alive", "remove", "watch"} <= set(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_the_simulated_store_has_it(method: str) -> None:
    simulated = inspect.signature(getattr(OrderedStore, f"_{method}"))
    declared = inspect.signature(getattr(TicketStore, method))
    assert len(simulated.parameters) == len(declared.parameters)
    optional = [name for name, each in declared.parameters.items() if each.default is not each.empty]
    assert set(optional) <= set(simulated.parameters), "they are passed by name"
