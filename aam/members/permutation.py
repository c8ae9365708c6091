"""Permutation importance: change of the predictions where an ASV's reads are permuted.

It needs no derivative and is that of the whole ensemble, whatever its members. The reads of one
ASV move between the samples, of a group where groups are given, and all else stays as it is.
Shape suffixes: see `base`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy import sparse

from aam.console import track
from aam.data.covariates import Covariates
from aam.data.study import Study
from aam.inference.tables import InferenceSettings
from aam.members.base import F64, Rows, Samples
from aam.members.model_file import TrainedModel
from aam.members.registry import reader

SEED = 0

_SETTINGS = InferenceSettings()


def permutation_importance(
    loaded: TrainedModel,
    study: Study,
    covariates: Covariates | None,
    asvs: Sequence[int],
    groups_N: Rows | None,
) -> F64:
    """Return the mean change of the model's predictions over all samples, [len(asvs)].

    A number changes by the absolute difference, in its units; classes by half the sum of the
    absolute differences of their probabilities (total variation, 0 to 1).

    Args:
        loaded: the model.
        study: samples; the network's rarefaction is drawn once, before the permutations.
        covariates: metadata that the model reads; None if it reads the counts alone.
        asvs: columns of the study.
        groups_N: group of each sample, within which reads are permuted; None for one group.
    """
    samples, facts, models = Samples.of(study.table, study.tokens_FL, covariates), loaded.facts, {}
    for name, model in loaded.weighted.items():
        models[name], samples = model.prepared(samples)
    weights = {name: facts.weights[name] for name in models}
    ensemble, classes = dataclasses.replace(facts.ensemble, weights=weights), bool(facts.classes)

    def predict(changed: Samples) -> F64:
        present, _ = changed.present
        predictions = {
            name: model.apply(
                reader(name).read(present, loaded.relations), facts.outputs.scale, _SETTINGS
            ).values_NC
            for name, model in models.items()
        }
        return ensemble.combine(predictions, classes)

    original_NC = predict(samples)
    number, reads_N = len(original_NC), samples.counts.sum(axis=1)
    counts = sparse.csc_array(samples.counts)
    rng = np.random.default_rng(SEED)
    groups_N = np.zeros(number, dtype=np.int64) if groups_N is None else groups_N
    changes = np.zeros(len(asvs))
    for k, asv in enumerate(track(asvs, "Permutation", len(asvs), "ASVs")):
        before = counts[:, [asv]].toarray().ravel()
        after = _permuted(before, groups_N, rng)
        # A sample without any other ASV keeps its reads: without reads it has no abundances.
        after = np.where(reads_N - before + after == 0, before, after)
        # Only changed samples are predicted again: permuting a rare ASV changes few of them.
        rows = np.flatnonzero(after != before)
        if len(rows):
            changed = _with_reads(samples.take(rows), asv, (after - before)[rows])
            difference = np.abs(predict(changed) - original_NC[rows])
            changes[k] = difference.sum() / (2 if classes else 1) / number
    return changes


def _permuted(values_N: Rows, groups_N: Rows, rng: np.random.Generator) -> Rows:
    """Permute the values within each group."""
    shuffled = np.lexsort((rng.random(len(values_N)), groups_N))
    permuted = np.empty_like(values_N)
    permuted[np.argsort(groups_N, kind="stable")] = values_N[shuffled]
    return permuted


def _with_reads(samples: Samples, asv: int, change_n: Rows) -> Samples:
    """Return samples with other reads of one ASV."""
    places = np.arange(len(change_n)), np.full(len(change_n), asv)
    counts = samples.counts + sparse.csr_array((change_n, places), shape=samples.counts.shape)
    counts.eliminate_zeros()
    return dataclasses.replace(samples, counts=counts)
