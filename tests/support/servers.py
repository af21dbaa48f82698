"""Real servers that all tests of one process share: started when first asked for, stopped at its end.

Tests that only use a server take these, in a namespace of their own. Those that harm one start their own:

    from holdfast.lab.servers import Redis
"""

from __future__ import annotations

import functools

from holdfast.lab.servers import Redis

__all__ = ["shared_redis"]


@functools.cache
def shared_redis() -> Redis:
    """One Redis without persistence."""
    return Redis().start()
