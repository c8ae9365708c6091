"""Registry of the launcher's own commands: group in the help page and options class of each."""

import importlib

COMMANDS: dict[str, dict[str, str]] = {
    "Understand": {
        "explain": "launcher.options.inspection.Explain",
        "doctor": "launcher.options.inspection.Doctor",
    },
    "Images": {
        "images": "launcher.options.images.Images",
        "images build": "launcher.options.images.ImagesBuild",
        "images pull": "launcher.options.images.ImagesPull",
        "images verify": "launcher.options.images.ImagesVerify",
    },
    "Slurm": {
        "submit": "launcher.options.submit.SubmitOptions",
        "jobs": "launcher.options.inspection.Jobs",
        "jobs cancel": "launcher.options.submit.JobsCancel",
        "site show": "launcher.options.inspection.SiteShow",
    },
    "Set up": {
        "completion": "aam.contract.completion.Completion",
    },
}
"""Group of the help page -> command -> options class; all of them take 7 ms of a start.

The first word of a command is its module in `launcher.commands`.
"""

NAMES = tuple(name for group in COMMANDS.values() for name in group)

OWN_STARTS = ("acceptance",)
"""Commands of `aam` that a module of this name in `launcher.commands` starts; `start`, all others.
"""

FORWARDING = ("explain", "submit")
"""Commands that a command line of `aam` follows."""

HOST = "--host"
"""Option that decides for a captured host; of the launcher's commands those of READ have it."""

READ = {
    "explain": ("--json", HOST, "--image", "--runtime", "--site"),
    "doctor": ("--json", HOST, "--image-dir", "--site"),
    "images": ("--json", HOST, "--image-dir"),
    "jobs": ("--json",),
    "site show": ("--json",),
    "submit": ("--dry-run", "--site", "--image", "--force"),
}
"""Options of the launcher that the help page of a command names, besides --image-dir for images."""


def find(command: str) -> type:
    """Return the options class of a command; only its module is imported."""
    reference = next(group[command] for group in COMMANDS.values() if command in group)
    module, _, class_name = reference.rpartition(".")
    found: type = getattr(importlib.import_module(module), class_name)
    return found
