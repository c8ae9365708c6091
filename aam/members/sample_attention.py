"""Attention of the transformer to the ASVs of one sample, averaged over the networks of the folds.

U ASVs of the sample; further shape suffixes: see `base`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from aam.contract.errors import DataError
from aam.contract.suggestions import nearest
from aam.data.covariates import Covariates
from aam.data.study import Study
from aam.members.base import F64, Samples
from aam.members.model_file import TrainedModel


def attention_table(
    loaded: TrainedModel,
    study: Study,
    sample: str,
    taxa: Mapping[str, str] | None,
    covariates: Covariates | None,
) -> tuple[pd.DataFrame, F64]:
    """Return a row for each ASV of a sample, and the attention between them [U, U].

    The columns are feature-id, taxon (with a taxonomy), relative_abundance, and attention, whose
    sum is 1; the ASV with the highest attention is the first.

    Raises:
        DataError: the model has no network, or the table no such sample.
    """
    ids = study.table.sample_ids
    if sample not in ids:
        evidence = f"--attention {sample}, {len(ids)} samples"
        raise DataError("The table has no such sample", evidence, nearest(sample, ids, "name one"))
    whole = Samples.of(study.table, study.tokens_FL, covariates)
    present, seen = whole.take(np.array([list(ids).index(sample)])).present
    each = [one for model in loaded.models.values() for one in model.attention(present)]
    if not each:
        raise DataError(
            "The model has no attention",
            f"its members are {', '.join(loaded.models)}",
            "train with the member transformer",
        )
    first = each[0]  # every network reads the same reads of the sample
    pooling_U = np.mean([one.pooling_S for one in each], axis=0)
    order = np.argsort(-pooling_U, kind="stable")
    names = [study.table.feature_ids[asv] for asv in seen[first.asvs_S[order]].tolist()]
    columns: dict[str, object] = {"feature-id": names}
    if taxa is not None:
        columns["taxon"] = [taxa.get(name, "") for name in names]
    columns |= {"relative_abundance": first.abundance_S[order], "attention": pooling_U[order]}
    mixing_UU = np.mean([one.mixing_SS for one in each], axis=0)
    return pd.DataFrame(columns), mixing_UU[np.ix_(order, order)]
