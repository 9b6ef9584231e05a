"""How a run of the command line ends, whatever happens: with an exit code and at most one line on stderr.

0 done, 1 nothing found or abstained, 2 wrong usage, bad input or damaged collection, 3 a model is missing, 130
interrupted.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from typing import Any, NoReturn

import click

from bifolio.errors import BifolioError
from bifolio.options import BifolioWarning

NOTHING = 1
FAILED = 2
INTERRUPTED = 130
_TRACEBACK = "BIFOLIO_TRACEBACK"


class Commands(click.Group):
    """A group whose commands may lose their reader: click would make that exit code 1, which means something here."""

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """Parse the arguments, which is where ``--help`` prints."""
        try:
            return super().make_context(*arguments, **options)
        except BrokenPipeError as error:
            raise _ReaderLeft from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderLeft from error


class _ReaderLeft(Exception):
    """Whoever read our output, such as ``head``, has seen enough."""


def run(command: click.Command) -> NoReturn:
    """Run the command line and end the process."""
    warnings.showwarning = _warn
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a letter that the terminal's charset lacks is no reason to fail
            stream.reconfigure(errors="replace")
    code = 0
    try:
        code = _outcome(command)
        if sys.stdout is not None:  # None where it was closed by whoever started us
            sys.stdout.flush()
    except (OSError, _ReaderLeft) as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        if not isinstance(error, BrokenPipeError | _ReaderLeft):
            _tell(f"error: the output could not be written: {error}")
            code = FAILED
    sys.exit(code)


def _outcome(command: click.Command) -> int:
    try:
        ended = command.main(standalone_mode=False)
        return ended if isinstance(ended, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else FAILED if stop.code else 0
    except (click.Abort, KeyboardInterrupt):
        _tell("interrupted: what was being written was undone")
        return INTERRUPTED
    except click.ClickException as error:
        _tell(f"error: {error.format_message()}")
        return FAILED
    except BifolioError as error:
        _tell(f"error: {str(error) or type(error).__name__}")
        return error.exit_code
    except (BrokenPipeError, _ReaderLeft):
        raise
    except OSError as error:
        _tell(f"error: {error}")
        return FAILED
    except Exception as error:
        if os.environ.get(_TRACEBACK):
            raise
        _tell(f"error: {type(error).__name__}: {error} (this is a fault of bifolio; {_TRACEBACK}=1 shows where)")
        return FAILED


def _warn(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    # Libraries warn their callers, which is us; only our own warnings are for the user.
    if issubclass(category, BifolioWarning):
        _tell(f"warning: {message}")


def _tell(text: str) -> None:
    from bifolio.console import printable

    click.echo(printable(" ".join(text.split())), err=True)
