"""Options of `aam search`."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from aam.contract.options import ONE_OR_MORE, TWO_OR_MORE, basic_option, option
from aam.contract.options.commands.train import Train


@dataclass(frozen=True, kw_only=True)
class Search(Train):
    """Search hyper-parameters of `aam train` by nested cross-validation.

    In each of the --folds, trials are scored on --inner-folds of its training samples, and the best
    one on the test samples, which chose nothing. Several processes share the trials of a folder.

    Examples:
        aam search --table table.biom --metadata metadata.tsv \
        --metadata-column age --group-column infant --output-dir search
        aam search --table table.biom --metadata metadata.tsv \
        --metadata-column age --members transformer --output-dir search \
        --vary lr=0.0001..0.01 embedding-dim=32,64,128 --trials 40
    """

    without: ClassVar = (
        "splits", "overwrite", "loss_config", "taxonomy", "distributed", "fsdp", "data_parallel",
    )  # fmt: skip

    vary: tuple[str, ...] = basic_option(
        "Options of `aam train` to vary: NAME=LOW..HIGH for numbers, or NAME=A,B,C; several values "
        "of one option are joined by +. Without it: the members, or of a transformer alone lr, "
        "dropout and profile-dropout.",
        default=(),
        metavar="NAME=VALUES",
    )
    trials: int = basic_option(
        "Trials in each fold, and on all samples.", default=20, takes=ONE_OR_MORE
    )
    inner_folds: int = basic_option(
        "Folds of the training samples that score a trial; worse trials than the median of the "
        "others end after any of them.",
        default=3,
        takes=TWO_OR_MORE,
    )
    sampler: Literal["tpe", "random"] = basic_option(
        "Optuna's sampler: tree-structured Parzen estimator, or random.", default="tpe"
    )
    storage: str | None = option(
        "Storage of the trials: URL of a database for Optuna, or 'journal': search.journal in "
        "--output-dir, for processes on several nodes that share a file system. By default "
        "search.db, an SQLite database, in --output-dir."
    )
    trials_only: bool = basic_option(
        "Run trials, and leave the evaluation to the process without this option.", default=False
    )
