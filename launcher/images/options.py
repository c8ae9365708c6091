"""The command line of `aam-launch images build|lock|verify|rm`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from aam.contract.errors import MissingInput, UsageError
from launcher.engines import ENGINES
from launcher.engines.sif import SIF


@dataclass(frozen=True)
class ImagesArguments:
    """Parsed command line of `aam-launch images ACTION`; `parser` documents each option."""

    names: tuple[str, ...]
    engine: str | None = None
    arguments: tuple[str, ...] = ()
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
    given = parser(action).parse_args(list(argv))
    wheels = Path(given.wheels).absolute() if getattr(given, "wheels", None) else None
    if wheels and not any(wheels.glob("*.whl")):
        remedy = "fill it: pip download --no-deps --require-hashes -r containers/locks/NAME.txt"
        raise MissingInput("No wheels to install from", f"'{wheels}'", remedy)
    source, engine = getattr(given, "source", None), getattr(given, "engine", None)
    if source and (given.build_arg or wheels or _format(engine) not in (None, SIF)):
        evidence = "--from makes a SIF of what is built already"
        remedy = "leave --build-arg, --wheels and other engines out"
        raise UsageError("Options that exclude each other", evidence, remedy)
    return ImagesArguments(
        names=tuple(given.names),
        engine=engine,
        arguments=tuple(getattr(given, "build_arg", ())),
        source=source,
        wheels=wheels,
        fast=getattr(given, "fast", False),
        test=not getattr(given, "no_test", False),
        force=getattr(given, "anew", False),
    )


def _format(engine: str | None) -> str | None:
    return ENGINES[engine].traits.image_format if engine else None


def parser(action: str) -> argparse.ArgumentParser:
    """Return the parser of an action."""
    found = _Parser(prog=f"aam-launch images {action}", description=ABOUT[action],
                    allow_abbrev=False)  # fmt: skip
    add = found.add_argument
    add("names", metavar="NAME", nargs="+", help="an image of `aam-launch images`")
    if action != "lock":
        add(
            "--engine",
            choices=[engine.name for engine in ENGINES.values() if engine.least],
            help="with which; the first that can by default",
        )
    if action == "build":
        add("--build-arg", action="append", default=[], metavar="NAME=VALUE",
            help="set a build argument: BASE, SNAPSHOT, TORCH, TORCH_INDEX")  # fmt: skip
        add("--from", dest="source", metavar="FILE",
            help="make a SIF of an archive, or of what another engine holds")  # fmt: skip
        add("--wheels", metavar="FOLDER", help="install from these wheels, without an index")
        add("--fast", action="store_true", help="compress less: a larger SIF, much sooner")
        add("--anew", action="store_true", help="build even what is built of the same inputs")
    if action in ("build", "verify"):
        add("--no-test", action="store_true", help="leave the image's own test out")
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
