"""Study, device and versions that settings of `aam tune` are for, as the value of an option."""

from __future__ import annotations

from pathlib import Path

import torch

from aam import __version__
from aam.contract.errors import UsageError
from aam.contract.run_record import input_file
from aam.numerics.device import hardware_name

SEPARATOR = "; "


def tuned_for(table: Path, torch_version: str, hardware: str) -> str:
    """Return the value of --tuned-for."""
    parts = [f"aam {__version__}", f"PyTorch {torch_version}", hardware]
    if file := input_file(table):  # its reader reports one that is missing
        parts.append(f"table {file['sha256'][:12]}")
    return SEPARATOR.join(parts)


def check_tuned_for(given: str | None, table: Path, device: torch.device) -> None:
    """Refuse settings of another study, device or version.

    Raises:
        UsageError: names what differs.
    """
    if given is None:
        return
    here = tuned_for(table, torch.__version__, hardware_name(device))
    differing = [part for part in here.split(SEPARATOR) if part not in given.split(SEPARATOR)]
    if differing:
        raise UsageError(
            "The settings of `aam tune` are for another study, device or version",
            f"for {given}; here {', '.join(differing)}",
            "run `aam tune` again, or remove `tuned_for` from the file to use them all the same",
        )
