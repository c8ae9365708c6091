"""Preview of a training: samples, splits and likely leaks, printed before the first fit.

`aam inspect` prints it without a training (`inspect_target`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from aam.console import info, warn
from aam.contract.errors import first_few, shortened
from aam.contract.options import build, specs
from aam.contract.options.commands.studies import Inspect
from aam.contract.options.commands.train import Train
from aam.data.joined_metadata import STUDY
from aam.data.metadata import Metadata
from aam.data.study import Study
from aam.data.study_inspection import Inspection, MetadataColumn
from aam.data.targets import has_classes
from aam.evaluation.confounding import Association, associations, leading
from aam.evaluation.folds import Folds
from aam.evaluation.intervals import TITLES
from aam.evaluation.splits import same_partition, several_studies
from aam.members.option_checks import resolve
from aam.pipeline.labelled_study import label_study
from aam.pipeline.plan import TrainingPlan, plan
from aam.pipeline.repeated_samples import RepeatedSamples, find_repeated_samples

_SHOWN_CLASSES = 8
_FEW_SAMPLES = 20


class Leaks(NamedTuple):
    """Leaks: what a model may learn instead of the target."""

    associations: list[Association]  # columns that predict the target by themselves
    repeated: RepeatedSamples | None  # subjects that the split divides
    divided_studies: str | None  # column of studies that it divides


def preview(plan: TrainingPlan) -> Leaks:
    """Print the samples and splits of a training, and warn of what it may learn instead."""
    study, folds, column = plan.study, plan.folds, plan.study.column
    samples = len(study.values)
    # First the leak that makes all scores too high.
    repeated = find_repeated_samples(study.study.table, study.metadata, folds, column)
    if repeated is not None:
        warn(repeated.sentence, is_leak=True)
    if samples < _FEW_SAMPLES:
        warn(
            f"Only {samples} samples have '{column}': whatever the score, it says little about new "
            "samples. Use a few dozen samples at least."
        )
    if plan.device not in ("auto", "cpu") and not plan.uses_network:
        warn(f"--device {plan.device} has no effect: {' and '.join(plan.members)} run on the CPU.")
    start = f"Data: {samples} samples with '{column}', {len(study.study.table.feature_ids)} ASVs"
    if names := folds.labels.classes or folds.labels.levels:
        counts = Counter(names[int(code)] for code in study.values)
        class_sizes = [f"{shortened(name)} {n}" for name, n in counts.most_common(_SHOWN_CLASSES)]
        class_sizes += ["..."] if len(counts) > _SHOWN_CLASSES else []
        _warn_of_rare_classes(column, names, folds)
        positive = f"; positive class {shortened(names[1])}" * (len(folds.labels.classes) == 2)
        info(f"{start}; {len(counts)} classes: {', '.join(class_sizes)}{positive}.")
    else:
        low, middle, high = np.percentile(study.values, [0, 50, 100])
        info(f"{start}; a number from {low:g} to {high:g}, median {middle:g}.")
    info(_design(plan))
    ids, subjects = study.study.table.sample_ids, [folds.group_column]
    divided_studies = None
    if number := several_studies(study.metadata, ids, column, (folds.study_column, *subjects)):
        divided_studies = STUDY
        warn(
            f"The samples come from {number} studies, and the folds mix them: the score holds for "
            f"new samples of these studies only. Add --study-column {STUDY} to predict each study "
            "by models of the other studies.",
            is_leak=True,
        )
    if repeated is not None:
        subjects = [repeated.column]
        if folds.labels.type != "regression":
            # Another name of the subject would predict the class of the subject's other samples.
            subjects = [
                name
                for name in study.metadata.columns
                if same_partition(study.metadata.values(name, ids).tolist(), repeated.values)
            ]
    skipped = (column, *subjects, *(study.covariates.columns if study.covariates else ()))
    columns = associations(study.metadata, skipped, study.study, folds)
    if forms := [association for association in leading(columns, folds) if association.other_form]:
        names_of_forms = " and ".join(f"'{form.column}'" for form in forms)
        values = ", ".join(dict.fromkeys(f"{form.value:.3f}" for form in forms))
        is_plural, title = len(forms) > 1, TITLES[forms[0].metric]
        warn(
            f"{names_of_forms} determine{'' if is_plural else 's'} '{column}' almost exactly "
            f"({title} {values}): {'other forms' if is_plural else 'another form'} "
            "of it, or completely confounded with it.",
            is_leak=True,
        )
    return Leaks(columns, repeated, divided_studies)


def _design(plan: TrainingPlan) -> str:
    """Describe the cross-validation, the groups that it keeps together, and the models."""
    folds, covariates = plan.folds, plan.study.covariates
    sizes = [len(split.held_out[1]) for split in folds.splits]
    held_out = " to ".join(map(str, dict.fromkeys((min(sizes), max(sizes)))))
    number = len(folds.first.splits)
    if folds.study_column is not None:
        text = f"leave one study out ('{folds.study_column}', {number} studies)"
    elif number > 1:
        text = f"{number}-fold cross-validation"
        text += f" repeated {folds.repeats} times" * (folds.repeats > 1)
    else:
        text = f"one split into training and {folds.part} samples"
    text = f"Design: {text}, {held_out} samples held out"
    if folds.group_column is not None:
        groups = len(np.unique(folds.labels.groups))
        text += f"; each '{folds.group_column}' ({groups}) entirely in training or in {folds.part}"
    text += f"; models: {', '.join(plan.members)}"
    if covariates is not None:
        text += f", with metadata ({', '.join(covariates.columns)})"
    return f"{text}."


def _warn_of_rare_classes(column: str, names: Sequence[str], folds: Folds) -> None:
    """Warn about classes with fewer groups than folds, and classes with a single group."""
    unit = "sample" if folds.group_column is None else "group"
    codes_N = folds.labels.values.astype(np.int64)
    pairs = np.unique(np.stack([codes_N, folds.labels.groups]), axis=1)
    groups_of = Counter(names[code] for code in pairs[0].tolist())
    samples_of = Counter(names[code] for code in codes_N.tolist())
    # `read_labels` already warned of classes with one sample.
    if single := [name for name in groups_of if groups_of[name] == 1 < samples_of[name]]:
        size = f"{sum(samples_of[name] for name in single)} samples"
        warn(
            f"Classes of '{column}' in a single group: {first_few(single)}, {size}. A model that "
            f"learns such a class cannot be tested on it: merge it, or leave it out (--where)."
        )
    if rare := [name for name in groups_of if 1 < groups_of[name] < len(folds.first.splits)]:
        warn(f"Classes of '{column}' with fewer {unit}s than folds: {first_few(rare)}.")


def inspect_target(
    inspection: Inspection, options: Inspect
) -> tuple[MetadataColumn, list[Association]] | None:
    """Add the labels of a column, and columns that predict them, as `aam train` prints them.

    None without a column, or if a training would refuse it.
    """
    study, metadata, column = inspection.study, inspection.metadata, options.metadata_column
    if metadata is None or column is None:
        return None
    inspection.read("target", lambda: metadata.require(column))
    if column not in metadata.columns or study is None:
        return None
    if set(study.table.sample_ids).isdisjoint(metadata.ids):
        return None
    classes = has_classes(metadata, column)
    classifier = options.classifier or (classes and not options.ordinal)
    if classifier and not options.classifier:
        form = "has the type categorical" if column in metadata.categorical else "has words"
        inspection.fact("target", f"'{column}' {form}: aam train predicts its classes")
    # The options of a training with the same files and column. They need a folder, to which a
    # preview writes nothing.
    values = vars(options) | {"classifier": classifier, "output_dir": Path(os.devnull)}
    flags = {spec.flag: values[spec.field] for spec in specs(Train) if spec.field in values}
    return inspection.read("target", lambda: _preview(build(Train, flags), study, metadata))


def _preview(
    options: Train, study: Study, metadata: Metadata
) -> tuple[MetadataColumn, list[Association]]:
    options = resolve(options)
    labelled = label_study(options, study, metadata)
    planned = plan(options, labelled)
    columns, *_ = preview(planned)
    target, labels = labelled.column, planned.folds.labels
    # `aam train` compares these columns with its model.
    if leaks := [leak for leak in leading(columns, planned.folds) if not leak.other_form]:
        leak_texts = ", ".join(f"'{leak.column}' {leak.value:.2f}" for leak in leaks)
        title = TITLES[leaks[0].metric]
        info(f"Columns that alone predict '{target}' on the same splits ({title}): {leak_texts}.")
    names = labels.classes or labels.levels
    texts = [names[int(value)] if names else repr(float(value)) for value in labelled.values]
    return MetadataColumn(target, "categories" if names else "numbers", texts, ""), columns
