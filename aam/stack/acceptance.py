"""`aam acceptance`: correctness, memory and speed of this host and image, in one file."""

from __future__ import annotations

import os

from aam.console import info
from aam.contract.options.commands.measure import Acceptance
from aam.environment import read_environment


def run_acceptance(options: Acceptance) -> int:
    """Run `aam acceptance`: measure the remaining parts; return 1 if one is wrong or failed."""
    if read_environment(os.environ).is_main:
        info(f"Acceptance, at most {options.minutes:g} min; results in {options.output_dir}.")
    # Importing PyTorch takes 4 CPU-seconds; the first line is printed before.
    from aam.stack.acceptance_run import run

    return run(options)
