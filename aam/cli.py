"""Command line of `aam`: parse options, run a command, convert errors to exit statuses.

Heavy libraries are imported only by the command, after its options were checked, so that help and
errors appear at once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from aam import wings
from aam.contract import completion, program
from aam.contract.installation import not_installed
from aam.contract.options import build, specs
from aam.contract.options.command_line import (
    CONFIG,
    HELP,
    HELP_ALL,
    ParsedCommand,
    before_program,
    given_twice,
    parse_options,
    split_command,
)
from aam.contract.options.command_line import parse as parse_command_line
from aam.contract.options.commands import WRAPPERS, find, options_of
from aam.contract.options.conditions import without_effect
from aam.contract.options.groups import DeviceOptions, RankOptions, ScaleOptions, uses_network
from aam.contract.preflight import require_columns, require_inputs, require_no_password
from aam.contract.version import __version__
from aam.memory import require_address_space

OWN = {"completion": completion.Completion}
"""Commands that `aam-launch` has too, and does not pass on."""
_AGAIN = 0.5  # seconds until a stop signal without effect is handled again


def main(argv: Sequence[str] | None = None) -> int:
    """Run `aam` with `argv` (the process's by default) and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with warnings.catch_warnings():
        # Warnings of libraries are for programmers; PYTHONWARNINGS and `python -W` show them.
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
        return program.run("aam", lambda: _dispatch(arguments))


def _dispatch(arguments: list[str]) -> int:
    if completion.REQUESTED in os.environ:
        completion.complete(completion.aam_parser())
    if arguments[:1] in (["--version"], ["-V"]):
        print(f"aam {__version__}")
        return 0
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    command = before_program(arguments)
    if not command or any(argument in HELP for argument in command):
        print(_help(command))
        return 0
    if command[0] in OWN:
        options_class = OWN[command[0]]
        values = parse_options(specs(options_class), command[1:], command[0])
        print(completion.shell_code(build(options_class, values).shell), end="")
        return 0
    return _run(parse_command_line(arguments), arguments)


def _run(parsed: ParsedCommand, arguments: list[str]) -> int:
    """Run a command of `aam`, or start its ranks; return the exit status."""
    require_address_space()
    require_no_password(parsed)
    require_inputs(parsed)
    if parsed.command != "inspect":  # it reports missing columns itself
        require_columns(parsed)
    options, measured = parsed.build(), parsed.build_wrapped()
    # OpenMP, MKL and joblib (for the trees of the forest) read their variables when they are
    # imported. By default their threads spin between parallel loops: this slows other programs,
    # and the threads themselves if there are fewer free cores than threads.
    chosen = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
    if not any(name in os.environ for name in chosen):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    device = getattr(measured if parsed.wrapped else options, "device", None)
    if isinstance(device, DeviceOptions) and device.cpu_threads != "auto":
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "LOKY_MAX_CPU_COUNT"):
            os.environ[name] = str(device.cpu_threads)
    scale = getattr(options, "scale", None)
    if isinstance(scale, RankOptions) and uses_network(options):
        from aam import local_ranks

        # Only in training do the ranks share each batch.
        trains = isinstance(scale, ScaleOptions)
        batch_size = options.loop.batch_samples if trains else None
        number = local_ranks.ranks_to_start(scale, options.device, batch_size)
        if number:
            return local_ranks.launch(number, arguments, grace=3 * scale.rank_timeout)
        # PyTorch prints long messages about each broken connection; the heartbeat names the failed
        # rank.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    undecided = getattr(options, "undecided", ())
    if ignored := [*without_effect(options, undecided), *given_twice(parsed.options, arguments)]:
        from aam.console import warn  # importing rich takes 60 ms

        for sentence in ignored:
            warn(sentence)
    try:
        with stopped_by_signals():
            first = parsed.command.partition(" ")[0]
            command = wings.command(first)
            if parsed.command in WRAPPERS:
                command(options, measured)
                return 0
            from aam.run_record import Record  # importing msgspec takes 15 ms

            record = Record(parsed.command, options)
            # A command returns an exit status, facts for the run record, or nothing.
            result = command(options)
            if os.environ.get("RANK", "0") == "0":
                record.leave(result if isinstance(result, Mapping) else {})
            return result if isinstance(result, int) else 0
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing in {"aam", ""} | sys.stdlib_module_names:
            raise
        cause = f"`aam {parsed.command}` needs libraries that are not installed"
        raise not_installed(cause, error) from error


def _help(arguments: Sequence[str]) -> str:
    from aam.contract.options import help_page  # shutil and textwrap: 4 ms

    remaining = [argument for argument in arguments if argument not in HELP]
    everything = HELP_ALL in arguments
    if not remaining:
        return help_page.overview("aam", more={"Set up": OWN}, everything=everything)
    name, _ = split_command(remaining, OWN)
    if name in OWN:
        return help_page.page("aam", name, OWN[name], specs(OWN[name]), everything=True)
    options_class = typing.cast(type, find(name))
    options = (*options_of(name), CONFIG)
    return help_page.page("aam", name, options_class, options, everything=everything)


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """End the block with status 75 on SIGTERM and SIGHUP, from a scheduler or a terminal.

    The handler raises `Stopped` in the main thread. Python drops exceptions in callbacks of weak
    references and in `__del__`, and a library may catch or replace them. So the handler repeats
    until `Stopped` is raised, and any error after a signal counts as the stop. Training of the
    transformer installs a handler that saves a checkpoint.
    """
    process = os.getpid()
    handlers: dict[int, Any] = {}
    received: list[signal.Signals] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a worker; its parent ends it
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if not received:
            received.append(signal.Signals(number))
            handlers[signal.SIGALRM] = signal.signal(signal.SIGALRM, stop) or signal.SIG_DFL
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)
        # A second exception would interrupt the removal of temporary files.
        if not _is_stopping(sys.exc_info()[1]):
            raise program.Stopped(received[0].name)

    if threading.current_thread() is threading.main_thread():
        # nohup starts a program with SIGHUP ignored.
        unset = [number for number in (signal.SIGTERM, signal.SIGHUP)
                 if signal.getsignal(number) == signal.SIG_DFL]  # fmt: skip
        handlers |= {number: signal.signal(number, stop) for number in unset}
    try:
        yield
    except Exception as error:
        if received:
            raise program.Stopped(received[0].name) from error
        raise
    finally:
        if received:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _is_stopping(error: BaseException | None) -> bool:
    """Return whether an exception or one of its contexts is `Stopped`."""
    while error is not None and not isinstance(error, program.Stopped):
        error = error.__context__
    return error is not None


if __name__ == "__main__":
    sys.exit(main())
