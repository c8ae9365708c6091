"""Preview of a training: its samples, splits and likely leaks, before anything is fitted.

`aam train` prints it before the first fit, `aam inspect` without training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from aam.console import info, warn
from aam.contract.errors import first_few, shortened
from aam.contract.options.commands.train import Train
from aam.members.confounding import Association, associations, leading
from aam.members.scores import TITLES, Folds
from aam.pipeline.repeated_samples import RepeatedSamples, find_repeated_samples, same_values
from aam.training.labelled_study import LabelledStudy

_SHOWN_CLASSES = 8
_FEW_SAMPLES = 20


def preview(
    options: Train, study: LabelledStudy, folds: Folds
) -> tuple[list[Association], RepeatedSamples | None]:
    """Print the samples and splits of a training, and warn of what it may learn instead.

    Args:
        options: as `resolve` returns them.
        study: labels, splits and metadata.
        folds: folds of the study.

    Returns:
        The columns that predict the target by themselves, see `associations`, and the subjects that
        the split divides.
    """
    column = options.target.metadata_column
    # What makes all that follows too good comes first.
    if (repeated := find_repeated_samples(options, study, folds)) is not None:
        warn(repeated.sentence)
    if len(study.values) < _FEW_SAMPLES:
        warn(
            f"Only {len(study.values)} samples have '{column}': so few say little of new samples, "
            "whatever the score; a few dozen are the least from which to learn."
        )
    if options.device.device not in ("auto", "cpu") and not options.uses_network:
        warn(
            f"--device {options.device.device} has no effect: {' and '.join(options.members)} "
            "compute on the processor."
        )
    info(_target(study, folds, column))
    info(_splits(folds))
    ids, subjects = study.study.table.sample_ids, [folds.group_column]
    if repeated is not None:
        subjects = [repeated.column]
    if repeated is not None and folds.labels.type != "regression":
        # Another name of a subject tells the class, which its other samples have.
        columns = {
            name: study.metadata.values(name, ids).tolist() for name in study.metadata.columns
        }
        subjects = [name for name in columns if same_values(columns[name], repeated.values)]
    known = (column, *subjects, *(study.covariates.columns if study.covariates else ()))
    found = associations(study.metadata, known, study.study, folds)
    _show_associations(found, folds, column)
    return found, repeated


def _target(study: LabelledStudy, folds: Folds, column: str) -> str:
    """Describe the samples and their labels."""
    samples, asvs = len(study.values), len(study.study.table.feature_ids)
    start = f"Samples: {samples} with '{column}', of {asvs} ASVs"
    names = folds.labels.classes or folds.labels.levels
    if not names:
        low, middle, high = np.percentile(study.values, [0, 50, 100])
        return f"{start}; a number, {low:g} to {high:g}, median {middle:g}."
    counts = Counter(names[int(code)] for code in study.values)
    shown = [f"{shortened(name)} ({times})" for name, times in counts.most_common(_SHOWN_CLASSES)]
    shown += ["..."] if len(counts) > _SHOWN_CLASSES else []
    largest, times = counts.most_common(1)[0]
    rare = [name for name in counts if counts[name] < len(folds.splits)]
    if rare:
        warn(f"Classes of '{column}' with fewer samples than folds: {first_few(rare)}.")
    return (
        f"{start}; {len(counts)} classes: {', '.join(shown)}. Always guessing "
        f"'{shortened(largest)}' is right for {times / samples:.0%}."
    )


def _splits(folds: Folds) -> str:
    """Describe the splits."""
    sizes = sorted({len(split.held_out[1]) for split in folds.splits})
    held_out = " to ".join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))
    number = len(folds.splits)
    text = f"{number} folds with {held_out}" if number > 1 else f"one split with {held_out}"
    text = f"Split: {text} held-out samples"
    if folds.group_column is None:
        return f"{text}."
    groups = len(np.unique(folds.labels.groups))
    return f"{text}, none of whose {groups} groups of '{folds.group_column}' is divided."


def _show_associations(found: Sequence[Association], folds: Folds, column: str) -> None:
    """Print the columns that alone predict the target, and warn of other forms of it."""
    if not (shown := leading(found, folds)):
        return
    title = TITLES[shown[0].metric]
    for one in shown:
        if one.other_form:
            warn(
                f"'{one.column}' determines '{column}' nearly without exception ({title} "
                f"{one.value:.3f}): another form of it, or completely confounded with it."
            )
    if others := [f"'{one.column}' {one.value:.2f}" for one in shown if not one.other_form]:
        listed = ", ".join(others)
        info(f"Columns that alone predict '{column}' on the same splits ({title}): {listed}.")
