"""Importance of ASVs: how much the predictions of the kernel and the forest depend on each.

The feature of an ASV in a sample is its log abundance log10(1 + 1e4 relative abundance), the input
of the kernel. `docs/importance.md` documents the columns of the table. U ASVs of the table; further
shape suffixes: see `base` and `kernel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.stats import rankdata

from aam.console import say
from aam.contract.errors import DataError
from aam.contract.files import require
from aam.data.covariates import Covariates
from aam.data.study import Study
from aam.members import checkpoint
from aam.members.base import F64, Samples, Tokens
from aam.members.checkpoint import LoadedEnsemble
from aam.members.forest import Forest, ForestModel, known_asvs
from aam.members.kernel import Kernel, KernelInputs, KernelModel, similarities
from aam.training.target_transforms import TRANSFORMS

_CHUNK = 1024
"""ASVs whose similarities are in memory."""


def read_members(path: Path) -> LoadedEnsemble:
    """Read the ensemble of a run folder, or a checkpoint of one.

    Raises:
        MissingInput: there is no such path.
        DataError: see `checkpoint.read`; the run has a network only.
    """
    file = checkpoint.find(path)
    if file is None:
        if not path.is_dir():
            require(path, "model")
        raise _networks_only(f"'{path}' has no {checkpoint.NAME}")
    return checkpoint.read(file)


def importance_table(
    loaded: LoadedEnsemble,
    study: Study,
    taxa: Mapping[str, str] | None = None,
    covariates: Covariates | None = None,
) -> pd.DataFrame:
    """Return a row for each ASV that occurs in a study, the most important first.

    Args:
        loaded: the ensemble; its transformer and members without weight are left out.
        study: samples over which the importance is averaged.
        taxa: taxon of each ASV by feature id; None without taxonomy.
        covariates: metadata that the ensemble reads; None if it reads the counts alone.

    Raises:
        DataError: the ensemble has neither kernel nor forest, no ASV occurs in the training study,
            or no ASV has a taxon.
    """
    models = {name: model for name, model in loaded.models.items() if loaded.stored.weights[name]}
    if not models:
        raise _networks_only("no other member of the ensemble has a weight")
    counts = Samples.of(study.table, study.tokens_FL).counts
    seen = np.unique(counts.indices)
    ids = [study.table.feature_ids[column] for column in seen.tolist()]
    samples = Samples(counts[:, seen], study.tokens_FL[seen], covariates)
    rows, known = known_asvs(samples.tokens_FL, loaded.tokens_FL)
    if not len(rows):
        raise DataError(
            "The table has no ASV of the model's training data",
            f"{len(ids)} ASVs",
            "give a table of the same region, trimmed to the same length",
        )
    columns: dict[str, object] = {"feature-id": ids}
    if taxa is not None:
        columns["taxon"] = _taxa(taxa, ids)
    ranks = []
    kernel, forest = models.get("kernel"), models.get("forest")
    if isinstance(kernel, KernelModel):
        effects_UC = kernel_effects(kernel, samples, loaded)
        columns |= dict(zip(_effect_names(loaded.stored.classes), effects_UC.T, strict=True))
        ranks.append(rankdata(-np.abs(effects_UC).max(axis=1)))
    if isinstance(forest, ForestModel):
        importance_U = np.zeros(len(ids))
        inputs = Forest().read(samples, loaded.tokens_FL)
        importance_U[rows] = forest.impurity_decrease(inputs)[known]
        columns["forest"] = importance_U
        ranks.append(rankdata(-importance_U))
    relative = samples.relative
    columns["prevalence"] = relative.astype(bool).sum(axis=0) / relative.shape[0]
    columns["mean_relative_abundance"] = relative.mean(axis=0, dtype=np.float64)
    columns["rank"] = np.mean(ranks, axis=0)
    if loaded.networks:
        say("The importance is that of kernel and forest; the transformer is left out.")
    say(f"{len(rows)} of {len(ids)} ASVs are in the training data.")
    return pd.DataFrame(columns).sort_values("rank", kind="stable", ignore_index=True)


def kernel_effects(model: KernelModel, samples: Samples, loaded: LoadedEnsemble) -> F64:
    """Return the effect of one standard deviation of each ASV's feature, [U, outputs].

    A number has one output, in its units; two classes have the log odds of the second; more classes
    have the log probability of each minus the mean of all.
    """
    inputs = Kernel().read(samples, loaded.tokens_FL)
    dual_MC, slopes_N = model.dual_MC, np.ones(len(inputs.norms_N))
    if classes := len(loaded.stored.classes):
        scores = model.logits[:-1]
        scores = scores[:, 1:] - scores[:, :1] if classes == 2 else _centred(scores)
        dual_MC = dual_MC @ scores
    else:
        slopes_N = TRANSFORMS[loaded.stored.transform].slope(model.predict(inputs)[:, 0])
    gradients_UC = mean_gradients(
        model, dual_MC, slopes_N, inputs, samples.tokens_FL, loaded.tokens_FL
    )
    mean_U = inputs.weights.mean(axis=0, dtype=np.float64)
    variance_U = inputs.weights.power(2).mean(axis=0, dtype=np.float64) - mean_U**2
    effects_UC: F64 = gradients_UC * np.sqrt(variance_U.clip(min=0))[:, None]
    return effects_UC


def mean_gradients(
    model: KernelModel,
    dual_MC: F64,
    slopes_N: F64,
    inputs: KernelInputs,
    tokens_UL: Tokens,
    reference_FL: Tokens,
) -> F64:
    """Return derivatives of kernel @ dual_MC by each feature, [U, C].

    The derivative of a sample is multiplied by its slope; that of an ASV is the mean over the
    samples that have it. The linear kernel has the derivative of all samples in common.
    """
    weights = sparse.csc_array(inputs.weights)
    having_U = np.diff(weights.indptr)
    share = sparse.csc_array(
        (1 / np.repeat(having_U, having_U), weights.indices, weights.indptr), shape=weights.shape
    )
    kernel_NM = model.kernel(inputs) * slopes_N[:, None]
    outputs_NC = kernel_NM @ dual_MC
    gradients = []
    for start in range(0, len(tokens_UL), _CHUNK):
        own = slice(start, start + _CHUNK)
        share_Nu, tokens_uL = share[:, own], tokens_UL[own]
        to_landmarks_uM = (model.landmarks.weights @ similarities(reference_FL, tokens_uL)).T
        if model.gamma == 0:
            mean_slope_u = share_Nu.T @ slopes_N
            gradients.append((to_landmarks_uM @ dual_MC) * mean_slope_u[:, None])
            continue
        # The squared distance from a landmark changes by 2 (similarity to the sample - to it).
        toward_uC = ((share_Nu.T @ kernel_NM) * to_landmarks_uM) @ dual_MC
        to_samples_Nu = inputs.weights @ similarities(tokens_UL, tokens_uL)
        away_uC = share_Nu.multiply(to_samples_Nu).T @ outputs_NC
        gradients.append(2 * model.gamma * (toward_uC - away_uC))
    return np.concatenate(gradients)


def _centred(scores: F64) -> F64:
    centred: F64 = scores - scores.mean(axis=1, keepdims=True)
    return centred


def _effect_names(classes: tuple[str, ...]) -> list[str]:
    shown = classes[1:] if len(classes) == 2 else classes
    return [f"effect_{name}" for name in shown] or ["effect"]


def _taxa(taxa: Mapping[str, str], ids: Sequence[str]) -> list[str]:
    found = [taxa.get(name, "") for name in ids]
    unmatched = sum(name not in taxa for name in ids)
    if unmatched == len(ids):
        raise DataError(
            "The taxonomy and the table have no ASV in common",
            f"the table has {ids[0]}, the taxonomy {next(iter(taxa), 'no ASV')}",
            "give the taxonomy of the same representative sequences",
        )
    if unmatched:
        say(f"{unmatched} of {len(ids)} ASVs are not in the taxonomy.")
    return found


def _networks_only(evidence: str) -> DataError:
    return DataError(
        "The importance of ASVs is not yet available for networks",
        evidence,
        "train with --members kernel forest",
    )
