"""`aam acceptance`: correctness, memory and speed of this host and image, in one file."""

from __future__ import annotations

import os

from aam.console import info
from aam.contract.options.commands.measure import Acceptance
from aam.environment import read_environment


def run_acceptance(options: Acceptance) -> int:
    """Measure the parts that are left; return 1 if one is wrong or failed."""
    if read_environment(os.environ).is_main:
        info(f"Acceptance, at most {options.minutes:g} min; results in {options.output_dir}.")
    # PyTorch takes 4 CPU-seconds to import, before which the first line is there.
    from aam.stack.acceptance_run import run

    return run(options)
