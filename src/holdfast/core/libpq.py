"""What a URL of PostgreSQL may say to libpq."""

from __future__ import annotations

from typing import Final

__all__ = ["LIBPQ_OPTIONS"]

LIBPQ_OPTIONS: Final = frozenset(
    [
        "application_name",
        "channel_binding",
        "gssencmode",
        "host",
        "hostaddr",
        "krbsrvname",
        "options",
        "passfile",
        "port",
        "require_auth",
        "requirepeer",
        "service",
        "ssl_max_protocol_version",
        "ssl_min_protocol_version",
        "sslcert",
        "sslcertmode",
        "sslcrl",
        "sslcrldir",
        "sslkey",
        "sslmode",
        "sslnegotiation",
        "sslpassword",
        "sslrootcert",
        "sslsni",
        "target_session_attrs",
    ]
)
"""The settings of libpq that a URL may contain: the others would override ours."""
