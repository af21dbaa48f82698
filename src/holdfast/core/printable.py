"""Text of others (servers, other holders) in our own messages: it must not write to a terminal by itself."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    """The same with everything escaped that is not a visible character or a space: ``\\x1b``, ``\\n``."""
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() else ascii(each)[1:-1] for each in text])
