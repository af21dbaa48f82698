"""The settings of a live connection or pool of psycopg. Holdfast opens connections of its own with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from psycopg.conninfo import conninfo_to_dict

from ...errors import InvalidArgument
from .config import LIBPQ_OPTIONS, OUR_OPTIONS, PostgresConfig, check_options, make_config

__all__ = ["config_from_client"]

COPIED: Final = LIBPQ_OPTIONS | {"dbname", "password", "user"}

PROTECTION_PREFIXES: Final = ("gss", "scram", "ssl")
"""Settings with these prefixes protect a connection. None of them may be left out."""

HARMLESS: Final = frozenset({"sslcompression", "sslkeylogfile"})
"""Exceptions: no server compresses any more, and a log of keys concerns the given client alone."""


def config_from_client(client: Any, options: Mapping[str, Any]) -> PostgresConfig:
    given = check_options(options)
    for name in given:
        if name not in OUR_OPTIONS:
            raise InvalidArgument(f"{name!r} comes from the given client: give schema or pooler only")
    if hasattr(client, "info"):
        found = {**client.info.get_parameters(), "password": client.info.password or None}
    else:
        conninfo = client.conninfo
        if not isinstance(conninfo, str):
            raise InvalidArgument("the pool's conninfo is not text: give a URL instead")
        found = {**conninfo_to_dict(conninfo), **(getattr(client, "kwargs", None) or {})}
    for name, value in found.items():
        is_protection = name.startswith(PROTECTION_PREFIXES) and value not in (None, "", "0", 0)
        if is_protection and name not in COPIED | HARMLESS:
            raise InvalidArgument(
                f"the given client protects its connections with {name!r}, which Holdfast cannot carry over "
                "to its own: give a URL instead, with sslmode=verify-full and sslrootcert=…"
            )
    return make_config({k: str(v) for k, v in found.items() if k in COPIED and v}, given)
