"""`aam predict`: predictions of a metadata column for the samples of a table."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch

from aam.console import say
from aam.contract.files import refuse_existing
from aam.contract.options.commands.use import Predict
from aam.contract.shards import file_of
from aam.data.covariates import Covariates
from aam.data.shards import facts_of, finished, take_shard
from aam.data.study import Study
from aam.members import checkpoint
from aam.members import predict as ensemble
from aam.numerics.device import choose_device, print_device
from aam.training.new_samples import Comparison, compare, read_covariates, select_as_trained
from aam.training.output_tables import prediction_table, write_table
from aam.training.prediction import LoadedModel, load_models, load_samples, predict


def run(options: Predict) -> dict[str, object]:
    """Predict a column for every sample of a table; return facts for the run record."""
    output = file_of(options) or options.output
    if options.shard is None:
        refuse_existing(output, options.overwrite)
    elif (facts := finished("predict", options)) is not None:
        return facts
    if (path := checkpoint.find(options.model)) is not None:
        return ensemble.predict(path, options, output)
    device = choose_device(options.device)
    print_device(device)
    models = load_models(options.model, options.device)
    config = models[0].config
    study = select_as_trained(load_samples(options.input, config), config.options, options.metadata)
    study = take_shard(study, options)
    covariates = read_covariates(config.covariates, options.metadata, study.table.sample_ids)
    table, comparison = predict_study(
        models,
        study,
        options.batch_size,
        device,
        options.prediction_passes,
        options.asv_vectors_dir,
        covariates,
    )
    write_table(output, table)
    comparison.show()
    assert config.target is not None
    say(f"Predictions of '{config.target.column}' for {len(table)} samples: {output}")
    shard = facts_of(output, len(table)) if options.shard is not None else {}
    return {"attention": models[0].attention, **shard}


def predict_study(
    models: list[LoadedModel],
    study: Study,
    batch_size: int,
    device: torch.device,
    passes: int,
    vectors: Path | None = None,
    covariates: Covariates | None = None,
) -> tuple[pd.DataFrame, Comparison]:
    """Return the predictions table of a study, and its comparison with the training data.

    Raises:
        DataError: a model was pretrained only and has no target.
        NotFinite: a prediction is NaN or infinite.
    """
    found = predict(models, study, batch_size, device, passes, vectors, covariates)
    config = models[0].config
    assert config.target is not None
    training = [model.training for model in models]
    comparison = compare(training, config.plan, study, found.distances_N)
    table = prediction_table(config.target, study.table.sample_ids, found.values_MNC.mean(axis=0))
    if len(found.values_MNC) > 1 and not config.target.classes:
        table["spread"] = found.values_MNC[:, :, 0].std(axis=0)
    return table.assign(**comparison.columns), comparison
