"""``holdfast queue work``: runs a worker that a module of the user's has."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from holdfast import errors

from .exits import Status, complain
from .options import JSON, Argument, Command, Misuse, Option

__all__ = ["WORK", "work"]

EPILOG = """
Examples:
  holdfast queue work shop.jobs:worker
  holdfast queue work jobs:worker --until-idle

In jobs.py:
  import holdfast.queue
  queue = holdfast.queue.connect("postgresql://localhost/shop")
  worker = holdfast.queue.Worker(queue, concurrency=4)

  @worker.job("mail")
  def send(job):
      print("to", job.payload["to"])

Modules are looked for in this folder first. SIGTERM or Ctrl-C: no more jobs are
claimed, and those that run are waited for; a second one gives them back at once.
Exit status: 0 after that.
"""

PLACE = Argument("module:worker", "The module, as in import, and the name of the worker in it.")
UNTIL_IDLE = Option(("--until-idle",), "End when no job is ready.")


def work(until_idle: bool, json: bool, **place: str) -> int:
    """Run a worker: a holdfast.queue.Worker, or an AsyncWorker of holdfast.queue.aio."""
    from .output import print_json

    worker = _worker_at(place["module:worker"])
    complain(f"working on {', '.join(worker.kinds)}; end it with SIGTERM or Ctrl-C")
    ran = _run(worker, until_idle)
    if json:
        print_json({"kinds": worker.kinds, "ended": ran})
    return Status.OK


def _run(worker: Any, until_idle: bool) -> int:
    if worker.is_awaited:
        import asyncio

        return asyncio.run(_run_and_close(worker, until_idle))
    worker.run(until_idle=until_idle)
    worker.queue.close()
    return int(worker.ended)


async def _run_and_close(worker: Any, until_idle: bool) -> int:
    await worker.run(until_idle=until_idle)
    await worker.queue.close()
    return int(worker.ended)


def _worker_at(text: str) -> Any:
    from holdfast.queue.worker.base import BaseWorker

    module_name, colon, name = text.partition(":")
    if not (module_name and colon and name):
        raise Misuse(f"{text!r} is no MODULE:WORKER: write for example shop.jobs:worker")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise errors.InvalidArgument(f"{module_name} cannot be imported: {error}") from error
        raise Misuse(
            f"there is no module {module_name!r} in {os.getcwd()} or on the path: it is named as in import,"
            " without .py"
        ) from None
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, BaseWorker):
        workers = [key for key, value in vars(module).items() if isinstance(value, BaseWorker)]
        hint = f"its workers are {', '.join(workers)}" if workers else "it has none"
        raise Misuse(f"{name!r} of {module_name} is not a worker of holdfast.queue: {hint}")
    return found


WORK = Command(work, (PLACE, UNTIL_IDLE, JSON), EPILOG)
