"""The rights that a user needs at a node: the same in the hint of an error and in the documents."""

from __future__ import annotations

from typing import Final

__all__ = ["ACL_RULES", "permission_hint"]

ACL_RULES: Final = (
    "~holdfast::redlock* -@all +evalsha +script|load +get +set +hmget +hset +time +scan +info|server"
    " +config|get"
)
"""The ACL rules of a user with the rights that Redlock needs, and no others."""


def permission_hint() -> str:
    return f"the user lacks a permission: Redlock needs {ACL_RULES} (with a database other than 0 +select)"
