"""The `aam` program: choose a command, read its options, run it, turn errors into exit statuses.

Nothing heavy is imported before a command is known to be wanted and its options are right, so
that help answers at once.
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
from aam.contract.options import COMMANDS, check, find, names, specs, spell_out, split
from aam.contract.options.groups import ScaleOptions
from aam.contract.run_record import Record
from aam.contract.suggestions import nearest

INTERRUPTED = 130
DISK_FULL = (28, 122)  # ENOSPC, EDQUOT


def main(argv: Sequence[str] | None = None) -> int:
    """Run `aam` with `argv` (the process's by default) and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _dispatch(words)
        sys.stdout.flush()
        return status
    except AamError as error:
        _complain(str(error))
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
        _complain(str(absent))
        return absent.status
    except BrokenPipeError:  # the reader, `head` for one, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        place = f" while writing {error.filename}" if error.filename else ""
        _complain(f"The disk is full{place}; free some space or choose another folder.")
        return CannotCreate.status
    except MemoryError as error:
        reason = " ".join(str(error).split()) or "no more memory can be had"
        short = DataError(
            "The input does not fit in memory", reason, "use more memory, or less input"
        )
        _complain(str(short))
        return short.status
    except KeyboardInterrupt:
        _complain("Interrupted.")
        return INTERRUPTED


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return 0
    if words[0] == "--version":
        print(f"aam {__version__}")
        return 0
    name, rest = split(words)
    options = parse(name, rest)
    check(options)
    _rest_idle_threads(os.environ)
    if isinstance(scale := getattr(options, "scale", None), ScaleOptions):
        from aam.distributed import local_ranks

        number = local_ranks.ranks_to_start(scale, options.device, options.loop.batch_size)
        if number:
            return local_ranks.launch(number, words, grace=3 * scale.rank_timeout)
        # PyTorch's C++ tells at length of every broken line; who broke it is said by us.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    command = importlib.import_module(f"aam.commands.{name.replace(' ', '_')}")
    record = Record(name, options)
    # A command that judges returns its verdict as an exit status, one that knows more of its run
    # than its options say returns facts for the record; others return nothing.
    found = command.run(options)
    facts = found if isinstance(found, Mapping) else {}
    record.leave(facts)
    return found if isinstance(found, int) else 0


def _rest_idle_threads(environment: MutableMapping[str, str]) -> None:
    """Let threads sleep between parallel loops, unless the user chose otherwise.

    OpenMP lets them spin, which takes the processor from other programs, and from each other where
    there are more of them than free cores. It reads the variable when torch is imported.
    """
    chosen = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
    if not any(name in environment for name in chosen):
        environment["OMP_WAIT_POLICY"] = "PASSIVE"


def parse(name: str, words: Sequence[str]) -> Any:
    """Read `words` as the options of the command `name`.

    Raises:
        UsageError: there is no such command.
        SystemExit: 0 after printing help, 64 after printing what is wrong with an option.
    """
    kind = find(name)
    longer = [known for known in names() if known.startswith(f"{name} ")]
    if longer:
        raise UsageError("A command of two words", f"`{name}`", f"give `{'` or `'.join(longer)}`")
    if kind is None:
        raise UsageError("No such command", f"'{name}'", nearest(name, names(), "see `aam --help`"))
    words = spell_out(kind, words)
    _check_flags(name, kind, words)
    import tyro

    flags = (tyro.conf.OmitArgPrefixes, tyro.conf.ConsolidateSubcommandArgs)
    try:
        return tyro.cli(kind, args=list(words), prog=f"aam {name}", config=flags)
    except SystemExit as stop:
        raise SystemExit(UsageError.status if stop.code else 0) from None


def _check_flags(name: str, kind: type, words: Sequence[str]) -> None:
    """Refuse an unknown option with the nearest known one, which tyro does not always name."""
    known = {"--help"}
    for spec in specs(kind):
        known |= (
            {spec.flag, spec.flag.replace("--", "--no-", 1)} if spec.type is bool else {spec.flag}
        )
    for word in words:
        flag = word.partition("=")[0].replace("_", "-")
        if flag.startswith("--") and flag not in known:
            remedy = nearest(flag, known, f"see `aam {name} --help`")
            raise UsageError("No such option", f"'{word}'", remedy)


def overview() -> str:
    """Return the help page: the commands by group, a line each."""
    lines = ["usage: aam COMMAND [OPTIONS]", "", "Attention All Microbes " + __version__]
    for group, commands in COMMANDS.items():
        lines += ["", group]
        for name, kind in commands.items():
            lines.append(f"  {name:<15} {(kind.__doc__ or '').splitlines()[0]}")
    return "\n".join([*lines, "", "`aam COMMAND --help` lists a command's options."])


def _complain(sentence: str) -> None:
    rank = os.environ.get("RANK", "0")
    who = "aam" if rank == "0" else f"aam: rank {rank}"
    print(f"{who}: {sentence}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
