"""`python -m launcher`: the same as the `aam-launch` command."""

from launcher.cli import run

run()
