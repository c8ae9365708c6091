"""Permutation importance: change of the predictions where an ASV's reads are permuted.

It needs no derivative and is that of the whole ensemble, whatever its members. The reads of one
ASV move between the samples, of a group where groups are given, and all else stays as it is.
Shape suffixes: see `base`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

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
        study: samples; a network draws its reads once, before the permutations.
        covariates: metadata that the model reads; None if it reads the counts alone.
        asvs: columns of the study.
        groups_N: group of each sample, within which reads are permuted; None for one group.
    """
    whole = Samples.of(study.table, study.tokens_FL, covariates)
    facts, ensemble, classes = loaded.facts, loaded.facts.ensemble, bool(loaded.facts.classes)
    # Each model reads what it reads in `aam predict`: a network the reads that it draws.
    prepared = {name: model.prepared(whole) for name, model in loaded.models.items()}

    def predict(samples_of: Mapping[str, Samples]) -> F64:
        predictions = {
            name: model.apply(
                reader(name).read(samples_of[name].present[0], loaded.relations),
                facts.outputs.scale,
                _SETTINGS,
            ).values_NC
            for name, (model, _) in prepared.items()
        }
        return ensemble.combine(predictions, classes)

    original_NC = predict({name: samples for name, (_, samples) in prepared.items()})
    number = len(original_NC)
    columns_of = {name: sparse.csc_array(samples.counts) for name, (_, samples) in prepared.items()}
    reads_of = {name: samples.counts.sum(axis=1) for name, (_, samples) in prepared.items()}
    rng = np.random.default_rng(SEED)
    groups_N = np.zeros(number, dtype=np.int64) if groups_N is None else groups_N
    changes = np.zeros(len(asvs))
    for k, asv in enumerate(track(asvs, "Permutation", len(asvs), "ASVs")):
        source_N = _permuted(np.arange(number), groups_N, rng)
        change_of = {}
        for name, columns in columns_of.items():
            before = columns[:, [asv]].toarray().ravel()
            after = before[source_N]
            # A sample without any other ASV keeps its reads: without reads it has no abundances.
            change_of[name] = np.where(reads_of[name] - before + after == 0, 0, after - before)
        # Only changed samples are predicted again: permuting a rare ASV changes few of them.
        rows = np.flatnonzero(np.any(list(change_of.values()), axis=0))
        if len(rows):
            changed = {
                name: _with_reads(samples.take(rows), asv, change_of[name][rows])
                for name, (_, samples) in prepared.items()
            }
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
