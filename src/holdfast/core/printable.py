"""Text of servers and other holders in our messages: it must not send control codes to a terminal."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    """The text with everything escaped that is not a visible character or a space: ``\\x1b``, ``\\n``."""
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() else ascii(each)[1:-1] for each in text])
