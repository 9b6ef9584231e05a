"""The command line itself, without commands."""

from __future__ import annotations

import click

from bifolio import exits
from bifolio._version import __version__

_HELP = """Answers from your documents, with citations that are probabilities.

\b
  bifolio models pull                     fetch the default models, once
  bifolio ingest docs/ -c manuals         read, split and encode documents
  bifolio ask manuals "Which valve closes first?"
"""


@click.group(
    cls=exits.Commands, help=_HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="bifolio")
def cli() -> None:
    """Answers from your documents, with citations that are probabilities."""
