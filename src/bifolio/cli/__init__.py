"""The command line. A door: options in, library calls, output; no logic.

``--json`` prints one JSON document on stdout and nothing else there; progress and warnings go to stderr. Exit codes:
0 done, 1 nothing found or abstained, 2 wrong usage, bad input or damaged collection, 3 a model is missing, 130
interrupted. An error is one line. Everything heavy is imported inside the commands: ``--help`` has to be instant.
"""

from __future__ import annotations

from bifolio import exits
from bifolio.cli import asking, changing, generations, models, upkeep  # noqa: F401  their commands
from bifolio.cli.root import cli


def main() -> None:
    """Run the command line; whatever happens ends in an exit code and at most one line."""
    exits.run(cli)
