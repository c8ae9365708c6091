"""Prediction for new samples with a model."""

from __future__ import annotations

import numpy as np
import pandas as pd

from aam.console import warn
from aam.contract.options.commands.use import Predict
from aam.contract.options.members import networks
from aam.data.metadata import ID_HEADER
from aam.data.shards import take_shard
from aam.data.study import load_study
from aam.inference.new_samples import (
    Comparison,
    compare,
    read_covariates,
    require_known_asvs,
    select_as_trained,
)
from aam.inference.tables import InferenceSettings, require_finite
from aam.members.base import Samples
from aam.members.model_file import TrainedModel
from aam.members.registry import reader
from aam.members.tables import interval_columns, member_columns, ordinal_columns, prediction_columns


def predict_table(loaded: TrainedModel, options: Predict) -> tuple[pd.DataFrame, Comparison]:
    """Predict every sample of a table with a model and each of its members.

    Args:
        loaded: the model, with its members on a device.
        options: table, metadata, batch size and number of passes of `aam predict`.

    Returns:
        A row for each sample with sample-id, the prediction of the ensemble, its interval or class
        probabilities, and the predictions of each member; and the comparison of the samples with
        the training data, whose columns are in the same table.

    Raises:
        AamError: see `load_study`.
        NotFinite: a prediction is NaN or infinite.
    """
    facts = loaded.facts
    study = load_study(options.input, max_bp=loaded.max_bp)
    study = take_shard(select_as_trained(study, facts.options, options.metadata), options)
    if not options.force:
        require_known_asvs(loaded.training.summary, study)
    ids = study.table.sample_ids
    covariates = read_covariates(loaded.encoder, options.metadata, ids)
    samples = Samples.of(study.table, study.tokens_FL, covariates)
    settings = InferenceSettings(options.batch_size, options.prediction_passes, options.vectors)
    if options.prediction_passes > 1 and not networks(tuple(loaded.models)):
        warn("Without the member transformer this option has no effect: --prediction-passes.")
    applied = {
        name: model.apply(
            reader(name).read(samples, loaded.relations), facts.outputs.scale, settings
        )
        for name, model in loaded.models.items()
    }
    members = {name: found.values_NC for name, found in applied.items()}
    predictions_NC = facts.ensemble.combine(members, bool(facts.classes))
    require_finite("predictions", ids, predictions_NC)
    columns: dict[str, object] = {ID_HEADER: list(ids)}
    if facts.odds is not None:
        columns |= ordinal_columns(predictions_NC[:, 0], facts.odds, facts.levels)
    else:
        columns |= prediction_columns(predictions_NC, facts.classes)
    if not facts.classes:
        widths_N = np.full(len(ids), facts.ensemble.half_width)
        columns |= interval_columns(predictions_NC, widths_N, facts.range)
    for name, member_NC in members.items():
        columns |= member_columns(name, member_NC, facts.classes, facts.levels)
    for found in applied.values():
        columns |= found.columns
    distances_N = loaded.training.distances(samples, loaded.relations)
    comparison = compare(loaded.training.summary, study, distances_N)
    return pd.DataFrame(columns | comparison.columns), comparison
