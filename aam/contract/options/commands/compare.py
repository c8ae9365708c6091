"""Options of `aam compare` and `aam unifrac`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aam.contract.options.device import Device
from aam.contract.options.field import option
from aam.contract.options.study import (
    DROP_MISSING_ASVS,
    ROOT_AT_MIDPOINT,
    UNIFRAC_ALPHA,
    Metric,
    TableOptions,
)


@dataclass(frozen=True)
class Compare:
    """Compare runs: a table of their metrics on common samples, and an HTML page.

    Examples:
        aam compare run1 run2
        aam compare run1 run2 run3 --output compare.html
    """

    run_dirs: tuple[Path, ...] = option(
        "Run folders of `aam train`; `--run-dirs` can be omitted.", role="input", first=True
    )
    output: Path | None = option("HTML file to write.", default=None, role="output", basic=True)


@dataclass(frozen=True)
class Unifrac:
    """Compute the UniFrac distance matrix or the Faith PD of a table.

    Examples:
        aam unifrac --table table.biom --tree tree.nwk --output d.tsv
        aam unifrac --table table.biom --tree tree.nwk --output pd.tsv \
        --unifrac-metric faith_pd
    """

    input: TableOptions
    tree: Path | None = option(
        "Rooted phylogeny: Newick or .qza; a folder of `aam prepare` contains one.",
        default=None,
        role="input",
        basic=True,
    )
    output: Path = option(
        "Matrix to write: .tsv or .lsmat, .npy (with the ids in a .txt), or .h5 of ssu; "
        "Faith PD is always a TSV.",
        role="output",
    )
    unifrac_metric: Metric = option(
        "UniFrac variant, or Faith PD.", default="unweighted", basic=True
    )
    unifrac_alpha: float = UNIFRAC_ALPHA
    engine: Literal["auto", "torch", "ssu", "unifrac"] = option(
        "'ssu' runs the program of unifrac-binaries, 'unifrac' its Python package; 'auto' is "
        "torch.",
        default="auto",
        excludes={
            "ssu": "--unifrac-metric faith_pd",
            "unifrac": "--unifrac-metric faith_pd",
        },
    )
    drop_missing_asvs: bool = DROP_MISSING_ASVS
    root_at_midpoint: bool = ROOT_AT_MIDPOINT
    device: Device = option("Device for torch.", default="auto")
    overwrite: bool = option("Replace an existing output file.", default=False, basic=True)
