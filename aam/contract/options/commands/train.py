"""Options of `aam pretrain`, `aam train` and `aam search`: the commands that train models."""

from pathlib import Path
from typing import ClassVar, Literal

from aam.contract.dataclass import dataclass
from aam.contract.options import BELOW_ONE, ONE_OR_MORE, WEIGHTS, Range, basic_option, group, option
from aam.contract.options.groups import (
    GROUP_VALUES,
    MEMBERS,
    TRANSFORMER,
    AsvVectorOptions,
    CovariateOptions,
    DeviceOptions,
    GroupValues,
    LoopOptions,
    LossType,
    MaskOptions,
    MemberName,
    ModelOptions,
    PhylogenyOptions,
    RunOptions,
    SampleOptions,
    ScaleOptions,
    SpeedOptions,
    SplitOptions,
    TableOptions,
    TargetOptions,
    TrainLoopOptions,
    TransformName,
    default_members,
    networks,
)


@dataclass(frozen=True)
class Pretrain:
    """Pretrain an encoder without labels, on masked nucleotides and UniFrac distances.

    Examples:
        aam pretrain --table table.biom --tree tree.nwk --output-dir run
        aam pretrain --config pretrain.yaml --output-dir run2 --seed 2
    """

    input: TableOptions
    phylogeny: PhylogenyOptions
    run: RunOptions
    sample: SampleOptions
    model: ModelOptions
    task: MaskOptions
    split: SplitOptions
    loop: LoopOptions
    speed: SpeedOptions
    device: DeviceOptions
    scale: ScaleOptions
    metadata: Path | None = basic_option("Sample metadata, only for --group-column.")
    pretrained_encoder: Path | None = basic_option(
        "Checkpoint or run folder to start from, of this or another study; it sets the sizes of "
        "the encoder."
    )


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a model that predicts a metadata column, from scratch or from a pretrained encoder.

    Table, metadata and column need no option names; the run folder is named after the column.

    Examples:
        aam train table.biom metadata.tsv age
        aam train --table table.biom --metadata metadata.tsv \
        --metadata-column diagnosis --classifier --folds 5 --output-dir cv
    """

    leading: ClassVar = ("--table", "--metadata", "--metadata-column")
    # Reading the metadata decides whether the column has classes.
    undecided: ClassVar = ("--classifier",)

    input: TableOptions
    target: TargetOptions
    covariates: CovariateOptions
    phylogeny: PhylogenyOptions = group(only_for=TRANSFORMER)
    run: RunOptions
    sample: SampleOptions = group(only_for=TRANSFORMER)
    model: ModelOptions = group(only_for=TRANSFORMER)
    task: MaskOptions = group(only_for=TRANSFORMER)
    split: SplitOptions
    loop: TrainLoopOptions = group(only_for=TRANSFORMER)
    speed: SpeedOptions = group(only_for=TRANSFORMER)
    device: DeviceOptions
    scale: ScaleOptions
    vectors: AsvVectorOptions = group(only_for=TRANSFORMER)
    pretrained_encoder: Path | None = basic_option(
        "Checkpoint or run folder of `aam pretrain` to start from; it sets the sizes of the "
        "encoder.",
        needs=("--members transformer",),
        only_for=TRANSFORMER,
    )
    freeze_base: bool = basic_option(
        "Freeze the pretrained encoder; every ASV is encoded once.",
        default=False,
        needs=("--pretrained-encoder", "--members transformer"),
        only_for=TRANSFORMER,
    )
    members: tuple[MemberName, ...] = basic_option(
        "Models to train and combine. {choices}. Default: kernel and forest; with "
        "--pretrained-encoder the transformer.",
        default=(),
        resumable=True,
    )
    folds: int | Literal["auto"] = basic_option(
        "Folds of the cross-validation; 1: a single split. 'auto': 5, or the number of groups if "
        "smaller; 1 with the transformer.",
        default="auto",
    )
    study_column: str | None = basic_option(
        "Metadata column of studies: each study is left out of training in turn and scored alone. "
        "--group-column names subjects within studies.",
        excludes=("--folds", "--repeats"),
    )
    group_values: GroupValues = GROUP_VALUES
    repeats: int | Literal["auto"] = option(
        "Repeats of the cross-validation with other --folds; scores are means over repeats. "
        "'auto': 5 with fewer than 300 samples or 100 groups; else, and with the transformer, 1.",
        default="auto",
        takes=Range("1 to 1000", 1, 1000),
    )
    taxonomy: Path | None = basic_option(
        "Taxonomy of the ASVs, for names in importance.tsv and the report: TSV of QIIME 2 (Feature "
        "ID, Taxon), .qza, or the folder of `aam prepare`.",
        resumable=True,
    )
    equal_depth: bool = option(
        "Also score kernel and forest on samples rarefied to equal depth. Always done if the "
        "sequencing depth alone predicts the target.",
        default=False,
    )
    sensitivity: float | None = option(
        "Sensitivity that sets the threshold of the positive class: the highest threshold with "
        "this sensitivity in left-out predictions of the training samples. Default: the threshold "
        "with the largest sensitivity + specificity (Youden's J).",
        takes=Range("more than 0 and at most 1", 0, 1, open_below=True),
        only_with=("--classifier",),
    )
    adjust_for: tuple[str, ...] = option(
        "Metadata columns to adjust the associations of ASVs for, such as age,sex; also scores how "
        "much the counts add to these columns.",
        default=(),
        metavar="COLUMN",
    )
    profile_features: int = option(
        "Features of the community profile, an input beside the encoder; 0: no profile.",
        default=1024,
        takes=Range("0 to 65536", 0, 65_536),
        only_for=TRANSFORMER,
    )
    profile_dropout: float = option(
        "Dropout of the layers that read the profile.",
        default=0.7,
        takes=BELOW_ONE,
        only_for=TRANSFORMER,
    )
    target_penalty: float = option(
        "Weight of the target's loss.", default=1.0, takes=WEIGHTS, only_for=TRANSFORMER
    )
    target_transform: TransformName = option(
        "Transform of a numeric target, fitted on training samples and undone in all results.",
        default="zscore",
    )
    loss_config: Path | None = option(
        "YAML with options of single targets: COLUMN, then indented lines such as `loss-type: "
        "quantile` or `target-penalty: 2`. They override the command line."
    )
    output_min: float | None = option(
        "Lowest predicted value of a number, in its unit; lower predictions are raised to it.",
        excludes=("--classifier", "--ordinal"),
    )
    output_max: float | None = option(
        "Highest predicted value of a number, in its unit.", excludes=("--classifier", "--ordinal")
    )
    loss_type: LossType = option(
        "Loss of a numeric target, on the transformed scale.",
        default="huber",
        only_for=TRANSFORMER,
    )
    quantiles: tuple[float, ...] = option(
        "Quantiles to predict.",
        default=(0.1, 0.5, 0.9),
        takes=Range("more than 0 and less than 1", 0, 1, open_below=True, open_above=True),
        only_for=TRANSFORMER,
        only_with=("--loss-type quantile",),
    )
    over_penalty: float = option(
        "Weight of predictions above the true value.",
        default=1.0,
        takes=WEIGHTS,
        only_for=TRANSFORMER,
        only_with=("--loss-type asymmetric",),
    )
    under_penalty: float = option(
        "Weight of predictions below the true value.",
        default=1.0,
        takes=WEIGHTS,
        only_for=TRANSFORMER,
        only_with=("--loss-type asymmetric",),
    )
    class_weights: str = option(
        "Class weights in the loss. none: equal; balanced: inverse to frequency; or "
        "CLASS=WEIGHT,CLASS=WEIGHT, 1 for other classes.",
        default="none",
        metavar="none|balanced|CLASS=WEIGHT,...",
        only_for=TRANSFORMER,
        only_with=("--classifier",),
    )
    best_metric: Literal["val_loss", "r2", "mae", "accuracy", "f1"] = option(
        "Validation metric that selects the best epoch (best.ckpt).",
        default="val_loss",
        only_for=TRANSFORMER,
        needs={"accuracy": "--classifier", "f1": "--classifier"},
        excludes={"r2": "--classifier", "mae": "--classifier"},
    )

    @property
    def chosen_members(self) -> tuple[str, ...]:
        """Models to train, from --members or by default."""
        if self.members:
            return self.members
        if self.pretrained_encoder is not None:
            return networks(tuple(MEMBERS))
        return default_members()

    @property
    def uses_network(self) -> bool:
        """Whether it computes with the network."""
        return bool(networks(self.chosen_members))


@dataclass(frozen=True, kw_only=True)
class Search(Train):
    """Search hyper-parameters of `aam train` by nested cross-validation.

    In each of the --folds, --inner-folds of the training samples score the trials, and the test
    samples score only the best trial. Several processes share the trials of a folder.

    Examples:
        aam search --table table.biom --metadata metadata.tsv \
        --metadata-column age --group-column infant --output-dir search
        aam search --table table.biom --metadata metadata.tsv \
        --metadata-column age --members transformer --output-dir search \
        --vary lr=0.0001..0.01 embedding-dim=32,64,128 --trials 40
    """

    without: ClassVar = (
        "splits", "overwrite", "loss_config", "taxonomy", "distributed", "fsdp", "data_parallel",
        "equal_depth", "repeats", "sensitivity", "adjust_for",
    )  # fmt: skip

    vary: tuple[str, ...] = basic_option(
        "Options of `aam train` to vary: NAME=LOW..HIGH, or NAME=A,B,C with + between values of "
        "one option. Default: the models and their combinations; for a transformer lr, dropout and "
        "profile-dropout.",
        default=(),
        metavar="NAME=VALUES",
    )
    trials: int = basic_option("Trials per fold and on all samples.", default=20, takes=ONE_OR_MORE)
    inner_folds: int = basic_option(
        "Folds of the training samples that score a trial; a trial below the median stops early. "
        "With --study-column each study is a fold, if three remain.",
        default=3,
        takes=Range("2 or more", 2),
    )
    sampler: Literal["tpe", "random"] = basic_option(
        "Optuna's sampler: tree-structured Parzen estimator, or random.", default="tpe"
    )
    storage: str | None = option(
        "Storage of the trials: URL of a database for Optuna, or 'journal', a file for several "
        "nodes. Default: SQLite database search.db in --output-dir."
    )
    trials_only: bool = basic_option(
        "Only run trials; the process without this option evaluates them.", default=False
    )
