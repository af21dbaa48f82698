"""Keeping apart what hierarchical prefixes and namespaces store."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..errors import InvalidArgument

__all__ = ["check_apart"]


def check_apart(prefix: Sequence[str], namespace: str, own: Collection[str]) -> None:
    """Refuse what could lie among the keys of another prefix.

    All keys are ``<prefix>/<namespace>/<one of own>/…``, and a prefix may itself have several parts. One that
    continues another prefix is below a namespace of that one; it is among its keys only if the part after
    that namespace, be it a part of the longer prefix or its namespace, is one of ``own``.
    """
    told = " or ".join(map(repr, sorted(own)))
    for part in prefix[2:]:
        if part in own:
            raise InvalidArgument(
                f"the prefix {'/'.join(prefix)!r} could lie among the keys of another prefix: "
                f"from its third part on, no part of it is {told}"
            )
    if len(prefix) > 1 and namespace in own:
        raise InvalidArgument(
            f"the namespace {namespace!r} below the prefix {'/'.join(prefix)!r} could lie among the keys of "
            f"another prefix: with a prefix of several parts, no namespace is {told}"
        )
