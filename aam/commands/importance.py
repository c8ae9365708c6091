"""`aam importance`: the ASVs on which the predictions of a model depend."""

from __future__ import annotations

from aam.console import say
from aam.contract.files import refuse_existing
from aam.contract.options.commands.use import Importance
from aam.data.study import load_study
from aam.data.taxonomy import read_taxonomy
from aam.members.importance import importance_table, read_members
from aam.training.new_samples import read_covariates, select_as_trained
from aam.training.output_tables import write_table


def run(options: Importance) -> None:
    """Write the importance of every ASV of a table.

    Raises:
        AamError: see the readers and `importance_table`; CannotCreate if the output exists.
    """
    refuse_existing(options.output, options.overwrite)
    loaded = read_members(options.model)
    taxa = None if options.taxonomy is None else read_taxonomy(options.taxonomy)
    study = load_study(options.input, max_bp=loaded.tokens_FL.shape[1])
    study = select_as_trained(study, loaded.stored.options, options.metadata)
    covariates = read_covariates(loaded.encoder, options.metadata, study.table.sample_ids)
    table = importance_table(loaded, study, taxa, covariates)
    write_table(options.output, table)
    samples = len(study.table.sample_ids)
    say(f"Importance of {len(table)} ASVs in {samples} samples: {options.output}")
