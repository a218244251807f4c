"""What every command shares: the application, errors on one line, examples in the help."""

import errno
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from macs import __version__
from macs.errors import MacsError, MacsWarning


def one_line(text: object) -> str:
    """Text without line breaks."""
    return " ".join(str(text).split())


def echo(text: str, err: bool = False) -> None:
    """A line on stdout or stderr; what the terminal cannot show, as in a name that is no UTF-8, is escaped."""
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    typer.echo(text.encode(encoding, "backslashreplace").decode(encoding), err=err)


def no_access(error: OSError) -> str:
    """What the system refused, in one sentence."""
    where = "a file" if error.filename is None else error.filename
    return f"{where} cannot be read or written ({error.strerror or error}); check the path and its permissions"


def program() -> str:
    """How to call this program from here: by its name where the shell finds it, else by its path."""
    return "macs" if shutil.which("macs") else os.path.relpath(Path(sys.executable).with_name("macs"))


def show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """A warning of this package on one line; those of libraries are not for the user of a command."""
    if issubclass(category, MacsWarning):
        echo(f"warning: {one_line(message)}", err=True)


class Commands(TyperGroup):
    """The commands, with every error of this package or of a file said on one line: exit code 2; ``--debug`` shows where."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        if ctx.params.get("debug"):
            return super().invoke(ctx)
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            try:
                return super().invoke(ctx)
            except MacsError as error:
                echo(f"error: {one_line(error)}", err=True)
                raise typer.Exit(2) from error
            except OSError as error:
                if error.errno == errno.EPIPE:
                    raise
                echo(f"error: {one_line(no_access(error))}", err=True)
                raise typer.Exit(2) from error


app = typer.Typer(cls=Commands, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


def example(*lines: str) -> str:
    """The end of a command's help, its line breaks kept."""
    return "\n".join(("\b", "Example:", *(f"  {line}" for line in lines)))


def main() -> None:
    """The entry point."""
    app(prog_name="macs")


def print_version(asked: bool) -> None:
    """The version, and the end."""
    if asked:
        typer.echo(f"macs {__version__}")
        raise typer.Exit


@app.callback(epilog=example("macs demo", "macs restore small.png -o restored/ --factor 2", "macs restore --help"))
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=print_version, is_eager=True, help="Show it and end.")] = False,
) -> None:
    """Restore images from degraded measurements with a consistency model, in two network evaluations."""
