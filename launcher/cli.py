"""The `aam-launch` program: check what is asked, decide how to run it, become it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from aam import __version__
from launcher.errors import LaunchError
from launcher.help import OWN, command_help, overview
from launcher.inputs import require_inputs
from launcher.plan.own import HELP, split_own
from launcher.plan.request import command_of, parse

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run `aam-launch` with `argv` (the process's by default).

    Returns only to report: an exit status after help, a dry run or an error.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _dispatch(words)
        sys.stdout.flush()
        return status
    except LaunchError as error:
        print(f"aam-launch: {error}", file=sys.stderr)
        return error.status
    except BrokenPipeError:  # the reader, `head` for one, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in HELP:
        print(overview())
        return 0
    if words[0] == "--version":
        print(f"aam-launch {__version__}")
        return 0
    if any(word in HELP for word in words):
        _, rest = split_own([word for word in words if word not in HELP])
        command = command_of(rest, OWN)
        print(overview() if command in OWN else command_help(command))
        return 0
    _, rest = split_own(words)
    command = command_of(rest, OWN)
    if command not in OWN:
        return run(words)
    at = words.index(command)
    return _RUN[command]([*words[:at], *words[at + 1 :]])


def run(words: Sequence[str]) -> int:
    """Decide, then become the program; or print the line that would."""
    from launcher.engines import become, shell_line
    from launcher.explain import warn
    from launcher.prepare import prepare

    request = parse(words)
    require_inputs(request)
    _, plan = prepare(request)
    for line in warn(plan.findings):
        print(line, file=sys.stderr)
    if request.dry_run:
        print(shell_line(plan))
        return 0
    sys.stdout.flush()
    sys.stderr.flush()
    become(plan)
    raise AssertionError("unreachable")


def explain(words: Sequence[str]) -> int:
    """Print every decision about a command; runs nothing."""
    from launcher.explain import as_json, text
    from launcher.prepare import prepare

    request = parse(words, incomplete=True)
    capture = request.own.get("--host")
    if capture is None:
        require_inputs(request)
    host, plan = prepare(request, Path(capture[-1] if capture else "/"))
    print(as_json(host, plan) if "--json" in request.own else text(host, plan))
    return 0


_RUN = {"explain": explain}


if __name__ == "__main__":
    sys.exit(main())
