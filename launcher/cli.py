"""The `aam-launch` program: read what is asked and hand it to the command that does it."""

from __future__ import annotations

import errno
import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from aam import __version__
from aam.contract.errors import AamError, CannotCreate
from launcher.help import OWN, command_help, overview, own_help
from launcher.plan.launcher_options import HELP, spelled, split_own
from launcher.plan.request import command_of

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run `aam-launch` with `argv` (the process's by default).

    Returns only to report: an exit status after help, a dry run or an error.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    gc.disable()  # a launch is over before there is garbage worth looking for
    # A file name may be no text of this locale; it goes out as the bytes that it came in as.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="surrogateescape")
    try:
        try:
            return _dispatch(words)
        finally:
            sys.stdout.flush()
    except AamError as error:
        print(f"aam-launch: {error}", file=sys.stderr)
        return error.status
    except BrokenPipeError:  # the reader, `head` for one, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = f"'{error.filename}'" if error.filename else "standard output"
        full = CannotCreate("The disk is full", f"{where}, {error.strerror}", "free some space")
        print(f"aam-launch: {full}", file=sys.stderr)
        return full.status
    except KeyboardInterrupt:
        return INTERRUPTED


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in HELP:
        print(overview())
        return 0
    if words[0] == "--version":
        print(f"aam-launch {__version__}")
        return 0
    if words[:2] == ["completion", "--"]:  # a shell asks, about words that need not make sense
        from launcher.completion import candidates

        print("\n".join(candidates(words[2:])))
        return 0
    if any(word in HELP for word in words):
        _, rest = split_own([word for word in words if word not in HELP])
        command = command_of(rest, OWN)
        print(own_help(command, rest[1:]) if command in OWN else command_help(command))
        return 0
    own, rest = split_own(words)
    command = command_of(rest, OWN)
    if command in OWN:
        words = [*spelled(own), *rest[1:]]
    # A command is imported when it is wanted: each one costs a part of the 60 ms that a start has.
    module = importlib.import_module(f"launcher.commands.{command if command in OWN else 'start'}")
    status: int = module.run(words)
    return status


def run() -> NoReturn:
    """Be the program: `main` has flushed what it said; taking its modules down would cost 5 ms."""
    os._exit(main())


if __name__ == "__main__":
    run()
