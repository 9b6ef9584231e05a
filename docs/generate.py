"""Write docs/cli.md from the command line's own help; a test keeps it true."""

from __future__ import annotations

from pathlib import Path

import click

from bifolio.cli import cli

PAGE = Path(__file__).with_name("cli.md")


def page() -> str:
    """The page."""
    head = "# Command line\n\nMade by `make docs` from `--help`.\n"
    tail = (
        "\n## Exit codes\n\n"
        "0 done; 1 nothing found, or the answer is withheld; 2 wrong usage, bad input or a damaged collection; "
        "3 a model is missing; 130 interrupted.\n"
    )
    return head + "".join(section(command, name) for name, command in commands(cli, "bifolio")) + tail


def commands(command: click.Command, name: str) -> list[tuple[str, click.Command]]:
    """A command and all below it."""
    below = command.commands.items() if isinstance(command, click.Group) else []
    return [(name, command), *(pair for child, sub in sorted(below) for pair in commands(sub, f"{name} {child}"))]


def section(command: click.Command, name: str) -> str:
    """One command's help."""
    context = click.Context(
        command, info_name=name, terminal_width=100, max_content_width=100, help_option_names=["-h", "--help"]
    )
    return f"\n## {name}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
