"""Text that came from elsewhere, made fit for a terminal. All output goes through here."""

from __future__ import annotations

__all__ = ["printable", "printable_json", "printable_lines"]


def printable(text: str) -> str:
    """The text with everything that could steer a terminal spelled out.

    That is control characters (escape sequences begin with one), line ends, characters that turn the
    direction of writing, and what cannot be encoded.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def printable_lines(text: str) -> str:
    """The same for a text of several lines; all but the first are indented, so that none looks like ours."""
    return "\n  ".join(printable(line) for line in text.split("\n"))


def printable_json(text: str) -> str:
    """A JSON document in which such characters are escaped: it means the same."""
    return "".join(
        character if character.isprintable() or character == "\n" else _escaped(character)
        for character in text
    )


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", errors="surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
