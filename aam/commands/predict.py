"""`aam predict`: predictions of a metadata column for the samples of a table."""

from __future__ import annotations

from aam.console import say
from aam.contract.files import refuse_existing
from aam.contract.options.commands import Predict
from aam.numerics.device import choose_device, print_device
from aam.training.new_samples import compare, select_as_trained
from aam.training.output_tables import prediction_table, write_table
from aam.training.prediction import load_models, load_samples, predict


def run(options: Predict) -> dict[str, object]:
    """Predict a column for every sample of a table; return facts for the run record."""
    refuse_existing(options.output, options.overwrite)
    device = choose_device(options.device)
    print_device(device)
    models = load_models(options.model, options.device)
    config = models[0].config
    study = select_as_trained(load_samples(options.input, config), config, options.metadata)
    found = predict(models, study, options.batch_size, device, options.prediction_passes)
    target = config.target
    assert target is not None
    comparison = compare([model.training for model in models], config, study, found.distances_N)
    table = prediction_table(target, study.table.sample_ids, found.values_MNC.mean(axis=0))
    if len(found.values_MNC) > 1 and not target.classes:
        table["spread"] = found.values_MNC[:, :, 0].std(axis=0)
    write_table(options.output, table.assign(**comparison.columns))
    comparison.show()
    say(f"Predictions of '{target.column}' for {len(table)} samples: {options.output}")
    return {"attention": models[0].attention}
