"""`aam predict`: predictions of a metadata column for the samples of a table."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from aam.console import info
from aam.contract.files import refuse_existing
from aam.contract.options.commands.use import Predict
from aam.contract.preflight import target_folders
from aam.data.taxonomy import read_taxonomy
from aam.inference.tables import rank_share, write_table
from aam.members.explanations import show_explanations
from aam.members.model_file import read_trained
from aam.members.tables import join_targets, predict_table


def run(options: Predict) -> dict[str, object]:
    """Predict the target, or each target, of every sample; return facts for the run record."""
    for path in (options.output, options.explain):
        if path is not None:
            refuse_existing(path, options.overwrite)
    taxa = None if options.taxonomy is None else read_taxonomy(options.taxonomy)
    tables: dict[str, pd.DataFrame] = {}
    explanations: list[pd.DataFrame] = []
    facts: dict[str, object] = {}
    with rank_share(options.scale, options.device) as share:
        for model in target_folders(options.model) or [options.model]:
            loaded = read_trained(model, options.device)
            arguments = replace(options, model=model), share, taxa
            table, comparison, explained = predict_table(loaded, *arguments)
            tables[loaded.facts.column] = table
            if explained is not None:
                explanations.append(explained.assign(target=loaded.facts.column))
            for member in loaded.models.values():
                facts |= member.facts
            comparison.show()
        table = join_targets(tables) if len(tables) > 1 else next(iter(tables.values()))
        if share.ranks.is_main:
            write_table(options.output, table)
            columns = ", ".join(f"'{column}'" for column in tables)
            info(f"Predictions of {columns} for {len(table)} samples: {options.output}")
            if options.explain is not None:
                found = pd.concat(explanations, ignore_index=True)
                write_table(options.explain, found)
                show_explanations(found)
                info(f"Explanations of {len(table)} samples: {options.explain}")
    return facts
