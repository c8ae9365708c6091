"""Selection of the samples of a run by rarefaction depth."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aam.console import info
from aam.contract.errors import DataError, first_few
from aam.contract.options.study import SampleOptions
from aam.data.rarefaction import auto_depth
from aam.data.study import Study


def choose_depth(study: Study, options: SampleOptions) -> int:
    """Return the rarefaction depth; 0 takes all reads."""
    if options.rarefy_depth != "auto":
        return options.rarefy_depth
    depth = auto_depth(study.reads)
    info(f"Rarefaction depth: {depth} reads (--rarefy-depth auto).")
    return depth


def deep_enough(study: Study, depth: int, several: bool = False) -> npt.NDArray[np.int64]:
    """Return the rows of the samples that reach the depth; print the ids of the others.

    Args:
        study: N samples.
        depth: number of reads that the transformer draws from each sample.
        several: whether other members are trained on the same samples.

    Raises:
        DataError: fewer than two samples reach it.
    """
    rows = np.flatnonzero(study.reads >= depth)
    if len(rows) < 2:
        raise DataError(
            "Hardly any sample reaches the rarefaction depth",
            f"{len(rows)} of {len(study.reads)} have {depth} reads, the deepest {max(study.reads)}",
            "choose a lower --rarefy-depth",
        )
    if below := study.shallow(depth):
        of_members = ", of all members" if several else ""
        info(f"Samples with fewer than {depth} reads are left out{of_members}: {first_few(below)}.")
    return rows
