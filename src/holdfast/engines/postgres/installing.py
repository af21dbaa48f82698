"""Installing on purpose, apart from first use."""

from __future__ import annotations

from ...core.effects import NotApplied, TransientError
from ...errors import EngineUnavailable
from ...runtime.clock import boottime
from .failures import cannot_begin
from .greeting import install
from .link import Link, LinkLost, ServerError
from .pool import run
from .target import Target

__all__ = ["install_now"]


def install_now(target: Target, io_timeout: float) -> bool:
    """On the first server that lets us, also what is missing of it; False: all was there already."""
    failure: Exception = NotApplied("there is no server to connect to")
    for conninfo in target.attempts(io_timeout):
        ends_at = boottime() + io_timeout
        link = Link(conninfo)
        try:
            run(link, link.connect(), ends_at)
            return run(link, install(link, target.schema, again=True), ends_at)
        except (ServerError, LinkLost, TimeoutError) as error:
            failure = cannot_begin(error, io_timeout)
            failure.__cause__ = error
        finally:
            link.close()
    if isinstance(failure, TransientError):
        raise EngineUnavailable(str(failure)) from failure
    raise failure
