"""Escapes text of other origin for a terminal. All output passes here."""

from __future__ import annotations

__all__ = ["printable", "printable_json", "printable_lines"]


def printable(text: str) -> str:
    """The text with terminal control characters escaped.

    These are control characters (escape sequences begin with one), line ends, characters that change the
    direction of writing, and characters that cannot be encoded.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def printable_lines(text: str) -> str:
    """The same for several lines. All but the first are indented, so that none looks like another message."""
    return "\n  ".join(printable(line) for line in text.split("\n"))


def printable_json(text: str) -> str:
    """An equivalent JSON document in which such characters are escaped."""
    return "".join(
        character if character.isprintable() or character == "\n" else _escaped(character)
        for character in text
    )


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", errors="surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
