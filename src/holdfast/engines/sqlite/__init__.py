"""``sqlite:///path.db``: locks among the processes of one user on one machine. The embedded engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...core.urls import URL
from ...engine_api import AdapterContext, AsyncioAdapter, ThreadsAdapter
from ...errors import InvalidArgument
from ..local import LocalThreads
from .config import default_url, is_default, path_from_url, url_of
from .database_file import DatabaseFile
from .guarantees import GUARANTEES
from .store import SqliteStore

if TYPE_CHECKING:
    from ..findings import Finding

__all__ = ["default_url", "open_engine"]


class SqliteEngine:
    """One database file and one namespace in it."""

    linger = 0.0
    """A call that has returned or failed has no effect later."""
    session_bound = False
    guarantees = GUARANTEES

    def __init__(self, path: str, namespace: str, creates_folder: bool) -> None:
        self.url = url_of(path)
        self._file = DatabaseFile(path, creates_folder)
        self._namespace = namespace

    def threads(self, context: AdapterContext) -> ThreadsAdapter:
        return LocalThreads(SqliteStore(self._file, self._namespace, context), context)

    def asyncio(self, context: AdapterContext) -> AsyncioAdapter:
        from ..local_asyncio import LocalAsyncio

        return LocalAsyncio(SqliteStore(self._file, self._namespace, context), context)

    def diagnose(self, io_timeout: float) -> list[Finding]:
        """The findings of ``holdfast doctor`` about this database."""
        from .diagnosis import diagnose

        return diagnose(self._file, io_timeout)


def open_engine(url: URL, namespace: str, options: Mapping[str, Any]) -> SqliteEngine:
    """``sqlite://`` alone is the user's default database."""
    url.only(())
    if options:
        raise InvalidArgument(f"sqlite:// has no option {next(iter(options))!r}: it has none")
    path = path_from_url(url)
    return SqliteEngine(path, namespace, creates_folder=is_default(path))
