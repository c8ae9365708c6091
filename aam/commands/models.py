"""`aam predict`, `embed`, `importance` and `export`: the commands that apply a trained model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from aam.arrays import Rows
from aam.console import info, print_messages
from aam.contract import run_files
from aam.contract.files import atomic_write, refuse_existing
from aam.contract.options.commands.use import ImportanceOptions, Predict
from aam.data.formats.text import write_table
from aam.data.metadata import read_metadata
from aam.data.taxonomy import named_ranks, read_taxonomy
from aam.members.explanations import FEATURES
from aam.members.importance import (
    attention_table,
    clade_table,
    importance_table,
    rank_by_permutation,
)
from aam.members.model_file import read_trained
from aam.members.output_tables import rank_share
from aam.members.prediction_tables import join_targets, predict_table
from aam.number_format import significant
from aam.report.asvs import draw_attention


def run_predict(options: Predict) -> dict[str, object]:
    """Predict the target, or each target, of every sample; return facts for the run record."""
    for path in (options.output, options.explain):
        if path is not None:
            refuse_existing(path, options.overwrite)
    taxa = None if options.taxonomy is None else read_taxonomy(options.taxonomy)
    tables: dict[str, pd.DataFrame] = {}
    explanations: list[pd.DataFrame] = []
    facts: dict[str, object] = {}
    with rank_share(options.scale, options.device) as share:
        for model in run_files.target_folders(options.model) or [options.model]:
            loaded = read_trained(model, options.device)
            arguments = replace(options, model=model), share, taxa
            table, notes, explained = predict_table(loaded, *arguments)
            tables[loaded.facts.column] = table
            if explained is not None:
                explanations.append(explained.assign(target=loaded.facts.column))
            for member in loaded.models.values():
                facts |= member.facts
            print_messages(notes)
        table = join_targets(tables) if len(tables) > 1 else next(iter(tables.values()))
        if share.ranks.is_main:
            write_table(options.output, table)
            columns = ", ".join(f"'{column}'" for column in tables)
            info(f"Predictions of {columns} for {len(table)} samples: {options.output}")
            if options.explain is not None:
                rows = pd.concat(explanations, ignore_index=True)
                write_table(options.explain, rows)
                show_explanations(rows)
                info(f"Explanations of {len(table)} samples: {options.explain}")
    return facts


def run_importance(options: ImportanceOptions) -> None:
    """Write the importance of every ASV of a table, or the attention to the ASVs of a sample."""
    picture = options.output.with_suffix(".png") if options.attention is not None else None
    # Before the model is read: a refusal after the computation would cost minutes.
    for path in (options.output, options.clades, picture):
        if path is not None:
            refuse_existing(path, options.overwrite)
    loaded = read_trained(options.model, options.device)
    taxa = None if options.taxonomy is None else read_taxonomy(options.taxonomy)
    study = loaded.read_study(options.input, options.metadata).sorted_by_id()
    covariates = loaded.read_covariates(options.metadata, study.table.sample_ids)
    if options.attention is not None and picture is not None:
        sample = options.attention
        table, mixing_UU = attention_table(loaded, study, sample, taxa, covariates)
        write_table(options.output, table)
        with atomic_write(picture) as temporary:
            draw_attention(table, mixing_UU, sample).savefig(temporary, format="png")
        info(f"Attention to {len(table)} ASVs of {sample}: {options.output}, {picture}")
        return
    table = importance_table(loaded, study, taxa, covariates)
    if options.method == "permutation":
        groups_N: Rows | None = None
        if options.group_column is not None and options.metadata is not None:
            metadata = read_metadata(options.metadata)
            names = metadata.groups(options.group_column, study.table.sample_ids)
            groups_N = np.unique(names, return_inverse=True)[1].astype(np.int64)
        table = rank_by_permutation(table, loaded, study, covariates, options.first, groups_N)
    write_table(options.output, table)
    if options.clades is not None:
        write_table(options.clades, clade_table(table))
        info(f"Importance of taxa: {options.clades}")
    samples = len(study.table.sample_ids)
    info(f"Importance of {len(table)} ASVs in {samples} samples: {options.output}")


def show_explanations(table: pd.DataFrame, samples: int = 3, features: int = 3) -> None:
    """Print the largest effects on the first predictions of a table of explanations."""
    for (sample, target), rows in list(table.groupby(["sample", "target"], sort=False))[:samples]:
        mean = float(rows["effect"].iloc[0])
        leading = rows[rows["kind"].isin(FEATURES)][:features]
        effects = []
        for name, effect in zip(map(str, leading["feature"]), leading["effect"], strict=True):
            # The last two ranks of a taxon, or the first letters of a long id.
            ranks = named_ranks(name) if ";" in name else []
            short = "; ".join(ranks[-2:]) or (name if len(name) <= 16 else f"{name[:16]}…")
            effects.append(f"{short} {significant(effect, signed=True)}")
        others = float(rows["effect"].sum() - mean - leading["effect"].sum())
        unit = str(rows["unit"].iloc[0])
        quantity = unit if unit.startswith("probability") else target
        total = significant(float(rows["effect"].sum()))
        info(
            f"{sample}, {quantity}: {total} = {significant(mean)} (mean) "
            f"{', '.join([*effects, f'all others {significant(others, signed=True)}'])}"
        )
