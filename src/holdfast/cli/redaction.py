"""Removing passwords from everything that is printed.

Client libraries put whole URLs into their messages, and the parser quotes the arguments of an invalid command
line. So no text is trusted to be clean: the secrets are collected from the URLs given to this process, and
removed from every line before it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["learn", "scrub"]

MASK = "***"
SHORTEST_PLAIN_SECRET = 4
"""A shorter secret would also match ordinary words. It is removed only inside URLs."""

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<rest>[^\s'\"<>]*)")
_SECRET_OPTION = re.compile(
    r"(?P<name>[?&;][^=&;\s]*(?:pass|pwd|secret|token|auth|credential|key)[^=&;\s]*=)(?P<value>[^&;#\s'\"]*)",
    re.IGNORECASE,
)
_learnt: set[str] = set()


def learn(texts: Iterable[str]) -> None:
    """Collect the secrets in these arguments and environment variables, as written and as decoded."""
    for text in texts:
        for found in secrets_in(text):
            from urllib.parse import unquote  # only here: most command lines have no secret

            _learnt.update(form for form in (found, unquote(found)) if len(form) >= SHORTEST_PLAIN_SECRET)


def scrub(text: str) -> str:
    """The text without secrets: collected secrets everywhere, others inside URLs."""
    for secret in sorted(_learnt, key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = _URL.sub(lambda url: url["scheme"] + _without_password(url["rest"]), text)
    return _SECRET_OPTION.sub(lambda option: option["name"] + MASK, text)


def secrets_in(text: str) -> list[str]:
    """Every password and secret option of the URLs in a text."""
    # Not the URL pattern above: an unquoted password may contain spaces and quotes, and an invalid URL may
    # lack its scheme.
    userinfo = (text.partition("://")[2] or text).rpartition("@")[0]
    found = [userinfo.partition(":")[2]]
    # Each of several nodes may have its own: redlock://:one@a:1,:two@b:2
    found += [node.partition("@")[0].partition(":")[2] for node in userinfo.split(",")]
    found += [option["value"] for option in _SECRET_OPTION.finditer(text)]
    return [secret for secret in found if secret]


def _without_password(rest: str) -> str:
    """``user:password@host`` without its password. Everything up to the last ``@`` may belong to it."""
    userinfo, at, host = rest.rpartition("@")
    if not at or ":" not in userinfo:
        return rest
    return f"{userinfo.partition(':')[0]}:{MASK}@{host}"
