"""Options of `aam baseline`, `aam compare` and `aam unifrac`."""

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
    SplitOptions,
    TableOptions,
    TargetOptions,
)


@dataclass(frozen=True)
class BaselineOptions:
    """Train a random forest or a sequence kernel on the same split, as a baseline for a model.

    Examples:
        aam baseline --table table.biom --metadata metadata.tsv \
        --metadata-column age --output-dir forest
        aam baseline --member kernel --table table.biom --metadata metadata.tsv \
        --metadata-column age --splits age/splits.tsv --output-dir kernel
    """

    input: TableOptions
    target: TargetOptions
    split: SplitOptions
    output_dir: Path = option("Folder for predictions.tsv and metrics.json.", role="output")
    member: Literal["forest", "kernel"] = option(
        "'forest': random forest on relative abundances; 'kernel': ridge regression on the exact "
        "kernel of the sequences.",
        default="forest",
        basic=True,
    )
    folds: int = option("Cross-validation: number of folds; 1: one split.", default=1, basic=True)
    n_estimators: int = option(
        "Number of trees.", default=200, basic=True, only_with=("--member forest",)
    )
    max_features: float = option(
        "Fraction of the ASVs considered at each split of a tree.",
        default=0.3,
        only_with=("--member forest",),
    )
    min_samples_leaf: int = option(
        "Minimum number of samples in a leaf.", default=2, only_with=("--member forest",)
    )
    seed: int = option("Random seed of the split and the forest.", default=42)
    n_jobs: int = option("CPU cores; -1: all.", default=-1)
    overwrite: bool = option("Replace existing files.", default=False, basic=True)


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
            "ssu": "--shard or --unifrac-metric faith_pd",
            "unifrac": "--shard or --unifrac-metric faith_pd",
        },
    )
    drop_missing_asvs: bool = DROP_MISSING_ASVS
    root_at_midpoint: bool = ROOT_AT_MIDPOINT
    device: Device = option("Device for torch.", default="auto")
    shard: str | None = option(
        "Part of the matrix, as 3/64 (the third of 64), for separate processes; written to "
        "OUTPUT.shards, see `aam merge`.",
        default=None,
        metavar="I/N",
    )
    overwrite: bool = option("Replace an existing output file.", default=False, basic=True)
