"""Class probabilities of the kernel: the order of its regression, never turned round."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from aam.evaluation.labels import Labels
from aam.members.forest import Forest
from aam.members.kernel_ridge import leave_groups_out
from aam.members.member import TrainingSamples
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from benchmarks.class_order import SETTINGS, fold_orders, study


@pytest.mark.medium
@pytest.mark.parametrize("signal", [0.0, 0.7])
@pytest.mark.parametrize("setting", SETTINGS)
def test_probabilities_have_the_order_of_the_regression(setting: str, signal: float) -> None:
    """`benchmarks/class_order.py` has 2,000 studies without signal of each setting."""
    for run in range(4):
        rng = np.random.default_rng([7, run])
        orders = list(fold_orders(*study(rng, *SETTINGS[setting], signal)))
        assert not any(turned for _, _, _, turned in orders)
        constant_aucs = [auc for auc, _, constant, _ in orders if constant and not np.isnan(auc)]
        assert constant_aucs == [0.5] * len(constant_aucs)


def test_strong_signal_is_kept_by_the_probabilities() -> None:
    """A slope of 0 would keep the order of every regression."""
    for setting in ("3 studies", "12 subjects of one class"):
        orders = list(fold_orders(*study(np.random.default_rng(1), *SETTINGS[setting], 4.0)))
        assert not any(constant for _, _, constant, _ in orders)
        assert np.nanmean([auc for auc, *_ in orders]) > 0.9


@pytest.mark.parametrize("groups", [3, 12, 60])
def test_left_out_predictions_follow_random_labels_in_reverse_unless_they_are_moved(
    groups: int,
) -> None:
    """The mean of the other groups is low where the labels of a group are high."""
    plain, moved = [], []
    for run in range(100):
        rng = np.random.default_rng([groups, run])
        labels = random_labels(rng, groups)
        y_NC, features_NP = labels.outputs_NC, rng.normal(size=(60, 20))
        U, values, _ = np.linalg.svd(features_NP - features_NP.mean(axis=0), full_matrices=False)
        shrunk_PK = (values**2 / (values**2 + 100))[None]
        projected = U.T @ (y_NC - y_NC.mean(axis=0))
        left_out_NC = leave_groups_out(U, shrunk_PK, projected, y_NC, labels.groups, np.ones(60))[0]
        plain.append(np.cov(left_out_NC[:, 0], y_NC[:, 0])[0, 1])
        left_out_NC = left_out_NC - labels.means_without_group()
        moved.append(np.cov(left_out_NC[:, 0], y_NC[:, 0])[0, 1])
    assert np.mean(plain) < -3 * np.std(plain) / 10
    assert abs(np.mean(moved)) < 3 * np.std(moved) / 10


@pytest.mark.medium
@pytest.mark.parametrize(("groups", "number"), [(6, 40), (12, 12)])
def test_predictions_outside_the_bag_do_not_follow_random_labels_in_reverse(
    groups: int, number: int
) -> None:
    covariances = []
    for run in range(100):
        rng = np.random.default_rng([groups, run])
        labels, member = random_labels(rng, groups, number), Forest(30, n_jobs=1)
        tokens_FL = rng.integers(1, 5, (10, 20), dtype=np.uint8)
        counts = sparse.csr_array(rng.integers(1, 99, (number, 10)).astype(np.int32))
        samples = TrainingSamples(Samples(counts, tokens_FL), AsvRelations(tokens_FL))
        inputs = samples.inputs(member)
        left_out_NC = member.left_out(member.fit(inputs, labels, run), inputs, labels, run)
        assert left_out_NC is not None
        covariances.append(np.cov(left_out_NC[:, 0], labels.values)[0, 1])
    assert abs(np.mean(covariances)) < 3 * np.std(covariances) / 10


def random_labels(rng: np.random.Generator, groups: int, samples: int = 60) -> Labels:
    """Numbers that vary between groups and within them, and do not depend on anything."""
    group_N = np.arange(samples) % groups
    values = rng.normal(size=groups)[group_N] + 0.3 * rng.normal(size=samples)
    return Labels.of(values, (), [f"g{k:02}" for k in group_N])
