"""`aam-launch env`: make a virtual environment of a stack, or print the commands that make it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aam.contract.errors import Unavailable
from launcher.commands import parse_own, print_json
from launcher.documents import user_folder
from launcher.engines.build_log import BuildLog
from launcher.findings import warn
from launcher.images import virtual_environment
from launcher.images.build import require_wheels
from launcher.images.definitions import lock_of, sources
from launcher.images.virtual_environment import Environment, Installer
from launcher.options.environments import EnvCreate, EnvOptions, EnvShow
from launcher.plan.catalog import Image
from launcher.plan.decision import Choice, decide_stack
from launcher.plan.request import Request
from launcher.planning import gather


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Make the environment for this host or a captured one, or show how it is made."""
    action, *rest = argv
    options = parse_own(EnvCreate if action == "create" else EnvShow, rest, f"env {action}")
    flags = dict(launcher_options)
    if options.stack:
        flags["--image"] = options.stack
    inputs = gather(Request("check", {}, flags), flags.get("--host") or Path("/"))
    settings, host = inputs.settings, inputs.host
    stack, choice = decide_stack(inputs)
    warn(choice.findings)
    images = Path(settings.text("image_dir")).expanduser().absolute()
    create = isinstance(options, EnvCreate)
    wheels = require_wheels(options.wheels)
    lock = lock_of(sources(), stack.name)
    environment = _environment(stack, options, lock, wheels, named=not create)
    if not isinstance(options, EnvCreate):
        _show(stack, choice, environment, "--json" in flags)
        return 0
    log = BuildLog(
        images / "logs" / f"environment-{stack.name}.log",
        "The environment was not made",
        virtual_environment.OFFLINE,
    )
    log.step(f"{stack.title}, with {environment.installer.name}; log {log.path}")
    virtual_environment.make(environment, log)
    gpu = bool(choice.gpus) and host.live
    wrong = virtual_environment.check(environment, gpu)
    if wrong:
        print("note    an attention backend computes wrong results here; aam does not use it")
    if choice.gpus and not gpu:
        argv = virtual_environment.check_command(environment, gpu=True)
        print(f"note    checked on this processor; on the other host run `{shlex.join(argv)}`")
    print(f"{environment.folder / 'bin/aam-launch'} runs aam with {stack.title}")
    return 0


def _environment(
    stack: Image, options: EnvOptions, lock: Path, wheels: Path | None, named: bool
) -> Environment:
    """Return the environment to make; with `named`, of a Python that need not be here."""
    folder = (
        options.folder or user_folder("XDG_DATA_HOME", os.environ) / "environments" / stack.name
    )
    try:
        installer = virtual_environment.find_installer(
            stack, lock.read_text(), os.environ, options.installer, options.python
        )
    except Unavailable:
        if not named or options.python:
            raise
        version = stack.pins["python"]
        installer = Installer("pip", f"python{version}", version)
    return Environment(stack, folder.expanduser().absolute(), lock, installer, wheels)


def _show(stack: Image, choice: Choice, environment: Environment, json: bool) -> None:
    """Print the stack, the reasons and the commands."""
    commands = virtual_environment.commands(environment)
    check = virtual_environment.check_command(environment, bool(choice.gpus))
    if json:
        print_json({
            "stack": stack.name,
            "pins": dict(stack.pins),
            "decisions": [asdict(decision) for decision in choice.decisions],
            "findings": [asdict(finding) for finding in choice.findings],
            "commands": [list(argv) for argv in (*commands, check)],
        })  # fmt: skip
        return
    for decision in choice.decisions:
        print(f"{decision.subject:<13} {decision.value}")
        print(f"{'':<15}{decision.why} [{decision.source}]")
    pins = ", ".join(f"{name} {version}" for name, version in stack.pins.items())
    print(f"{'pins':<13} {pins}\n{'lock':<13} {environment.lock}")
    print("\n" + "\n".join(shlex.join(argv) for argv in (*commands, check)))
