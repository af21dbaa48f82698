"""The commands put together, and every error turned into a message and an exit status."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

import holdfast
from holdfast import errors

from . import break_, guarantees, init, ls, redlock, run, show, watch
from .demo import command as demo
from .exits import Status, complain, status_of
from .redaction import learn

__all__ = ["app", "run_command_line"]

EPILOG = """\b
Examples:
  holdfast run backup -- ./backup.sh
  holdfast run deploy --url redis://localhost/0 --timeout 30s -- make deploy
  holdfast ls

HOLDFAST_URL chooses the engine for every command, HOLDFAST_NAMESPACE the
namespace. Exit status: 0 done, 64 usage, 69 engine unavailable; what else
"holdfast run" exits with is in its own help.
"""

Misuse: type = typer.BadParameter.__mro__[2]
"""What the parser raises for every mistake on a command line; typer gives no public name to it."""

app = typer.Typer(
    name="holdfast",
    epilog=EPILOG,
    add_completion=False,
    # Plain text: examples stay as they are written, and help does not wait for rich.
    rich_markup_mode=None,
    # Its tracebacks show the values of variables, and URLs are among them.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", epilog=run.EPILOG)(run.run)
app.command("ls", epilog=ls.EPILOG)(ls.ls)
app.command("show", epilog=show.EPILOG)(show.show)
app.command("watch", epilog=watch.EPILOG)(watch.watch)
app.command("break", epilog=break_.EPILOG)(break_.break_)
app.command("guarantees", epilog=guarantees.EPILOG)(guarantees.guarantees)
app.command("init", epilog=init.EPILOG)(init.init)
app.add_typer(redlock.app, name="redlock")
app.command("demo", epilog=demo.EPILOG)(demo.demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"holdfast {holdfast.__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
]


@app.callback(invoke_without_command=True)
def describe(context: typer.Context, version: Version = False) -> None:
    """Distributed locks you can trust: run commands under a lock, see who holds what."""
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(Status.USAGE)


def run_command_line(arguments: Sequence[str]) -> int:
    """Run one command and return the exit status."""
    learn([*arguments, os.environ.get("HOLDFAST_URL", "")])
    command = typer.main.get_command(app)
    try:
        outcome = command.main(args=list(arguments), prog_name="holdfast", standalone_mode=False)
    except errors.HoldfastError as error:
        complain(str(error))
        return status_of(error)
    except (KeyboardInterrupt, typer.Abort):
        return Status.SIGNAL + 2
    except Exception as error:  # noqa: BLE001 - the last resort, so that no secret gets out in a traceback
        if isinstance(error, Misuse):
            return _explain_misuse(error)
        complain(f"internal error\n{traceback.format_exc()}")
        return Status.INTERNAL
    return outcome if isinstance(outcome, int) else Status.OK


def _explain_misuse(error: Exception) -> int:
    """One line of what is wrong and one of where to read on."""
    context = getattr(error, "ctx", None)
    complain(getattr(error, "format_message", error.__str__)())
    if context is not None:
        complain(f"try: {context.command_path} --help")
    return Status.USAGE
