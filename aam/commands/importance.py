"""`aam importance`: the ASVs on which the predictions of a model depend."""

from __future__ import annotations

import numpy as np

from aam.console import info
from aam.contract.files import atomic_write, refuse_existing
from aam.contract.options.commands.use import ImportanceOptions
from aam.data.metadata import groups, read_metadata
from aam.data.study import load_study
from aam.data.taxonomy import read_taxonomy
from aam.inference.new_samples import read_covariates, select_as_trained
from aam.inference.tables import write_table
from aam.members.base import Rows
from aam.members.importance import (
    attention_table,
    clade_table,
    importance_table,
    rank_by_permutation,
)
from aam.members.model_file import read_trained
from aam.report.asvs import draw_attention


def run(options: ImportanceOptions) -> None:
    """Write the importance of every ASV of a table, or the attention to the ASVs of a sample."""
    picture = options.output.with_suffix(".png") if options.attention is not None else None
    # Before the model is read: a refusal after the computation would cost minutes.
    for path in (options.output, options.clades, picture):
        if path is not None:
            refuse_existing(path, options.overwrite)
    loaded = read_trained(options.model, options.device)
    taxa = None if options.taxonomy is None else read_taxonomy(options.taxonomy)
    study = load_study(options.input, max_bp=loaded.max_bp)
    study = select_as_trained(study, loaded.facts.options, options.metadata)
    covariates = read_covariates(loaded.encoder, options.metadata, study.table.sample_ids)
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
            names = groups(metadata, options.group_column, study.table.sample_ids)
            groups_N = np.unique(names, return_inverse=True)[1].astype(np.int64)
        table = rank_by_permutation(table, loaded, study, covariates, options.first, groups_N)
    write_table(options.output, table)
    if options.clades is not None:
        write_table(options.clades, clade_table(table))
        info(f"Importance of taxa: {options.clades}")
    samples = len(study.table.sample_ids)
    info(f"Importance of {len(table)} ASVs in {samples} samples: {options.output}")
