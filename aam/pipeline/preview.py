"""Preview of a training: its samples, splits and likely leaks, before anything is fitted.

`aam train` prints it before the first fit, `aam inspect` without training.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from aam.console import info, warn
from aam.contract.errors import first_few, shortened
from aam.contract.options.commands.train import Train
from aam.data.metadata import Metadata
from aam.members.confounding import Association, associations, leading
from aam.members.folds import Folds
from aam.members.scores import TITLES
from aam.training.labelled_study import LabelledStudy

_SUBJECTS = re.compile(
    r"subject|patient|individual|participant|infant|animal|donor|host.?(id|name)$", re.IGNORECASE
)
"""Names of columns that identify the subject of a sample."""

_ATTRIBUTES = re.compile(
    r"(^|[^a-z])(age|sex|gender|bmi|weight|height|diet|type|status|disease|diagnosis|group|site)"
    r"|(taxid|common.name|scientific.name)$",
    re.IGNORECASE,
)
"""Names of columns about these, such as `host_age`."""

_SHOWN_CLASSES = 8


def preview(options: Train, study: LabelledStudy, folds: Folds) -> list[Association]:
    """Print the samples, splits of a training, and warn of what it may learn instead.

    Args:
        options: as `resolve` returns them.
        study: labels, splits and metadata.
        folds: folds of the study.

    Returns:
        The columns that predict the target by themselves, see `associations`.
    """
    column = options.target.metadata_column
    info(_target(study, folds, column))
    info(_splits(folds))
    _warn_of_groups(options, study)
    known = (column, folds.group_column, *(study.covariates.columns if study.covariates else ()))
    found = associations(study.metadata, known, study.study, folds)
    _show_associations(found, folds, column)
    return found


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


def _warn_of_groups(options: Train, study: LabelledStudy) -> None:
    """Warn of a column of subjects that the split divides."""
    if options.split.group_column is not None or options.split.splits is not None:
        return
    ids, column = study.study.table.sample_ids, options.target.metadata_column
    for name, groups, alike in _subjects(study.metadata, column, ids, study.values.tolist()):
        more = f"; {alike:.0%} of them have one value of '{column}'" if alike > 0.5 else ""
        warn(
            f"{groups} of '{name}' have several samples, which a random split puts into training "
            f"and test{more}: give --group-column {name}, or the scores are too good."
        )


def _subjects(
    metadata: Metadata, column: str, ids: Sequence[str], target: Sequence[float]
) -> Iterator[tuple[str, int, float]]:
    """Yield columns of subjects: those with several samples, and the share with one target."""
    labels_N = np.array(target)
    for name in metadata.columns:
        if name == column or not _SUBJECTS.search(name) or _ATTRIBUTES.search(name):
            continue
        values = metadata.values(name, ids)
        names, codes_N, sizes = np.unique(values, return_inverse=True, return_counts=True)
        repeated = np.flatnonzero((sizes > 1) & (names != ""))
        if not 2 < len(names) < len(ids) or not len(repeated):
            continue
        alike = [len(np.unique(labels_N[codes_N == code])) == 1 for code in repeated]
        yield name, len(repeated), float(np.mean(alike))


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
