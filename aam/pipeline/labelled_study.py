"""Labelled study of a training run: samples, labels and splits; the target fitted to them."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from aam.arrays import F64, Rows
from aam.console import info, warn
from aam.contract.errors import DataError, UsageError, first_few, nearest
from aam.contract.options.commands.train import Search, Train
from aam.contract.options.conditions import require_consistent
from aam.contract.options.groups import TargetOptions, TransformName
from aam.data.covariates import Covariates
from aam.data.formats.tables import require_reads
from aam.data.identity import Abundances
from aam.data.metadata import Metadata, as_numbers, normalized
from aam.data.study import Study, load_study, make_study
from aam.data.table import FeatureTable, auto_depth
from aam.data.targets import (
    LabelledSamples,
    OutputRange,
    TargetTransform,
    has_classes,
    label_samples,
    likely_positive,
    spelling,
)
from aam.data.taxonomy import read_taxonomy, require_common
from aam.evaluation.confounding import read_adjustment
from aam.evaluation.splits import (
    MIN_STUDIES,
    PARTS,
    Split,
    check_covariates,
    make_splits,
    read_studies,
    split_samples,
    study_splits,
    without_held_out_subjects,
)
from aam.evaluation.subjects import Subjects, find_subjects

AnyTrain = TypeVar("AnyTrain", bound=Train)


def choose_depth(study: Study, depth: int | Literal["auto"]) -> int:
    """Return the rarefaction depth; 0 takes all reads. A table without reads is refused."""
    require_reads(study.table.quantity, "--table")
    if depth != "auto":
        return depth
    depth = auto_depth(study.reads)
    info(f"Rarefaction depth: {depth} reads (--rarefy-depth auto).")
    return depth


def deep_enough(study: Study, depth: int, several_members: bool = False) -> Rows:
    """Return the rows of the samples that reach the depth; print the ids of the others."""
    rows = np.flatnonzero(study.reads >= depth)
    if len(rows) < 2:
        raise DataError(
            "Fewer than two samples reach the rarefaction depth",
            f"{len(rows)} of {len(study.reads)} have {depth} reads, the deepest {max(study.reads)}",
            "choose a lower --rarefy-depth",
        )
    if below := study.shallow(depth):
        of_members = ", of all members" if several_members else ""
        info(f"Samples with fewer than {depth} reads are left out{of_members}: {first_few(below)}.")
    return rows


@dataclass(frozen=True)
class LabelledStudy:
    """Study whose samples all have a label and enough reads."""

    study: Study
    column: str  # metadata column that is predicted
    values: F64  # [N]: numbers, ranks of `levels`, or codes of `classes`
    classes: tuple[str, ...]  # empty for numbers and ranks
    levels: tuple[str, ...]  # ordered categories, the lowest first; else empty
    strata: Rows | None  # [N]: codes or ranks by which splits are stratified; None for none
    splits: tuple[Split, ...]
    subjects: Subjects
    studies: list[str] | None  # study of each sample; None for a single study
    depth: int  # rarefaction depth; 0 without a network
    metadata: Metadata
    covariates: Covariates | None = None  # columns that the model reads
    adjustment: Covariates | None = None  # columns of --adjust-for

    @property
    def facts(self) -> dict[str, Any]:
        """Sizes of the first split and of the study, for the run record."""
        lengths = (self.study.tokens_FL > 0).sum(axis=1)
        return {
            "lengths": [int(lengths.min()), int(lengths.max())],
            "samples": {name: len(getattr(self.splits[0], name)) for name in PARTS},
            "asvs": len(self.study.table.feature_ids),
            "rarefy_depth": self.depth,
            "classes": self.classes,
        }

    def fit_labels(
        self, split: Split, transform: TransformName, weights: str | None
    ) -> tuple[tuple[float, ...], TargetTransform | None]:
        """Fit class weights, or the transform of a number, to the training samples of a split.

        `weights` is --class-weights; None without a network, to whose loss they belong.
        """
        # Kernel and forest are fitted to the validation samples too.
        values = self.values[split.training_rows if weights is None else split.train]
        if not self.classes:
            return (), TargetTransform.fit(transform, values)
        # Of the training samples alone: weights and transforms that saw held-out labels would leak
        # them.
        number = np.bincount(values.astype(int), minlength=len(self.classes))
        present = number > 0
        # Kernel and forest give a class without training samples the probability 0; the network
        # would begin with the logarithm of 0.
        if present.sum() < 2 or (weights is not None and not present.all()):
            raise DataError(
                "A class has no training sample",
                first_few([self.classes[i] for i in np.flatnonzero(~present)]),
                "merge the class with another, or leave its samples out (--where)"
                + (", or leave out the member transformer" if present.sum() > 1 else ""),
            )
        return () if weights is None else class_weights(weights, self.classes, number), None

    def inner_splits(self, options: Search, rows: Rows) -> list[Split]:
        """Split samples into inner folds: by study if enough studies are left, else by group.

        As in a training, the choice must serve a new study.
        """
        studies = None if self.studies is None else [self.studies[row] for row in rows]
        groups, strata = self.subjects.groups, self.strata
        split = partial(make_splits, len(rows), folds=options.inner_folds)
        if studies is not None and len(set(studies)) >= MIN_STUDIES:
            split = partial(study_splits, studies, fitted=np.arange(len(rows)))
        splits = split(
            test_size=options.split.test_size,
            seed=options.loop.seed,
            groups=None if groups is None else [groups[row] for row in rows],
            classes=None if strata is None else strata[rows],
        )
        return [
            Split(rows[split.train], rows[split.validation], rows[split.test])
            for split in without_held_out_subjects(splits, self.subjects.units_N[rows])
        ]


def classes_of_words(options: AnyTrain, metadata: Metadata) -> AnyTrain:
    """Predict the classes of a column of words, unless an option states the type of the target."""
    target = options.target
    column = target.metadata_column
    if target.type != "regression" or not has_classes(metadata, column):
        return options
    options = replace(options, target=replace(target, classifier=True))
    require_consistent(options)
    return options


def read_study(
    options: Train,
    max_bp: int | None,
    table: FeatureTable | None = None,
    sequences: Path | Mapping[str, str] | None = None,
) -> Study:
    """Read the study, or complete a table in memory.

    A phylogeny is read for the transformer alone: no other member may lose an ASV to it.
    """
    # Read before the training, although used after it: a wrong file must not cost a run.
    taxa = None if options.taxonomy is None else read_taxonomy(options.taxonomy)
    phylogeny = options.phylogeny if options.uses_network else None
    if table is None:
        study = load_study(options.input, phylogeny, max_bp)
    else:
        study = make_study(table, sequences, options.input, phylogeny, max_bp)
    if taxa is not None:
        require_common(taxa, study.table.feature_ids)
    return study


def label_study(
    options: Train, study: Study, metadata: Metadata, splits: Path | None = None
) -> LabelledStudy:
    """Label the samples of a study, and split them, by the file `splits` if it is given.

    Only the transformer rarefies and reads a phylogeny. Without it no sample is left out for its
    depth and no ASV for the tree; with it all members use the same samples.
    """
    column, levels = options.target.metadata_column, options.target.levels
    # Sorted before folds are drawn: the order of the rows of a table changes no result.
    study = study.sorted_by_id()
    labels = read_labels(options.target, metadata, study.table.sample_ids)
    study = study.take_samples(labels.rows)
    depth, values = 0, labels.values
    if options.uses_network:
        depth = choose_depth(study, options.sample.rarefy_depth)
        deep = deep_enough(study, depth, len(options.members) > 1)
        study, values = study.take_samples(deep), values[deep]
    # Again after `read_labels`: the shallow samples may have been a whole class.
    if len(np.unique(values)) < 2:
        raise DataError(
            f"The column '{column}' has one value in the samples left",
            f"{len(values)} samples",
            "choose a lower --rarefy-depth or another column",
        )
    if not labels.classes:
        OutputRange.of(levels, options.output_min, options.output_max).check(values, column)
    ids = study.table.sample_ids
    codes = values.astype(np.int64) if labels.classes or levels else None
    splits_of_samples, subjects, studies = split_study(options, study, metadata, codes, splits)
    used = {
        "--metadata-column": column,
        "--group-column": options.split.group_column,
        "--study-column": options.study_column,
    }
    covariates = Covariates.read(options.covariates, metadata, ids, used)
    if covariates is not None:
        check_covariates(covariates, splits_of_samples)
        covariates.warn_of_constant_target(values, column)
    if column in metadata.listed(options.adjust_for):
        remedy = "leave it out of --adjust-for"
        raise UsageError("Nothing is left of a target that is adjusted for", f"'{column}'", remedy)
    adjustment = read_adjustment(options.adjust_for, metadata, ids)
    return LabelledStudy(
        study,
        column,
        values,
        labels.classes,
        levels,
        codes if options.split.stratify else None,
        splits_of_samples,
        subjects,
        studies,
        depth,
        metadata,
        covariates,
        adjustment,
    )


def split_study(
    options: Train,
    study: Study,
    metadata: Metadata,
    codes: Rows | None = None,
    splits: Path | None = None,
) -> tuple[tuple[Split, ...], Subjects, list[str] | None]:
    """Split samples with class codes or ranks; also return their subjects and studies."""
    ids, split = study.table.sample_ids, options.split
    studies = read_studies(options.study_column, metadata, ids)
    subjects = find_subjects(
        split.group_column, options.group_values, metadata, ids, Abundances.of(study), studies
    )
    split = replace(split, splits=splits or split.splits)
    made, subjects = split_samples(
        split, options.folds, options.loop.seed, ids, subjects, codes, options.repeats, studies
    )
    return made, subjects, studies


def class_weights(text: str, classes: tuple[str, ...], samples_C: Rows) -> tuple[float, ...]:
    """Return the weight of each class in the loss; nothing for equal weights.

    >>> class_weights("balanced", ("sick", "well"), np.array([10, 30]))
    (2.0, 0.6666666666666666)
    """
    if text == "none":
        return ()
    if text == "balanced":
        # Inversely proportional to the frequency, with a mean of 1 over the samples, as the
        # `balanced` class weights of scikit-learn.
        return tuple((samples_C.sum() / (len(classes) * samples_C)).tolist())
    weights: dict[str, float] = {}
    for pair in text.split(","):
        name, _, number = (word.strip() for word in pair.rpartition("="))
        evidence = f"--class-weights '{text}', the classes are {', '.join(classes)}"
        if name in weights:
            raise UsageError(f"'{name}' is given twice", evidence, "give each class once")
        if name not in classes:
            remedy = nearest(name, classes, "write CLASS=WEIGHT")
            raise UsageError(f"'{name or pair}' is not a class", evidence, remedy)
        try:
            weights[name] = float(number)
        except ValueError:
            weights[name] = math.nan
        if not 0 < weights[name] < math.inf:
            cause = f"The weight of '{name}' is not a number above 0"
            raise UsageError(cause, evidence, "write CLASS=WEIGHT")
    return tuple(weights.get(name, 1.0) for name in classes)


_ORDERS = [
    {name: float(rank) for rank, names in enumerate(order) for name in names.split()}
    for order in (
        ["verylow", "low", "medium moderate middle mid intermediate normal average", "high",
         "veryhigh"],
        ["no absent", "mild", "moderate", "severe"],
        ["never", "rarely", "occasionally sometimes", "often regularly frequently", "daily always"],
        ["small", "medium", "large"],
        ["i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x"],
    )
]  # fmt: skip
"""Known orders of classes: name in lower case without blanks -> rank."""
_INTERVAL = re.compile(r"([<≤]=?)?([>≥]=?)?(\d+(?:\.\d+)?)(?:(?:-|\u2013|to)\d+(?:\.\d+)?|(\+))?")
_OF_NUMERAL = re.compile(r"stage|grade|class|level|degree")


def read_labels(
    target: TargetOptions, metadata: Metadata, sample_ids: Sequence[str]
) -> LabelledSamples:
    """Read the label of each sample; leave out samples without one or outside --where."""
    selected = metadata.rows_where(target.where, sample_ids)
    ids, column = [sample_ids[row] for row in selected], target.metadata_column
    labelled = label_samples(metadata, column, ids, target.classifier, target.levels)
    _hint_at_order(column, labelled.classes)
    if target.positive_class is not None and target.classifier:
        labelled = _positive_last(labelled, column, normalized(target.positive_class))
    elif len(labelled.classes) == 2:
        labelled = _positive_last(labelled, column, likely_positive(labelled.classes))
    if target.type == "regression" and len(distinct := np.unique(labelled.values)) == 2:
        warn(
            f"'{column}' has two values only, {distinct[0]:g} and {distinct[1]:g}, and is "
            "predicted as a number: add --classifier if they are classes."
        )
    return LabelledSamples(selected[labelled.rows], labelled.values, labelled.classes)


def _positive_last(labelled: LabelledSamples, column: str, positive: str) -> LabelledSamples:
    if len(labelled.classes) != 2 or positive not in labelled.classes:
        raise UsageError(
            f"'{positive}' is not one of two classes in '{column}'",
            f"--positive-class {positive}, the column has {', '.join(labelled.classes)}",
            "name one of two classes, or leave out --positive-class",
        )
    if labelled.classes[1] == positive:
        return labelled
    return LabelledSamples(labelled.rows, 1 - labelled.values, labelled.classes[::-1])


def _start(interval: str) -> float | None:
    """Parse the lower end of an interval such as <20, 20-40 or >40; None for other names."""
    match = _INTERVAL.fullmatch(interval)
    if match is None:
        return None
    below, above, number, plus = match.groups()
    return float(number) + (0.5 if above or plus else 0) - (0.5 if below else 0)


def _hint_at_order(column: str, classes: Sequence[str]) -> None:
    """Suggest --ordinal for class names with a known order: low, high; I, II; <20, 20-40."""
    names = {name: _OF_NUMERAL.sub("", spelling(name).replace(" ", "")) for name in classes}
    if len(names) < 3 or not np.isnan(as_numbers(classes)).any():
        return
    rank_of: list[Callable[[str], float | None]] = [*(order.get for order in _ORDERS), _start]
    for rank in rank_of:
        ranks = [(value, name) for name in classes if (value := rank(names[name])) is not None]
        if len(ranks) == len(names):
            order = shlex.quote(",".join(name for _, name in sorted(ranks)))
            info(f"If the classes of '{column}' have an order, add --ordinal {order}.")
            return
