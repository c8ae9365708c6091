"""`aam predict`: predictions of a metadata column for the samples of a table."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from aam.console import info
from aam.contract.files import refuse_existing
from aam.contract.options.commands.use import Predict
from aam.contract.preflight import target_folders
from aam.contract.shards import file_of
from aam.data.shards import facts_of, finished
from aam.inference.tables import write_table
from aam.members.model_file import read_trained
from aam.members.tables import join_targets, predict_table


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
        loaded = read_trained(model, options.device)
        table, comparison = predict_table(loaded, replace(options, model=model))
        tables[loaded.facts.column] = table
        for member in loaded.models.values():
            facts |= member.facts
        comparison.show()
    table = join_targets(tables) if len(tables) > 1 else next(iter(tables.values()))
    write_table(output, table)
    columns = ", ".join(f"'{column}'" for column in tables)
    info(f"Predictions of {columns} for {len(table)} samples: {output}")
    return facts | (facts_of(output, len(table)) if options.shard is not None else {})
