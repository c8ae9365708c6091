"""Command line of `aam`: parse options, run a command, convert errors to exit statuses.

Heavy libraries are imported only by the command, after its options were checked, so that help and
errors appear at once.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from aam import __version__
from aam.contract.errors import AamError, CannotCreate, DataError, Unavailable, UsageError
from aam.contract.installation import install_command
from aam.contract.options import COMMANDS, check, complete_arguments, find, names, specs, split
from aam.contract.options.groups import ScaleOptions
from aam.contract.run_record import Record
from aam.contract.suggestions import nearest

INTERRUPTED = 130
DISK_FULL = (28, 122)  # ENOSPC, EDQUOT


def main(argv: Sequence[str] | None = None) -> int:
    """Run `aam` with `argv` (the process's by default) and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()
        return status
    except AamError as error:
        _print_error(str(error))
        return error.status
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing in {"aam", ""} | sys.stdlib_module_names:
            raise
        absent = Unavailable(
            "The libraries of the model are not installed",
            f"no module '{missing}'",
            f"install them with `{install_command()}`",
        )
        _print_error(str(absent))
        return absent.status
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        place = f" while writing {error.filename}" if error.filename else ""
        _print_error(f"The disk is full{place}; free some space or choose another folder.")
        return CannotCreate.status
    except MemoryError as error:
        reason = " ".join(str(error).split()) or "no memory is left"
        short = DataError(
            "The input does not fit in memory", reason, "use more memory, or less input"
        )
        _print_error(str(short))
        return short.status
    except KeyboardInterrupt:
        _print_error("Interrupted.")
        return INTERRUPTED


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview())
        return 0
    if arguments[0] == "--version":
        print(f"aam {__version__}")
        return 0
    name, rest = split(arguments)
    options = parse(name, rest)
    check(options)
    _set_passive_waiting(os.environ)
    if isinstance(scale := getattr(options, "scale", None), ScaleOptions):
        from aam.distributed import local_ranks

        number = local_ranks.ranks_to_start(scale, options.device, options.loop.batch_size)
        if number:
            return local_ranks.launch(number, arguments, grace=3 * scale.rank_timeout)
        # PyTorch prints long messages about each broken connection; the heartbeat names the failed
        # rank.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    command = importlib.import_module(f"aam.commands.{name.replace(' ', '_')}")
    record = Record(name, options)
    # A command returns an exit status, facts for the run record, or nothing.
    result = command.run(options)
    record.leave(result if isinstance(result, Mapping) else {})
    return result if isinstance(result, int) else 0


def _set_passive_waiting(environment: MutableMapping[str, str]) -> None:
    """Make OpenMP threads sleep between parallel loops, unless the user set it otherwise.

    By default they spin, which slows other programs, and each other where there are more threads
    than free cores. OpenMP reads the variable when torch is imported.
    """
    chosen = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
    if not any(name in environment for name in chosen):
        environment["OMP_WAIT_POLICY"] = "PASSIVE"


def parse(name: str, arguments: Sequence[str]) -> Any:
    """Parse the arguments of the command `name` into its options.

    Raises:
        UsageError: the command does not exist.
        SystemExit: 0 after printing help, 64 after printing an error of an option.
    """
    command_class = find(name)
    longer = [known for known in names() if known.startswith(f"{name} ")]
    if longer:
        raise UsageError("A command of two words", f"`{name}`", f"give `{'` or `'.join(longer)}`")
    if command_class is None:
        raise UsageError("No such command", f"'{name}'", nearest(name, names(), "see `aam --help`"))
    arguments = complete_arguments(command_class, arguments)
    _check_flags(name, command_class, arguments)
    import tyro

    flags = (tyro.conf.OmitArgPrefixes, tyro.conf.ConsolidateSubcommandArgs)
    try:
        return tyro.cli(command_class, args=list(arguments), prog=f"aam {name}", config=flags)
    except SystemExit as stop:
        raise SystemExit(UsageError.status if stop.code else 0) from None


def _check_flags(name: str, command_class: type, arguments: Sequence[str]) -> None:
    """Reject an unknown option and suggest the nearest; tyro does not always suggest one."""
    known = {"--help"}
    for spec in specs(command_class):
        known |= (
            {spec.flag, spec.flag.replace("--", "--no-", 1)} if spec.type is bool else {spec.flag}
        )
    for argument in arguments:
        flag = argument.partition("=")[0].replace("_", "-")
        if flag.startswith("--") and flag not in known:
            remedy = nearest(flag, known, f"see `aam {name} --help`")
            raise UsageError("No such option", f"'{argument}'", remedy)


def overview() -> str:
    """Return the help page: the commands by group, one line each."""
    lines = ["usage: aam COMMAND [OPTIONS]", "", "Attention All Microbes " + __version__]
    for group, commands in COMMANDS.items():
        lines += ["", group]
        for name, command_class in commands.items():
            lines.append(f"  {name:<15} {(command_class.__doc__ or '').splitlines()[0]}")
    return "\n".join([*lines, "", "`aam COMMAND --help` lists a command's options."])


def _print_error(sentence: str) -> None:
    rank = os.environ.get("RANK", "0")
    prefix = "aam" if rank == "0" else f"aam: rank {rank}"
    print(f"{prefix}: {sentence}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
