"""Parses and checks URLs, and shows them without their secrets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from ..errors import InvalidArgument

__all__ = ["URL", "parse_url"]

SECRET_OPTIONS = frozenset(
    {"password", "sentinel_password", "passwd", "secret", "sslpassword", "token", "auth", "key"}
)


@dataclass(frozen=True, slots=True, repr=False)
class URL:
    """A URL of Holdfast. Its repr and its text are safe to print."""

    scheme: str
    username: str | None
    password: str | None
    hosts: str
    """``host:port,host:port`` as written."""
    path: str
    """Decoded, with its leading slash."""
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        user = "" if self.username is None and self.password is None else f"{self.username or ''}"
        if self.password is not None:
            user += ":***"
        shown = {k: "***" if k.lower() in SECRET_OPTIONS else v for k, v in self.options.items()}
        query = f"?{urlencode(shown, safe='*/:,')}" if shown else ""
        return f"{self.scheme}://{user}{'@' if user else ''}{self.hosts}{self.path}{query}"

    def __repr__(self) -> str:
        return f"<URL {self}>"

    @property
    def userinfo(self) -> str:
        """The user and the password as part of a URL for a driver, with an ``@``; it is a secret."""
        user = "" if self.username is None else quote(self.username, safe="")
        if self.password is not None:
            user += f":{quote(self.password, safe='')}"
        return f"{user}@" if user else ""

    def without(self, names: Iterable[str]) -> URL:
        """The URL without these options."""
        if self.options.keys().isdisjoint(names):
            return self
        return replace(self, options={k: v for k, v in self.options.items() if k not in names})

    def only(self, known: Iterable[str]) -> None:
        """Refuse options that the engine does not know."""
        known = sorted(known)
        for option in self.options:
            if option not in known:
                detail = f"it knows {', '.join(known)}" if known else "it has none"
                raise InvalidArgument(f"{self.scheme}:// has no option {option!r}: {detail}")


def parse_url(text: str) -> URL:
    """Parse a URL. Error messages do not repeat it, because it may hold a secret."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidArgument("the URL is empty: write for example 'sqlite:////var/lib/app/locks.db'")
    try:
        parts = urlsplit(text.strip())
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise InvalidArgument(
            f"the URL cannot be read ({type(error).__name__}): write scheme://host/path?option=value"
        ) from None
    if not parts.scheme or "://" not in text:
        raise InvalidArgument("the URL has no scheme: write for example 'sqlite:////var/lib/app/locks.db'")
    if parts.fragment:
        raise InvalidArgument("the URL has a '#': write it as %23")
    options = dict(pairs)
    if len(options) != len(pairs):
        raise InvalidArgument("an option is in the URL twice: write each once")
    userinfo, at, hosts = parts.netloc.rpartition("@")
    name, colon, password = userinfo.partition(":")
    return URL(
        scheme=parts.scheme.lower(),
        username=unquote(name) if at else None,
        password=unquote(password) if colon else None,
        hosts=hosts,
        path=unquote(parts.path),
        options=options,
    )
