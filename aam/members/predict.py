"""Prediction for new samples with an ensemble."""

from __future__ import annotations

import numpy as np
import pandas as pd

from aam.console import warn
from aam.contract.options.commands.use import Predict
from aam.data.metadata import ID_HEADER
from aam.data.shards import take_shard
from aam.data.study import load_study
from aam.inference.new_samples import (
    NO_COMPARISON,
    Comparison,
    compare,
    read_covariates,
    select_as_trained,
)
from aam.inference.output_tables import quantile_columns, require_finite
from aam.inference.prediction import InferenceSettings
from aam.inference.prediction import predict as predict_with_networks
from aam.members.base import F64, Samples
from aam.members.checkpoint import EnsembleCheckpoint
from aam.members.estimators import ESTIMATORS, KERNEL
from aam.members.option_checks import TRANSFORMER
from aam.members.tables import interval_columns, member_columns, ordinal_columns, prediction_columns
from aam.numerics.device import choose_device


def predict_table(loaded: EnsembleCheckpoint, options: Predict) -> tuple[pd.DataFrame, Comparison]:
    """Predict every sample of a table with an ensemble and its members.

    Returns:
        The predictions, and the comparison of the samples with the training data.

    Raises:
        AamError: see `load_study`.
        NotFinite: a prediction is NaN or infinite.
    """
    stored = loaded.stored
    study = load_study(options.input, max_bp=loaded.max_bp)
    study = take_shard(select_as_trained(study, stored.options, options.metadata), options)
    ids = study.table.sample_ids
    covariates = read_covariates(loaded.encoder, options.metadata, ids)
    samples = Samples.of(study.table, study.tokens_FL, covariates)
    members: dict[str, F64] = {}
    of_networks: dict[str, F64] = {}
    inputs = {
        name: ESTIMATORS[name].read(samples, loaded.relations) for name in {KERNEL, *loaded.models}
    }
    for name, model in loaded.models.items():
        members[name] = stored.scale.inverse(model.predict(inputs[name]))
    if loaded.networks:
        target = loaded.networks[0][0].target
        assert target is not None
        networks = loaded.build_networks(options.device)
        settings = InferenceSettings(
            options.batch_size,
            choose_device(options.device),
            options.prediction_passes,
            options.vectors,
        )
        values_MNC = predict_with_networks(networks, study, settings, covariates).values_MNC
        mean_NC = values_MNC.mean(axis=0)
        points = mean_NC if target.classes else target.point_predictions(mean_NC)[:, None]
        members[TRANSFORMER] = points
        of_networks |= quantile_columns(target, mean_NC)
        if len(values_MNC) > 1 and not target.classes:
            of_networks["spread"] = values_MNC[:, :, target.middle].std(axis=0)
    elif options.prediction_passes > 1:
        warn("Without the member transformer this option has no effect: --prediction-passes.")
    predictions_NC = stored.ensemble.combine(members, bool(stored.classes))
    require_finite("predictions", ids, predictions_NC)
    columns: dict[str, object] = {ID_HEADER: list(ids)}
    if stored.odds is not None:
        columns |= ordinal_columns(predictions_NC[:, 0], stored.odds, stored.levels)
    else:
        columns |= prediction_columns(predictions_NC, stored.classes)
    if not stored.classes:
        widths_N = np.full(len(ids), stored.ensemble.half_width)
        columns |= interval_columns(predictions_NC, widths_N, stored.range)
    for name, member_NC in members.items():
        columns |= member_columns(name, member_NC, stored.classes, stored.levels)
    columns |= of_networks
    comparison = NO_COMPARISON
    if (training := loaded.training) is not None:
        distances_N = training.distances(inputs[KERNEL])
        comparison = compare([training.summary], training.plan, study, distances_N)
    return pd.DataFrame(columns | comparison.columns), comparison
