"""Permutation importance: change of the predictions where an ASV's reads are permuted.

It needs no derivative and is that of the whole ensemble, whatever its members. The reads of one
ASV move between the samples, of a group where groups are given, and all else stays as it is.
Shape suffixes: see `base`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy import sparse

from aam.console import track
from aam.contract.options.device import DeviceOptions
from aam.data.batches import FIXED_DRAW, make_batch, reading_plan
from aam.data.covariates import Covariates
from aam.data.rarefaction import rarefy
from aam.data.study import Study
from aam.data.table import FeatureTable
from aam.inference.network_outputs import apply_to_batch, profile_terms
from aam.inference.prediction import LoadedModel, encode_for_models
from aam.members.base import F64, Rows, Samples
from aam.members.checkpoint import EnsembleCheckpoint
from aam.members.estimators import ESTIMATORS
from aam.members.option_checks import TRANSFORMER
from aam.numerics.device import choose_device

SEED = 0
BATCH_SIZE = 32

PredictRows = Callable[[Study, Rows], F64]
"""Predictions [n, C] of a member for the n samples of a changed study, rows [n] of the true one."""


def permutation_importance(
    loaded: EnsembleCheckpoint,
    study: Study,
    covariates: Covariates | None,
    asvs: Sequence[int],
    groups_N: Rows | None,
    device: DeviceOptions,
) -> F64:
    """Return the mean change of the ensemble's predictions over all samples, [len(asvs)].

    A number changes by the absolute difference, in its units; classes by half the sum of the
    absolute differences of their probabilities (total variation, 0 to 1).

    Args:
        loaded: the ensemble.
        study: samples; the network's rarefaction is drawn once, before the permutations.
        covariates: metadata that the ensemble reads; None if it reads the counts alone.
        asvs: columns of the study.
        groups_N: group of each sample, within which reads are permuted; None for one group.
        device: of the transformer.
    """
    names = [name for name, weight in loaded.stored.weights.items() if weight]
    networks = loaded.build_networks(device) if TRANSFORMER in names else []
    study = _in_memory(study, networks)
    members = _members(loaded, networks, study, covariates, choose_device(device))
    classes = bool(loaded.stored.classes)

    def predict(changed: Study, rows: Rows) -> F64:
        predictions = {name: members[name](changed, rows) for name in names}
        weights = {name: loaded.stored.weights[name] for name in names}
        ensemble = dataclasses.replace(loaded.stored.ensemble, weights=weights)
        return ensemble.combine(predictions, classes)

    samples = len(study.table.sample_ids)
    original_NC = predict(study, np.arange(samples))
    counts = sparse.csc_array(study.table.counts)
    rng = np.random.default_rng(SEED)
    groups_N = np.zeros(samples, dtype=np.int64) if groups_N is None else groups_N
    changes = np.zeros(len(asvs))
    for k, asv in enumerate(track(asvs, "Permutation", len(asvs), "ASVs")):
        before = counts[:, [asv]].toarray().ravel()
        after = _permuted(before, groups_N, rng)
        # A sample without any other ASV keeps its reads.
        after = np.where(study.reads - before + after == 0, before, after)
        rows = np.flatnonzero(after != before)
        if len(rows):
            changed = _with_reads(study, asv, (after - before)[rows], rows)
            difference = np.abs(predict(changed, rows) - original_NC[rows])
            changes[k] = difference.sum() / (2 if classes else 1) / samples
    return changes


def _permuted(values_N: Rows, groups_N: Rows, rng: np.random.Generator) -> Rows:
    """Permute the values within each group."""
    shuffled = np.lexsort((rng.random(len(values_N)), groups_N))
    permuted = np.empty_like(values_N)
    permuted[np.argsort(groups_N, kind="stable")] = values_N[shuffled]
    return permuted


def _in_memory(study: Study, networks: Sequence[LoadedModel]) -> Study:
    """Return the study in memory, rarefied as the networks read it."""
    table = study.table
    counts = Samples.of(table, study.tokens_FL).counts.copy()
    if networks:
        plan = networks[0].config.plan
        ends = zip(counts.indptr[:-1], counts.indptr[1:], table.sample_ids, strict=True)
        drawn = [
            rarefy(counts.data[lo:hi], plan.rarefy_depth, name, plan.seed, FIXED_DRAW)
            for lo, hi, name in ends
        ]
        counts.data = np.concatenate(drawn).astype(np.int32)
        counts.eliminate_zeros()
    table = FeatureTable(tuple(table.sample_ids), tuple(table.feature_ids), counts)
    return Study(table, study.tokens_FL)


def _with_reads(study: Study, asv: int, change_n: Rows, rows: Rows) -> Study:
    """Return the samples at `rows` with other reads of one ASV."""
    table = study.table
    places = np.arange(len(rows)), np.full(len(rows), asv)
    counts = table.counts[rows]
    counts = counts + sparse.csr_array((change_n, places), shape=counts.shape)
    counts.eliminate_zeros()
    ids = tuple(table.sample_ids[row] for row in rows.tolist())
    return Study(FeatureTable(ids, table.feature_ids, counts), study.tokens_FL)


def _members(
    loaded: EnsembleCheckpoint,
    networks: Sequence[LoadedModel],
    study: Study,
    covariates: Covariates | None,
    device: torch.device,
) -> dict[str, PredictRows]:
    """Return a function of each member; ASVs are encoded here, once."""

    def estimator(name: str) -> PredictRows:
        def predict(changed: Study, rows: Rows) -> F64:
            seen = np.unique(changed.table.counts.indices)
            known = None if covariates is None else covariates.take(rows)
            samples = Samples(changed.table.counts[:, seen], changed.tokens_FL[seen], known)
            inputs = ESTIMATORS[name].read(samples, loaded.relations)
            return loaded.stored.scale.inverse(loaded.models[name].predict(inputs))

        return predict

    asvs = [
        (vectors_FD, profile_terms(model.network, study.tokens_FL, device))
        for model, vectors_FD in zip(
            networks, encode_for_models(networks, study, device), strict=True
        )
    ]

    def transformer(changed: Study, rows: Rows) -> F64:
        values = []
        for model, of_asvs in zip(networks, asvs, strict=True):
            network, target = model.network.to(device).eval(), model.config.target
            assert target is not None
            plan = dataclasses.replace(reading_plan(model.config.plan), rarefy_depth=0)
            known = None if covariates is None else covariates.take(rows)
            inputs, outputs = model.config.inputs(known), []
            for start in range(0, len(rows), BATCH_SIZE):
                part = np.arange(start, min(start + BATCH_SIZE, len(rows)))
                batch = make_batch(changed, plan, part).to(device)
                with torch.no_grad():
                    outputs_BC = apply_to_batch(network, batch, *of_asvs, inputs)[1]
                assert outputs_BC is not None
                outputs.append(outputs_BC.float().cpu())
            decoded_NC = target.decode(torch.cat(outputs))
            values.append(
                decoded_NC if target.classes else target.point_predictions(decoded_NC)[:, None]
            )
        mean_NC: F64 = np.mean(values, axis=0)
        return mean_NC

    return {name: estimator(name) for name in loaded.models} | {TRANSFORMER: transformer}
