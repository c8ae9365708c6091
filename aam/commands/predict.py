"""`aam predict`: predictions of a metadata column for the samples of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from aam.console import info
from aam.contract.files import refuse_existing
from aam.contract.options.commands.use import Predict
from aam.contract.preflight import target_folders
from aam.contract.shards import file_of
from aam.data.shards import facts_of, finished, take_shard
from aam.inference.new_samples import (
    Comparison,
    compare,
    read_covariates,
    select_as_trained,
)
from aam.inference.output_tables import prediction_table, write_table
from aam.inference.prediction import InferenceSettings, LoadedModel, load_samples, predict
from aam.members import checkpoint
from aam.members.predict import predict_table
from aam.members.tables import join_targets
from aam.numerics.device import choose_device, print_device
from aam.training.run_files.checkpoints import load_models


def run(options: Predict) -> dict[str, object]:
    """Predict the target, or each target, of every sample; return facts for the run record."""
    output = file_of(options) or options.output
    if options.shard is None:
        refuse_existing(output, options.overwrite)
    elif (facts := finished("predict", options)) is not None:
        return facts
    tables: dict[str, pd.DataFrame] = {}
    facts = {}
    for model in target_folders(options.model) or [options.model]:
        column, tables[column], comparison, found = _predict_target(replace(options, model=model))
        facts |= found
        comparison.show()
    table = join_targets(tables) if len(tables) > 1 else next(iter(tables.values()))
    write_table(output, table)
    columns = ", ".join(f"'{column}'" for column in tables)
    info(f"Predictions of {columns} for {len(table)} samples: {output}")
    return facts | (facts_of(output, len(table)) if options.shard is not None else {})


def _predict_target(
    options: Predict,
) -> tuple[str, pd.DataFrame, Comparison, dict[str, object]]:
    """Return the target of a model, its predictions, their comparison, and facts of the run."""
    if (path := checkpoint.find(options.model)) is not None:
        loaded = checkpoint.read(path)
        return loaded.stored.column, *predict_table(loaded, options), {}
    print_device(choose_device(options.device))
    models = load_models(options.model, options.device)
    table, comparison = predict_study(models, options)
    target = models[0].config.target
    assert target is not None
    return target.column, table, comparison, {"attention": models[0].attention}


def predict_study(
    models: Sequence[LoadedModel], options: Predict
) -> tuple[pd.DataFrame, Comparison]:
    """Predict every sample of a table with loaded models; compare it with the training data.

    Raises:
        AamError: see the readers; DataError: a model was pretrained only and has no target.
        NotFinite: a prediction is NaN or infinite.
    """
    config = models[0].config
    study = select_as_trained(load_samples(options.input, config), config.options, options.metadata)
    study = take_shard(study, options)
    ids = study.table.sample_ids
    settings = InferenceSettings(
        options.batch_size,
        choose_device(options.device),
        options.prediction_passes,
        options.vectors,
    )
    covariates = read_covariates(config.covariates, options.metadata, ids)
    predictions = predict(models, study, settings, covariates)
    assert config.target is not None
    training = [model.training for model in models]
    comparison = compare(training, config.plan, study, predictions.distances_N)
    table = prediction_table(config.target, ids, predictions.values_MNC.mean(axis=0))
    if len(predictions.values_MNC) > 1 and not config.target.classes:
        table["spread"] = predictions.values_MNC[:, :, config.target.middle].std(axis=0)
    return table.assign(**comparison.columns), comparison
