"""``python -m bifolio.cli``."""

from bifolio.cli import main

main()
