"""Options of `aam prepare` and `aam simulate`, which write studies."""

from dataclasses import dataclass
from pathlib import Path

from aam.contract.options.field import option
from aam.contract.options.study import DROP_MISSING_HELP, MIDPOINT_HELP, TableOptions


@dataclass(frozen=True)
class Prepare:
    """Write a study as a folder that every command memory-maps as its --table.

    The folder replaces table, sequences and tree, and --metadata if that is given here.

    Examples:
        aam prepare --table table.biom --tree tree.nwk --output study.aam
        aam prepare --table study.aam --verify
    """

    input: TableOptions
    tree: Path | None = option(
        "Rooted phylogeny: Newick or .qza.", default=None, role="input", basic=True
    )
    metadata: Path | None = option(
        "Sample metadata to store with the samples: TSV as QIIME 2 reads it.",
        default=None,
        role="input",
        basic=True,
    )
    output: Path | None = option(
        "Folder to write, such as study.aam.", default=None, role="output", basic=True
    )
    drop_missing_asvs: bool = option(DROP_MISSING_HELP, default=False)
    root_at_midpoint: bool = option(MIDPOINT_HELP, default=False)
    verify: bool = option(
        "Write nothing; compare the files of the folder given as --table with their checksums.",
        default=False,
        basic=True,
    )
    overwrite: bool = option("Replace an existing output.", default=False, basic=True)


@dataclass(frozen=True)
class Merge:
    """Join the shards that `aam predict --shard` or `aam embed --shard` wrote.

    Examples:
        aam merge --output predictions.tsv
        aam merge --output embedding/embeddings.tsv --overwrite
    """

    output: Path = option(
        "Table to write (TSV); its shards are in the folder OUTPUT.shards.", role="output"
    )
    overwrite: bool = option("Replace an existing output file.", default=False, basic=True)


@dataclass(frozen=True)
class Simulate:
    """Simulate a study with known effects: tree, sequences, counts and metadata.

    Examples:
        aam simulate --output-dir study
        aam simulate --output-dir small --samples 60 --asvs 300 --seed 1
    """

    output_dir: Path = option("Folder for table.biom, tree.nwk and metadata.tsv.", role="output")
    samples: int = option("Number of samples.", default=200, basic=True)
    asvs: int = option("Number of ASVs, the tips of the tree.", default=2000, basic=True)
    length: int = option("Nucleotides of each sequence.", default=150)
    richness: int = option("Approximate number of ASVs in a sample.", default=185)
    depth: int = option("Mean number of reads in a sample.", default=10_000)
    sites: int = option("Number of sites (categories).", default=3)
    subjects: int = option("Number of subjects.", default=40)
    planted: int = option(
        "ASVs whose log abundances sum to the column 'response'; 0: no such column.", default=0
    )
    seed: int = option("Seed; the same seed gives the same study.", default=42, basic=True)
    overwrite: bool = option("Replace an existing study in the folder.", default=False, basic=True)
