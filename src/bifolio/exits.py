"""How a run of the command line ends, whatever happens: with an exit code and at most one line on stderr.

0 done, 1 nothing found or abstained, 2 wrong usage, bad input or damaged collection, 3 a model is missing, 130
interrupted.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import click

from bifolio.errors import BifolioError
from bifolio.options import BifolioWarning

NOTHING = 1
FAILED = 2
INTERRUPTED = 130
_TRACEBACK = "BIFOLIO_TRACEBACK"


class Commands(click.Group):
    """A group whose commands may lose their reader: click would make that exit code 1, which means something here.

    Without a command it prints its help, and that is wrong usage.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments of the group itself."""
        if not args:
            tell(ctx.get_help(), as_it_is=True)
            ctx.exit(FAILED)
        return super().parse_args(ctx, args)

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


class _Unfailing:
    """Standard error when nobody may be there to read it: that is no reason for another exit code."""

    def __init__(self, stream: io.TextIOBase) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            _to_nowhere(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            _to_nowhere(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _to_nowhere(stream: Any) -> None:
    """Python flushes once more when it ends: let that succeed."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def undoing() -> Iterator[None]:
    """Around what leaves nothing behind when it is interrupted, so that it is said."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt("what was being written was undone") from stop


@contextmanager
def resuming() -> Iterator[None]:
    """Around what can be gone on with when it is interrupted, so that it is said."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(
            "the collection is as it was; what was done is kept, and the same command goes on with it"
        ) from stop


def run(command: click.Command) -> NoReturn:
    """Run the command line and end the process."""
    # Before torch is imported: on a busy machine two threads that spin at barriers are up to 15 times slower than
    # one, and those that sleep are not (docs/LOG.md).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    warnings.showwarning = _warn
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a letter that the terminal's charset lacks is no reason to fail
            stream.reconfigure(errors="replace")
    if isinstance(sys.stderr, io.TextIOBase):
        sys.stderr = _Unfailing(sys.stderr)
    code = 0
    try:
        code = _outcome(command)
        if sys.stdout is not None:  # None where it was closed by whoever started us
            sys.stdout.flush()
    except (OSError, _ReaderLeft) as error:
        _to_nowhere(sys.stdout)
        if not isinstance(error, BrokenPipeError | _ReaderLeft):
            tell(f"error: the output could not be written: {error}")
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
    except (click.Abort, KeyboardInterrupt) as stop:  # click puts its own in the place of Python's
        undone = str(stop.__cause__ or stop)
        tell(f"interrupted: {undone}" if undone else "interrupted")
        return INTERRUPTED
    except click.ClickException as error:
        tell(f"error: {error.format_message()}")
        return FAILED
    except BifolioError as error:
        tell(f"error: {str(error) or type(error).__name__}")
        return error.exit_code
    except (BrokenPipeError, _ReaderLeft):
        raise
    except OSError as error:
        tell(f"error: {error}")
        return FAILED
    except Exception as error:
        if os.environ.get(_TRACEBACK):
            raise
        tell(f"error: {type(error).__name__}: {error} (this is a fault of bifolio; {_TRACEBACK}=1 shows where)")
        return FAILED


def _warn(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    # Libraries warn their callers, which is us; only our own warnings are for the user.
    if issubclass(category, BifolioWarning):
        tell(f"warning: {message}")


def tell(text: str, *, as_it_is: bool = False) -> None:
    """A line for a person on stderr; ``as_it_is`` if it may be several."""
    if not as_it_is:
        from bifolio.console import printable

        text = printable(" ".join(text.split()))
    try:
        click.echo(text, err=True)
    except OSError:  # click may write past our stream
        _to_nowhere(sys.stderr)
