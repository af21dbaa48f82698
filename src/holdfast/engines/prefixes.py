"""Checks that the keys of hierarchical prefixes and namespaces do not overlap."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..errors import InvalidArgument

__all__ = ["check_apart"]


def check_apart(prefix: Sequence[str], namespace: str, own: Collection[str]) -> None:
    """Refuse a prefix and namespace whose keys could be among the keys of another prefix.

    All keys are ``<prefix>/<namespace>/<one of own>/…``, and a prefix may have several parts. A prefix that
    continues another prefix is below a namespace of that one. Its keys are among the other's only if the part
    after that namespace is one of ``own``: a part of the longer prefix, or its namespace.
    """
    reserved = " or ".join(map(repr, sorted(own)))
    for part in prefix[2:]:
        if part in own:
            raise InvalidArgument(
                f"the keys of the prefix {'/'.join(prefix)!r} could be among the keys of another prefix: "
                f"from its third part on, a prefix must not contain {reserved}"
            )
    if len(prefix) > 1 and namespace in own:
        raise InvalidArgument(
            f"the keys of the namespace {namespace!r} below the prefix {'/'.join(prefix)!r} could be among "
            f"the keys of another prefix: with a prefix of several parts, a namespace must not be {reserved}"
        )
