"""Target of `aam inspect`: what a training would do with a metadata column, without training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from aam.console import info
from aam.contract.options import build, specs
from aam.contract.options.commands.studies import Inspect
from aam.contract.options.commands.train import Train
from aam.data.inspection import Inspection, MetadataColumn
from aam.data.metadata import Metadata
from aam.data.study import Study
from aam.data.targets import has_classes
from aam.evaluation.confounding import Association, leading
from aam.evaluation.intervals import TITLES
from aam.members.option_checks import resolve
from aam.pipeline.labelled_study import label_study
from aam.pipeline.plan import plan
from aam.pipeline.preview import preview


def inspect_target(
    inspection: Inspection, options: Inspect, metadata: Metadata, column: str
) -> tuple[MetadataColumn, list[Association]] | None:
    """Add what `aam train` would do with a column.

    Returns:
        The labels of the samples, and the columns that predict them; None where a training would
        refuse the column.
    """
    study = inspection.study
    inspection.read("target", lambda: metadata.require(column))
    if column not in metadata.columns or study is None:
        return None
    if set(study.table.sample_ids).isdisjoint(metadata.ids):
        return None
    classes = has_classes(metadata, column)
    classifier = options.classifier or (classes and not options.ordinal)
    if classifier and not options.classifier:
        form = "is of the type categorical" if column in metadata.categorical else "has words"
        inspection.fact("target", f"'{column}' {form}: aam train predicts its classes")
    # The options of a training of the same files and column. It needs a folder; a preview writes
    # nothing to it.
    values = vars(options) | {"classifier": classifier, "output_dir": Path(os.devnull)}
    given = {spec.flag: values[spec.field] for spec in specs(Train) if spec.field in values}
    return inspection.read("target", lambda: _preview(build(Train, given), study, metadata))


def _preview(
    options: Train, study: Study, metadata: Metadata
) -> tuple[MetadataColumn, list[Association]]:
    """Print what a training would do."""
    options = resolve(options)
    labelled = label_study(options, study, metadata, options.split)
    planned = plan(options, labelled)
    associations, *_ = preview(planned)
    column, labels = options.target.metadata_column, planned.folds.labels
    # `aam train` names those that predict as well as its model.
    alone = leading(associations, planned.folds)
    if leaks := [association for association in alone if not association.other_form]:
        listed = ", ".join(f"'{leak.column}' {leak.value:.2f}" for leak in leaks)
        title = TITLES[leaks[0].metric]
        info(f"Columns that alone predict '{column}' on the same splits ({title}): {listed}.")
    names = labels.classes or labels.levels
    texts = [names[int(value)] if names else repr(float(value)) for value in labelled.values]
    kind: Literal["categories", "numbers"] = "categories" if names else "numbers"
    return MetadataColumn(column, kind, texts, ""), associations
