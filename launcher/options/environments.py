"""Options of env create and env show."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aam.contract.options.field import option
from launcher.options.images import WHEELS


@dataclass(frozen=True)
class EnvOptions:
    """Options of a virtual environment."""

    stack: str | None = option(
        "Stack, an image of `aam-launch images`; by default the newest that serves the GPUs.",
        default=None,
        metavar="NAME",
        basic=True,
    )
    folder: Path | None = option(
        "Folder of the environment; by default ~/.local/share/aam/environments/NAME.",
        default=None,
        basic=True,
    )
    installer: Literal["uv", "pip"] | None = option(
        "Program that installs; by default uv where it is on PATH, else pip.",
        default=None,
        basic=True,
    )
    python: str | None = option(
        "Python to make it with, of a version that the lock has.",
        default=None,
        metavar="FILE",
        basic=True,
    )
    wheels: Path | None = WHEELS


@dataclass(frozen=True)
class EnvCreate(EnvOptions):
    """Make a virtual environment from the lock of an image, and run `aam check` in it.

    Examples:
        aam-launch env create
        aam-launch env create --stack cpu --folder /project/aam/cpu
    """


@dataclass(frozen=True)
class EnvShow(EnvOptions):
    """Show which stack an environment would have, why, and the commands that make it.

    Examples:
        aam-launch env show
        aam-launch env show --host node.tar
    """
