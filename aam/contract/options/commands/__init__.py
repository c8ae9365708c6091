"""Commands of `aam`: group in the help page, options class and command line of each."""

import functools
import importlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

from aam.contract.errors import UsageError, nearest
from aam.contract.options.command_line import CONFIG, parse_options, require_all
from aam.contract.options.contradictions import require_consistent
from aam.contract.options.field import OptionSpec, build, specs

EVERYDAY = "Everyday commands"
"""Group whose commands the first help page describes; of the others it has the names."""

COMMANDS: dict[str, dict[str, str]] = {
    EVERYDAY: {
        "example": "studies.Example",
        "inspect": "studies.Inspect",
        "train": "train.Train",
        "report": "use.Report",
        "predict": "use.Predict",
        "compare": "use.Compare",
        "importance": "use.ImportanceOptions",
        "pretrain": "pretrain.Pretrain",
    },
    "Models": {
        "search": "search.Search",
        "evaluate": "use.Evaluate",
        "embed": "use.Embed",
        "export": "use.Export",
    },
    "Studies": {
        "prepare": "studies.Prepare",
        "unifrac": "studies.Unifrac",
    },
    "Performance": {
        "memory": "measure.Memory",
        "tune": "measure.Tune",
        "profile": "measure.Profile",
    },
    "GPU and PyTorch": {
        "check": "stack.Check",
        "golden generate": "stack.GoldenGenerate",
        "golden compare": "stack.GoldenCompare",
        "acceptance": "stack.Acceptance",
    },
}
"""Group of the help page -> command name -> module of this package and options class in it."""

WRAPPERS = {
    "memory": ("pretrain", "train", "predict", "embed"),
    "tune": ("pretrain", "train"),
    "profile": ("pretrain", "train"),
}
"""Command -> the commands that it wraps; see `aam.contract.options.parsed`."""

_OF_A_RUN = ("overwrite", "resume_from", "checkpoint_every_n_steps")
"""Options of a wrapped command that have no effect: it neither replaces nor continues a run."""


def find(name: str) -> type | None:
    """Return the options class of the command called `name`, or None.

    Only the module of the command is imported: all of them take 12 ms of the launcher's start.
    """
    reference = next((group[name] for group in COMMANDS.values() if name in group), None)
    if reference is None:
        return None
    module, _, class_name = reference.partition(".")
    found: type = getattr(importlib.import_module(f"{__name__}.{module}"), class_name)
    return found


def names() -> tuple[str, ...]:
    """List the command names in the order of the help page."""
    return tuple(name for group in COMMANDS.values() for name in group)


@functools.cache
def options_of(command: str) -> tuple[OptionSpec, ...]:
    """Return the options of a command; none for an unknown name."""
    options_class = find(command)
    return specs(options_class) if options_class is not None else ()


@functools.cache
def wrapped_options(command: str, wrapped: str) -> tuple[OptionSpec, ...]:
    """Return the options of a wrapped command that have an effect: it has no output of its own."""
    own = {spec.flag for spec in options_of(command)}
    return tuple(
        spec
        for spec in options_of(wrapped)
        if not (spec.flag in own or spec.field in _OF_A_RUN)
        and not (spec.role == "output" and spec.required)
    )


def parse_command(
    command: str,
    argv: Sequence[str],
    *,
    program: str = "aam",
    others: Collection[str] = (),
    incomplete: bool = False,
) -> dict[str, Any]:
    """Return flag -> value of the options that a command line gives to a command of `aam`.

    --config is replaced by the options in its file. See `parse_options` for arguments and errors,
    `read_config` for those of the file, and `require_consistent` for those of a complete command.
    """
    options = (*options_of(command), CONFIG)
    given = parse_options(options, argv, command, program=program, others=others, incomplete=True)
    file = given.pop(CONFIG.flag, None)
    if file is not None:
        # PyYAML takes 10 ms, which only --config costs.
        from aam.contract.options.config_file import read_config

        given = {**read_config(file, options[:-1], command), **given}
    if not incomplete:
        require_all(options, given, command)
        require_consistent(build(cast(type, find(command)), given))
    return given


def split_command(
    argv: Sequence[str], more: Iterable[str] = (), program: str = "aam"
) -> tuple[str, list[str]]:
    """Split a command line into the name of its command, of one or two words, and the rest.

    Args:
        argv: the command and its options.
        more: commands besides those of `aam`.
        program: name of the program, for messages.

    Raises:
        UsageError: there is no such command.
    """
    known = (*names(), *more)
    for words in (2, 1):
        name = " ".join(argv[:words])
        if name in known:
            return name, list(argv[words:])
    longer = [one for one in known if one.startswith(f"{name} ")]
    if longer:
        near = longer if len(argv) > 1 else ()
        remedy = nearest(" ".join(argv[:2]), near, f"give `{'` or `'.join(longer)}`")
        raise UsageError("Missing subcommand", f"`{name}`", remedy)
    remedy = nearest(name, known, f"see `{program} --help`")
    raise UsageError("No such command", f"'{name}'", remedy)
