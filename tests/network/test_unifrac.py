"""UniFrac of a batch: agreement with scikit-bio, and invariants."""

from __future__ import annotations

import io
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse
from skbio import TreeNode
from skbio.diversity import alpha_diversity, beta_diversity

from aam.contract.options.groups import Metric
from aam.data.phylogeny import Phylogeny, read_phylogeny
from aam.data.table import read_table
from aam.network.unifrac import faith_pd, pairwise
from tests.support.trees import Case, cases, random_case

DISTANCES: tuple[Metric, ...] = ("unweighted", "weighted", "weighted_normalized", "generalized")
ALPHAS = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


def phylogeny_of(case: Case) -> Phylogeny:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tree.nwk"
        path.write_text(case.newick)
        return read_phylogeny(path, case.features)[0]


def by_scikit_bio(case: Case, metric: Metric) -> NDArray[np.float64]:
    tree = TreeNode.read(io.StringIO(case.newick), convert_underscores=False)
    weighted = metric != "unweighted"
    options = {"normalized": metric == "weighted_normalized"} if weighted else {}
    name = "weighted_unifrac" if weighted else "unweighted_unifrac"
    with np.errstate(invalid="ignore"):
        made = beta_diversity(
            name, case.counts, taxa=case.features, tree=tree, validate=False, **options
        )
    return np.asarray(made.data)


def by_definition(case: Case, alpha: float) -> NDArray[np.float64]:
    """Generalized UniFrac, branch by branch, from the tree as scikit-bio reads it."""
    tree = TreeNode.read(io.StringIO(case.newick), convert_underscores=False)
    parts = case.counts / np.maximum(case.counts.sum(1, keepdims=True), 1)
    size = len(parts)
    apart, whole = np.zeros((size, size)), np.zeros((size, size))
    for node in tree.traverse(include_self=True):
        below = {tip.name for tip in node.tips(include_self=True)}
        part = parts[:, [name in below for name in case.features]].sum(1)
        both = part[:, None] + part
        with np.errstate(divide="ignore", invalid="ignore"):
            length = (node.length or 0) * (both > 0)
            weight = np.where(both > 0, both**alpha, 0)
            apart += length * np.where(both > 0, weight * abs(part[:, None] - part) / both, 0)
        whole += length * weight
    return np.divide(apart, whole, out=np.zeros_like(apart), where=whole > 0)


@settings(deadline=None)
@given(cases(), st.sampled_from(["unweighted", "weighted", "weighted_normalized"]))
def test_distances_agree_with_scikit_bio(case: Case, metric: Metric) -> None:
    # scikit-bio divides zero by zero where all branches have no length.
    expected = np.nan_to_num(by_scikit_bio(case, metric))
    phylogeny = phylogeny_of(case)
    found = pairwise(case.table, phylogeny, metric)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@settings(deadline=None)
@given(cases(), ALPHAS)
def test_generalized_unifrac_follows_its_definition(case: Case, alpha: float) -> None:
    expected = by_definition(case, alpha)
    phylogeny = phylogeny_of(case)
    found = pairwise(case.table, phylogeny, "generalized", alpha)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@settings(deadline=None)
@given(cases())
def test_faith_pd_agrees_with_scikit_bio(case: Case) -> None:
    tree = TreeNode.read(io.StringIO(case.newick), convert_underscores=False)
    expected = alpha_diversity(
        "faith_pd", case.counts, taxa=case.features, tree=tree, validate=False
    )
    found = faith_pd(case.table, phylogeny_of(case))
    np.testing.assert_allclose(found, expected.to_numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.medium
@settings(deadline=None)
@given(cases(), st.sampled_from(DISTANCES), ALPHAS, st.data())
def test_distances_are_metrics_and_independent_of_the_batch(
    case: Case, metric: Metric, alpha: float, data: st.DataObject
) -> None:
    phylogeny = phylogeny_of(case)
    found = pairwise(case.table, phylogeny, metric, alpha)
    np.testing.assert_array_equal(found, found.T)
    assert not found.diagonal().any()
    assert (found >= 0).all()
    if metric != "weighted":
        assert (found <= 1 + 1e-12).all()
    # Samples may come in any order and any company.
    rows = data.draw(st.permutations(range(len(found))))[: data.draw(st.integers(1, len(found)))]
    part = pairwise(case.table[rows], phylogeny, metric, alpha)
    np.testing.assert_allclose(part, found[rows][:, rows], rtol=1e-12, atol=1e-12)
    # So may features.
    columns = data.draw(st.permutations(range(len(case.features))))
    turned = Case(case.newick, [case.features[c] for c in columns], case.counts[:, columns])
    again = pairwise(turned.table, phylogeny_of(turned), metric, alpha)
    np.testing.assert_allclose(again, found, rtol=1e-12, atol=1e-12)


def test_synonyms_of_a_metric_give_the_same_distances() -> None:
    case = random_case(40, 5, 10, seed=2)
    phylogeny = phylogeny_of(case)
    same: tuple[tuple[Metric, Metric, float], ...]
    same = (("unifrac", "unweighted", 0.5), ("generalized", "weighted_normalized", 1.0))
    for one, other, alpha in same:
        found = pairwise(case.table, phylogeny, one, alpha)
        np.testing.assert_array_equal(found, pairwise(case.table, phylogeny, other))


@pytest.mark.medium
@pytest.mark.parametrize("study", ["ecam", "udca"])
def test_real_studies_agree_with_scikit_bio(study: str) -> None:
    folder = os.environ.get("AAM_SHARED_DATA")
    if not folder:
        pytest.skip("AAM_SHARED_DATA does not name a folder of real studies")
    tree = Path(folder) / study / "tree.nwk"
    table = read_table(Path(folder) / study / "table.biom")
    phylogeny, _ = read_phylogeny(tree, table.feature_ids)
    rows = np.random.default_rng(5).choice(len(table.sample_ids), 8, replace=False)
    batch = table.counts[rows]
    case = Case(tree.read_text(), list(table.feature_ids), batch.toarray())
    for metric in DISTANCES[:3]:
        found = pairwise(sparse.csr_array(batch), phylogeny, metric)
        np.testing.assert_allclose(found, by_scikit_bio(case, metric), atol=1e-12, rtol=1e-12)
