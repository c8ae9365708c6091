"""Commands of `aam`: group in the help page and options class of each."""

import functools
import importlib

from aam.contract.options import OptionSpec, specs

EVERYDAY = "Everyday commands"
"""Group that the first help page describes; it only names the other commands."""

COMMANDS: dict[str, dict[str, str]] = {
    EVERYDAY: {
        "example": "studies.Example",
        "inspect": "studies.Inspect",
        "train": "train.Train",
        "report": "use.Report",
        "predict": "use.Predict",
        "evaluate": "use.Evaluate",
        "compare": "use.Compare",
        "importance": "use.ImportanceOptions",
        "prepare": "studies.Prepare",
        "pretrain": "train.Pretrain",
    },
    "Models": {
        "search": "train.Search",
        "embed": "use.Embed",
        "export": "use.Export",
    },
    "Distances": {
        "unifrac": "studies.Unifrac",
    },
    "Performance": {
        "memory": "measure.Memory",
        "tune": "measure.Tune",
        "profile": "measure.Profile",
    },
    "GPU and PyTorch": {
        "check": "measure.Check",
        "golden generate": "measure.GoldenGenerate",
        "golden compare": "measure.GoldenCompare",
        "acceptance": "measure.Acceptance",
    },
}
"""Group of the help page -> command name -> module of this package and options class in it."""

NETWORK_COMMANDS = ("check", "embed", "export", "memory", "pretrain", "unifrac")
STACK_COMMANDS = ("acceptance", "golden", "profile", "tune")
"""First words of the commands that always need PyTorch."""

WRAPPERS = {
    "memory": ("pretrain", "train", "predict", "embed"),
    "tune": ("pretrain", "train"),
    "profile": ("pretrain", "train"),
}
"""Command -> commands that it can wrap; see `aam.contract.options.command_line`."""

_OF_A_RUN = ("overwrite", "resume_from", "checkpoint_every_n_steps")
"""Options without effect in a wrapped command, which neither replaces nor continues a run."""


def find(name: str) -> type | None:
    """Return the options class of a command, or None.

    Only its module is imported: all modules would take 12 ms of the launcher's start.
    """
    reference = next((group[name] for group in COMMANDS.values() if name in group), None)
    if reference is None:
        return None
    module, _, class_name = reference.partition(".")
    command_class: type = getattr(importlib.import_module(f"{__name__}.{module}"), class_name)
    return command_class


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
    """Return the options of a wrapped command that have an effect, without its outputs."""
    flags = {spec.flag for spec in options_of(command)}
    return tuple(
        spec
        for spec in options_of(wrapped)
        if not (spec.flag in flags or spec.field in _OF_A_RUN)
        and not (spec.role == "output" and spec.required)
    )
