"""Options about the study: table, phylogeny, selection of ASVs, split and target.

Names are those of the public AAM program where the meaning is the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aam.contract.options import (
    EVERY_MEMBER,
    GIBIBYTES,
    ONE_OR_MORE,
    UP_TO_ONE,
    WIDTHS,
    ZERO_OR_MORE,
    basic_option,
    option,
    required_option,
)

Metric = Literal[
    "unifrac", "unweighted", "weighted", "weighted_normalized", "generalized", "faith_pd"
]

TargetType = Literal["regression", "classification", "ordinal"]

# Options of several groups and commands.
TAXONOMY = basic_option("Taxonomy of the ASVs: TSV of QIIME 2 (Feature ID, Taxon) or .qza.")
DROP_MISSING_ASVS = option(
    "Leave out ASVs that are not in the tree instead of rejecting the table.", default=False
)
DROP_EMPTY_SAMPLES = option(
    "Leave out samples without reads instead of rejecting the table.", default=False
)
MAX_MEMORY_GB = option(
    "Memory limit in GiB for reading each of table, tree and sequences, and for the tiles of "
    "`aam unifrac`. 'auto': half of the available memory, and 1 GiB for tiles.",
    default="auto",
    takes=GIBIBYTES,
    resumable=True,
)
UNIFRAC_ALPHA = option(
    "Alpha of generalized UniFrac, 0 to 1.",
    default=0.5,
    takes=UP_TO_ONE,
    only_with=("--unifrac-metric generalized",),
)
ROOT_AT_MIDPOINT = option(
    "Root an unrooted tree at the midpoint between its two most distant tips; otherwise a tree "
    "without a root is rejected.",
    default=False,
)


@dataclass(frozen=True)
class TableOptions:
    """The feature table and its sequences."""

    table: Path = required_option(
        "Feature table: BIOM, TSV, or QIIME 2 artifact (.qza); or the folder of `aam prepare`, "
        "which contains sequences and tree."
    )
    sequences: Path | None = basic_option(
        "Representative sequences (FASTA or .qza), for tables whose feature ids are hashes."
    )
    drop_empty_samples: bool = DROP_EMPTY_SAMPLES
    max_memory_gb: float | Literal["auto"] = MAX_MEMORY_GB


@dataclass(frozen=True)
class AsvVectorOptions:
    """The folder of ASV vectors that commands share."""

    asv_vectors_dir: Path | None = option(
        "Folder that keeps the vectors of encoded ASVs: commands with the same encoder read them "
        "from it instead of encoding the ASVs again.",
        role="output",
        resumable=True,
    )
    asv_vectors_dtype: Literal["float32", "float16"] = option(
        "Numbers in --asv-vectors-dir. float16 halves its size and rounds every vector to three "
        "digits, also those that are encoded now.",
        default="float32",
        needs=("--asv-vectors-dir",),
    )


@dataclass(frozen=True)
class PhylogenyOptions:
    """The source of UniFrac: a tree, or a distance matrix of another program."""

    tree: Path | None = basic_option(
        "Rooted phylogeny of the ASVs: Newick or .qza. UniFrac is computed from it batch by batch."
    )
    unifrac_matrix: Path | None = option(
        "Distance matrix instead of a tree: lsmat/TSV, .qza, ssu HDF5, CSV, or .npy (table order).",
        excludes=("--tree", "--unifrac-metric faith_pd"),
    )
    unifrac_metric: Metric = option(
        "Distance between samples to learn, or Faith PD ('unifrac' is the same as unweighted).",
        default="unweighted",
    )
    unifrac_alpha: float = UNIFRAC_ALPHA
    drop_missing_asvs: bool = DROP_MISSING_ASVS
    root_at_midpoint: bool = ROOT_AT_MIDPOINT


@dataclass(frozen=True)
class SampleOptions:
    """Rarefaction and selection of the ASVs of a sample."""

    rarefy_depth: int | Literal["auto"] = basic_option(
        "Reads drawn from each sample; shallower samples are left out of training. "
        "'auto': the depth that keeps 95 % of the samples, at most 5000. 0: all reads.",
        default="auto",
        takes=ZERO_OR_MORE,
    )
    rarefy_each_epoch: bool = option(
        "Rarefy the training samples again in each epoch (augmentation); validation samples once.",
        default=True,
    )
    token_limit: int = option(
        "Maximum number of ASVs of one sample that the model reads: the most abundant ones.",
        default=1024,
        takes=ONE_OR_MORE,
    )
    max_bp: int | Literal["auto"] = option(
        "Maximum sequence length in nucleotides; longer ones are truncated. 'auto': the longest of "
        "the table.",
        default="auto",
        takes=ONE_OR_MORE,
        only_for=EVERY_MEMBER,
    )


@dataclass(frozen=True)
class SplitOptions:
    """Division into training and validation samples."""

    test_size: float = basic_option(
        "Fraction of the samples that validate: with one fold they measure the result, with "
        "several the transformer stops by them, and the fold measures. 0: no validation samples, "
        "all samples outside the fold are trained on; for several --folds alone.",
        default=0.2,
    )
    group_column: str | None = basic_option(
        "Metadata column of groups, such as subjects: samples of one group stay together, either "
        "in training or in validation.",
        needs=("--metadata",),
    )
    stratify: bool = option(
        "Keep the proportions of the classes in all parts of the samples, as far as classes and "
        "groups are large enough; numbers, and several targets, have none.",
        default=True,
    )
    splits: Path | None = basic_option(
        "splits.tsv of another run, to use the same training and validation samples."
    )


@dataclass(frozen=True)
class TargetOptions:
    """The metadata column to predict."""

    metadata: Path = required_option("Sample metadata: TSV as QIIME 2 reads it.")
    metadata_column: str = required_option(
        "Metadata column to predict; `aam train` takes several as a,b."
    )
    classifier: bool = basic_option("Predict a category instead of a number.", default=False)
    ordinal: tuple[str, ...] = basic_option(
        "Predict an ordered category: all categories of the column, the lowest first, as a,b,c. "
        "The model learns their ranks 0, 1, 2, ..., and predicts a rank and a category.",
        default=(),
        excludes=("--classifier",),
        metavar="CATEGORY",
    )
    where: str | None = basic_option(
        "Use only samples whose metadata meet a condition: COLUMN=VALUE, also with !=, <, <=, >, "
        ">=, or 'COLUMN in (A, B)'; several joined by ' and '."
    )

    @property
    def type(self) -> TargetType:
        """Type of the target, which decides the metrics."""
        if self.classifier:
            return "classification"
        return "ordinal" if self.ordinal else "regression"

    @property
    def levels(self) -> tuple[str, ...]:
        """Categories of an ordinal target, the lowest first; empty for other targets."""
        return listed(self.ordinal)


def listed(values: Sequence[str]) -> tuple[str, ...]:
    """Return the words of an option, whether a blank or a comma separates them.

    Commas separate them in a single value, or at the end of each value before the last.

    >>> listed(["low,mid,high"]), listed(["low,", "high"]), listed(["low, at rest", "high"])
    (('low', 'mid', 'high'), ('low', 'high'), ('low, at rest', 'high'))
    """
    if values and all(value.rstrip().endswith(",") for value in values[:-1]):
        values = " ".join(values).split(",")
    return tuple(value.strip() for value in values)


@dataclass(frozen=True)
class CovariateOptions:
    """Metadata columns that the model reads besides the counts."""

    categorical_columns: tuple[str, ...] = basic_option(
        "Metadata columns that the model reads as categories, such as a site; several as a,b. "
        "The scores are then also those of the metadata alone and of the counts alone.",
        default=(),
        metavar="COLUMN",
    )
    numeric_columns: tuple[str, ...] = basic_option(
        "Metadata columns that the model reads as numbers, such as an age; several as a,b.",
        default=(),
        metavar="COLUMN",
    )
    categorical_embed_dim: int = option(
        "Length of the vector of a category, and of that of all numbers.",
        default=16,
        takes=WIDTHS,
        only_for="transformer",
        only_with=("--categorical-columns or --numeric-columns",),
    )
    categorical_fusion: Literal["concat", "add"] = option(
        "concat: join the vectors of the metadata with each ASV by a linear layer of both; add: by "
        "a sum.",
        default="concat",
        only_for="transformer",
        only_with=("--categorical-columns or --numeric-columns",),
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the model reads, as given."""
        return self.categorical_columns + self.numeric_columns
