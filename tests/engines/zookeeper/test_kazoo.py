"""The private names of kazoo that Holdfast relies on. A new version of kazoo may rename any of them."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol import serialization
from kazoo.protocol.connection import ConnectionHandler

from holdfast.engines.zookeeper import config, connection
from tidy.source import ROOT

OVERRIDDEN = {
    "_connect": ("host", "hostip", "port"),
    "_invoke": ("timeout", "request", "xid"),
    "_read": ("length", "timeout"),
    "_read_socket": ("read_timeout",),
    "_send_ping": ("connect_timeout",),
    "_send_request": ("read_timeout", "connect_timeout"),
    "_write": ("msg", "timeout"),
}
"""Methods of ConnectionHandler that Holdfast overrides or calls, with their parameters."""

CONNECTION = {"_read_sock", "_socket", "_socket_error_handling", "_write_sock", "sasl_options"}
"""Other names of ConnectionHandler."""

CLIENT = {"_conn_retry", "_connection", "_pending", "_queue", "_session_timeout", "_stopped"}
"""Names of KazooClient."""

HANDLER = {"create_connection", "create_socket_pair", "dispatch_callback", "select", "spawn"}
"""Methods of the handler that Holdfast overrides; kazoo calls them."""

SERIALIZATION = {"MultiHeader", "int_struct", "multiheader_struct", "read_string", "stat_struct"}
"""What ``codec`` uses to write and read requests that kazoo does not know."""


@pytest.fixture
def client() -> KazooClient:
    """Not connected."""
    return KazooClient("localhost:1")


def test_the_names_are_there(client: KazooClient) -> None:
    for name in CLIENT:
        assert hasattr(client, name), f"KazooClient.{name}"
    for name in CONNECTION:
        assert hasattr(client._connection, name), f"ConnectionHandler.{name}"
    for name in HANDLER:
        assert hasattr(SequentialThreadingHandler, name), f"SequentialThreadingHandler.{name}"
    for name in SERIALIZATION:
        assert hasattr(serialization, name), f"kazoo.protocol.serialization.{name}"


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_methods_take_the_same_parameters(name: str) -> None:
    parameters = list(inspect.signature(getattr(ConnectionHandler, name)).parameters)
    assert tuple(parameters[1:]) == OVERRIDDEN[name]


def test_the_lists_are_complete() -> None:
    """Every private name that the engine uses and does not define itself is in one of the lists."""
    listed = {*OVERRIDDEN, *CONNECTION, *CLIENT}
    for module in (config, connection):
        tree = ast.parse(Path(str(module.__file__)).read_text())
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        private = {name for name in used if name.startswith("_") and not name.startswith("__")}
        assert private - _defined_by(tree) <= listed, module.__name__


def _defined_by(tree: ast.Module) -> set[str]:
    """The functions of a module, and the attributes that its ``__init__`` methods assign."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inits = [function for function in functions if function.name == "__init__"]
    targets = [node for init in inits for node in ast.walk(init) if isinstance(node, ast.Attribute)]
    assigned = {node.attr for node in targets if isinstance(node.ctx, ast.Store)}
    return assigned | {function.name for function in functions}


def test_the_version_is_bounded() -> None:
    """By the versions whose names were checked."""
    (requirement,) = [
        line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("zookeeper =")
    ]
    assert "<2.12" in requirement
    assert importlib.metadata.version("kazoo") < "2.12"
