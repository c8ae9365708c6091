"""`aam importance`: the ASVs on which the predictions of a model depend."""

from __future__ import annotations

import numpy as np

from aam.console import say
from aam.contract.errors import UsageError
from aam.contract.files import refuse_existing
from aam.contract.options.commands.use import Importance
from aam.data.metadata import groups, read_metadata
from aam.data.study import Study, load_study
from aam.data.taxonomy import read_taxonomy
from aam.members.base import Rows
from aam.members.importance import importance_table, rank_by_permutation, read_members
from aam.training.new_samples import read_covariates, select_as_trained
from aam.training.output_tables import write_table


def run(options: Importance) -> None:
    """Write the importance of every ASV of a table.

    Raises:
        AamError: see the readers and `importance_table`; CannotCreate if the output exists;
            UsageError for --group-column without --metadata.
    """
    refuse_existing(options.output, options.overwrite)
    loaded = read_members(options.model)
    taxa = None if options.taxonomy is None else read_taxonomy(options.taxonomy)
    study = load_study(options.input, max_bp=loaded.max_bp)
    study = select_as_trained(study, loaded.stored.options, options.metadata)
    covariates = read_covariates(loaded.encoder, options.metadata, study.table.sample_ids)
    table = importance_table(loaded, study, taxa, covariates, options.device)
    if options.method == "permutation":
        groups_N = _groups(options, study)
        table = rank_by_permutation(
            table, loaded, study, covariates, options.first, groups_N, options.device
        )
    write_table(options.output, table)
    samples = len(study.table.sample_ids)
    say(f"Importance of {len(table)} ASVs in {samples} samples: {options.output}")


def _groups(options: Importance, study: Study) -> Rows | None:
    """Number the groups of the samples; None without --group-column."""
    if options.group_column is None:
        return None
    if options.metadata is None:
        raise UsageError(
            "A group column without metadata",
            f"--group-column {options.group_column}",
            "give --metadata",
        )
    metadata = read_metadata(options.metadata)
    names = groups(metadata, options.group_column, study.table.sample_ids)
    return np.unique(names, return_inverse=True)[1].astype(np.int64)
