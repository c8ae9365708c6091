"""Command line of the steps of a job: `python -m aam.node STEP`, which job scripts start."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from aam import __version__
from aam.contract.errors import AamError
from aam.contract.gpus import VENDORS
from aam.contract.options import parse
from aam.node import log, steps, topology
from aam.node.check import run_tests
from aam.node.settings import Settings
from aam.node.staging import checksums, stage
from aam.node.sync import sync_once


def main(argv: Sequence[str] | None = None) -> int:
    """Run a step and return its exit status."""
    given = _parser().parse_args(argv)
    try:
        return int(given.run(given) or 0)
    except AamError as error:
        log(str(error))
        return error.status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m aam.node", description=__doc__)
    parser.add_argument("--version", action="version", version=f"aam {__version__}")
    found = parser.add_subparsers(required=True, metavar="STEP")
    for name, run in (("prepare", _prepare), ("run", _run), ("finish", _finish), ("tests", _tests)):
        step = found.add_parser(name, help=(run.__doc__ or "").splitlines()[0])
        step.set_defaults(run=run)
        _add_settings(step)
        step.add_argument("--status", type=int, default=0, help="status of the step before")
        step.add_argument("--checkout", type=Path, help="folder with the tests")
        step.add_argument("--pytest", type=Path, help="folder in which pytest is installed")
        step.add_argument("argv", nargs=argparse.REMAINDER, help="command of aam")
    copy = found.add_parser("stage", help="Copy files to a folder, each verified.")
    copy.set_defaults(run=_stage)
    copy.add_argument("--most-gb", type=float, default=float("inf"))
    copy.add_argument("folder", type=Path)
    copy.add_argument("files", type=Path, nargs="+")
    sync = found.add_parser("sync", help="Copy a run folder, every file complete at any moment.")
    sync.set_defaults(run=_sync)
    sync.add_argument("--patience", type=float, default=0)
    sync.add_argument("source", type=Path)
    sync.add_argument("target", type=Path)
    show = found.add_parser("show", help="Show what a job finds on this node.")
    show.set_defaults(run=_show)
    show.add_argument("--interfaces", nargs="*", default=[])
    show.add_argument("--folder", type=Path, default=Path("/tmp"))
    return parser


def _add_settings(step: argparse.ArgumentParser) -> None:
    """Add an option for each field of `Settings`; one that can be repeated is in the singular."""
    types = get_type_hints(Settings)
    for field in fields(Settings):
        option_type, flag = types[field.name], "--" + field.name.replace("_", "-")
        if option_type is bool:
            step.add_argument(flag, action="store_true")
        elif get_origin(option_type) is tuple:
            item = get_args(option_type)[0]
            flag = flag.removesuffix("s")
            step.add_argument(flag, dest=field.name, action="append", default=[], type=item)
        else:
            step.add_argument(
                flag,
                type=_number if option_type is float else option_type,
                required=field.default is MISSING,
                default=field.default,
                choices=(*VENDORS, "") if field.name == "vendor" else None,
            )


def _number(text: str) -> float:
    return float(text or 0)  # Slurm gives no end where there is no limit


def _settings(given: argparse.Namespace) -> Settings:
    values: dict[str, Any] = {}
    for field in fields(Settings):
        value = getattr(given, field.name)
        values[field.name] = tuple(value) if isinstance(value, list) else value
    return Settings(**values)


def _argv(given: argparse.Namespace) -> list[str]:
    return list(given.argv[1:] if given.argv[:1] == ["--"] else given.argv)


def _prepare(given: argparse.Namespace) -> None:
    """Check the node and the inputs, and stage them."""
    argv = _argv(given)
    if os.environ.get("SLURM_NODEID", "0") == "0":  # once is enough to refuse an option
        parse(argv)
    steps.prepare(_settings(given), argv, os.environ)


def _run(given: argparse.Namespace) -> int:
    """Run `aam` as a rank."""
    return steps.run(_settings(given), _argv(given), os.environ)


def _finish(given: argparse.Namespace) -> int:
    """Copy the run for the last time and decide how the job ends."""
    return steps.finish(_settings(given), _argv(given), os.environ, given.status)


def _tests(given: argparse.Namespace) -> int:
    """Run `aam check` and the tests that need an AMD GPU."""
    return run_tests(_argv(given), given.checkout, given.pytest)


def _stage(given: argparse.Namespace) -> None:
    given.folder.mkdir(parents=True, exist_ok=True)
    copies = {path: given.folder / path.name for path in given.files}
    stage(checksums(given.files, given.most_gb), copies)


def _sync(given: argparse.Namespace) -> None:
    sync_once(given.source, given.target, given.patience)


def _show(given: argparse.Namespace) -> None:
    log(f"node {os.uname().nodename}, {os.cpu_count()} CPUs")
    log(f"interfaces {', '.join(topology.interfaces(given.interfaces)) or 'none of those named'}")
    free = shutil.disk_usage(given.folder).free // 10**9
    log(f"'{given.folder}' has {free} GB free")
    addresses = [a for vendor in VENDORS.values() for a in vendor.addresses(Path("/"))]
    for number, address in enumerate(addresses):
        near = sorted(topology.cpus_near(address))
        log(f"GPU {number} at {address}: CPUs {', '.join(map(str, near)) or 'unknown'}")


if __name__ == "__main__":
    sys.exit(main())
