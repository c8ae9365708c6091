"""The command line of `aam-launch images build|lock|verify|rm`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from aam.contract.errors import MissingInput, UsageError
from launcher.engines import ENGINES
from launcher.engines.sif import SIF


class ImagesArguments(argparse.Namespace):
    """Parsed command line of `aam-launch images ACTION`; `parser` documents each option."""

    names: list[str]
    engine: str | None = None
    arguments: Sequence[str] | None = None
    source: str | None = None
    wheels: Path | None = None
    fast: bool = False
    test: bool = True
    force: bool = False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError("An invalid command line", message, f"see `{self.prog} --help`")


def parse_images_arguments(action: str, argv: Sequence[str]) -> ImagesArguments:
    """Parse the arguments after `images ACTION`.

    Raises:
        UsageError: an option that does not exist, or lacks its value.
        MissingInput: a folder of wheels that is not there.
    """
    given = parser(action).parse_args(list(argv), ImagesArguments())
    if given.wheels and not any(given.wheels.glob("*.whl")):
        remedy = "fill it: pip download --no-deps --require-hashes -r containers/locks/NAME.txt"
        raise MissingInput("No wheels to install from", f"'{given.wheels}'", remedy)
    other_format = given.engine and ENGINES[given.engine].traits.image_format != SIF
    if given.source and (given.arguments or given.wheels or other_format):
        evidence = "--from makes a SIF of what is built already"
        remedy = "leave --build-arg, --wheels and other engines out"
        raise UsageError("Options that exclude each other", evidence, remedy)
    return given


def parser(action: str) -> argparse.ArgumentParser:
    """Return the parser of an action."""
    found = _Parser(f"aam-launch images {action}", description=ABOUT[action], allow_abbrev=False)
    add = found.add_argument
    add("names", metavar="NAME", nargs="+", help="an image of `aam-launch images`")
    if action != "lock":
        builders = [engine.name for engine in ENGINES.values() if engine.least]
        add("--engine", choices=builders, help="engine to use; by default the first that can")
    if action == "build":
        add("--build-arg", dest="arguments", action="append", metavar="NAME=VALUE",
            help="set a build argument: BASE, SNAPSHOT, TORCH, TORCH_INDEX")  # fmt: skip
        add("--from", dest="source", metavar="FILE",
            help="make a SIF of an archive, or of what another engine holds")  # fmt: skip
        add("--wheels", metavar="FOLDER", type=lambda folder: Path(folder).absolute(),
            help="install from these wheels, without an index")  # fmt: skip
        add("--fast", action="store_true", help="compress less: a larger SIF, much sooner")
        add("--anew", dest="force", action="store_true",
            help="build even what is built of the same inputs")  # fmt: skip
    if action in ("build", "verify"):
        add("--no-test", dest="test", action="store_false", help="leave the image's own test out")
    return found


ABOUT = {
    "build": "Build images into the image folder and write down what was built (images.json).",
    "lock": "Resolve pins that have no digest yet (needs a network), and record images that were "
    "copied into the image folder.",
    "verify": "Compare images with what was recorded, run their own test, and `aam check` on the "
    "device there is.",
    "rm": "Remove images and their record.",
}


def help_page(argv: Sequence[str]) -> str:
    """Return the help of `images ACTION`, or an overview of the actions."""
    if argv and argv[0] in ABOUT:
        return parser(argv[0]).format_help().rstrip()
    lines = ["usage: aam-launch images [list|build|lock|verify|rm] [NAME ...] [OPTIONS]", ""]
    lines += ["  list     List the images: what they pin, where they are, what fits this host."]
    lines += [f"  {action:<8} {about}" for action, about in ABOUT.items()]
    return "\n".join([*lines, "", "`aam-launch images ACTION --help` lists the options of one."])
