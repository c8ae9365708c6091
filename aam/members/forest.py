"""Forest estimator: scikit-learn's random forest on relative abundances of ASVs and clades.

A forest splits on one feature at a time, so it needs many splits for an effect that related ASVs
share. Clades are average-linkage clusters of the sequences; they need no tree. A fitted forest is
stored as arrays of its nodes, and this module applies them.

T trees; further shape suffixes: see `samples`.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.cluster.hierarchy import fcluster

from aam.arrays import F64, Rows, Tokens
from aam.console import info
from aam.contract.options.groups import DeviceOptions
from aam.contract.records import Count, Mismatch, convert
from aam.data.covariates import CovariateEncoder, Covariates
from aam.evaluation.labels import Labels
from aam.evaluation.permutation import EXACT_KERNEL
from aam.evaluation.splits import REPEATS, SMALL_SAMPLES
from aam.members.member import (
    Estimator,
    ExplainedSamples,
    FittedModel,
    Importance,
    Outputs,
    SampleEffects,
)
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from aam.serialization.model_folder import State, indices, numbers

LEVELS = (0.03, 0.1)  # largest mean fraction of positions at which two ASVs of a clade differ

WITH_COVARIATES = 0.3
"""Fraction of the columns among which a node chooses with metadata: with a tenth, few splits would
consider a single decisive column (docs/experiments/members.md)."""

BAG, FRACTION = 1000, 0.4
"""Samples that a tree draws of more than `EXACT_KERNEL`, and the fraction of the trees that is then
grown (docs/experiments/members.md)."""

_MAX_DENSE = 2**29
"""Bytes up to which columns are dense: up to half the time for numbers, the same for classes."""

_FAR = 1e4  # mean of a target in standard deviations, above which it is subtracted
_AT_ONCE = 256  # samples whose abundances are dense in memory


@dataclass(frozen=True)
class ForestInputs:
    """Abundances of samples."""

    abundances: sparse.csr_array  # float32 [N, F], relative, of the ASVs of the training study
    covariates: Covariates | None = None  # metadata columns; None without any
    clades_VF: Rows | None = None  # by `clades`; None for samples of another study or ASVs alone
    bag: int | None = None  # samples that a tree draws; None for as many as there are

    def take(self, rows: Rows) -> ForestInputs:
        covariates = self.covariates and self.covariates.take(rows)
        return dataclasses.replace(self, abundances=self.abundances[rows], covariates=covariates)

    def columns(self, clades_VF: Rows | None, encoder: CovariateEncoder | None) -> sparse.csr_array:
        """Return the abundances of the ASVs, of G clades, and P covariates, [N, F + G + P]."""
        blocks = [self.abundances]
        if clades_VF is not None:
            blocks.append(self.abundances @ membership(clades_VF))
        if encoder is not None:
            assert self.covariates is not None
            # scikit-learn's trees read float32; thresholds have to be compared with the same bits.
            features_NW = encoder.features_NW(self.covariates).astype(np.float32)
            blocks.append(sparse.csr_array(features_NW))
        return sparse.csr_array(sparse.hstack(blocks, format="csr"))


class _ForestSettings(msgspec.Struct):
    covariates: CovariateEncoder | None
    bag: Count | None = None


@dataclass(frozen=True)
class ForestModel(FittedModel[ForestInputs]):
    """Nodes of all trees, one tree after the other; a child comes after its parent."""

    roots: Rows  # [T], first node of each tree
    # left, right: int64 [nodes], children; the node itself for a leaf
    left: Rows
    right: Rows
    # [nodes], column of `ForestInputs.columns` that decides, of the F ASVs first; 0 for a leaf
    asvs: Rows
    thresholds: F64  # [nodes], largest abundance that leads to the left
    values: F64  # [nodes, C], predictions of a leaf
    encoder: CovariateEncoder | None = None  # encoder of the covariates; None without any
    clades_VF: Rows | None = None  # clades of the ASVs, see `clades`; None to read the ASVs alone
    bag: int | None = None  # samples that a tree drew; None for as many as there were
    # out-of-bag predictions of the training samples (`Estimator.left_out`), not stored; None with
    # groups, since the bag has other samples of the same group
    left_out_NC: F64 | None = None

    @property
    def settings(self) -> str:
        share = Forest.max_features if self.encoder is None else WITH_COVARIATES
        return (
            f"{len(self.roots)} trees, {share:.0%} of the features at a node, at least "
            f"{Forest.min_samples_leaf} samples in a leaf"
            + ("" if self.bag is None else f", {self.bag} samples drawn for each tree")
        )

    def predict(self, inputs: ForestInputs) -> F64:
        predictions = [np.empty((0, self.values.shape[1]))]
        for levels in self.descents(inputs):
            *_, leaves = levels
            predictions.append(self.values[leaves].mean(axis=1))
        return np.concatenate(predictions)

    def impurity_decrease(self, inputs: ForestInputs) -> F64:
        """Return the importance of each ASV, [F]: its fraction of the impurity decrease.

        The sum is 1, or less with covariates. The fraction of a clade is divided among its ASVs by
        their mean abundance. A node decreases the squared error or the Gini impurity; the decrease
        follows from the stored values of its children and the samples that reach them. As in
        scikit-learn, each tree has the same weight. Without any decrease all fractions are 0.
        """
        nodes = len(self.left)
        samples_of = np.zeros(nodes)
        samples_of[self.roots] = len(inputs.abundances.indptr) - 1
        for levels in self.descents(inputs):
            for node, child in pairwise(levels):
                samples_of += np.bincount(child[child != node], minlength=nodes)
        # A node has one parent: all samples that reach the left child come from it.
        to_left = samples_of[self.left]
        # A split lowers variance or Gini impurity by |mean left - mean right|² n_left n_right / n,
        # so that no labels are needed.
        between = np.square(self.values[self.left] - self.values[self.right]).sum(axis=1)
        decrease = between * to_left * (samples_of - to_left) / samples_of.clip(min=1)
        tree = np.searchsorted(self.roots, np.arange(nodes), side="right") - 1
        total = np.bincount(tree, decrease)[tree]
        share = np.divide(decrease, total, out=np.zeros(nodes), where=total > 0)
        mean_F = np.asarray(inputs.abundances.mean(axis=0, dtype=np.float64))
        member_FG = self._clade_members(len(mean_F))
        asvs, columns = member_FG.shape[0], sum(member_FG.shape)
        share_of = np.bincount(self.asvs, share, minlength=columns) / max(share.sum(), 1e-300)
        part_of_reads_G = share_of[asvs:columns] / (mean_F @ member_FG).clip(1e-300)
        importance_F: F64 = share_of[:asvs] + mean_F * (member_FG @ part_of_reads_G)
        return importance_F

    def descents(self, inputs: ForestInputs) -> Iterator[Iterator[Rows]]:
        """Yield the levels of each block of samples."""
        columns = inputs.columns(self.clades_VF, self.encoder)
        for start in range(0, columns.shape[0], _AT_ONCE):
            yield self._levels(columns[start : start + _AT_ONCE].toarray())

    def _levels(self, abundances: npt.NDArray[np.float32]) -> Iterator[Rows]:
        """Yield the node of each sample in each tree, [n, T], from the roots to the leaves."""
        node = np.tile(self.roots, (len(abundances), 1))
        sample = np.arange(len(abundances))[:, None]
        yield node
        while ((lower_child := self.left[node]) != node).any():
            lower = abundances[sample, self.asvs[node]] <= self.thresholds[node]
            node = np.where(lower, lower_child, self.right[node])
            yield node

    def importance(
        self, inputs: ForestInputs, tokens_UL: Tokens, relations: AsvRelations, outputs: Outputs
    ) -> Importance:
        importance_U = np.zeros(len(tokens_UL))
        rows, columns = relations.known(tokens_UL)
        importance_U[rows] = self.impurity_decrease(inputs)[columns]
        return Importance({"forest": importance_U}, importance_U)

    def explain(
        self,
        inputs: ForestInputs,
        explained: ExplainedSamples,
        relations: AsvRelations,
        outputs: Outputs,
    ) -> SampleEffects:
        # The changes of the mean label along the decision paths, by the column that decides. The
        # change by a clade is divided among its ASVs by the reads of the sample.
        member_FG = self._clade_members(inputs.abundances.shape[1])
        columns = inputs.columns(self.clades_VF, self.encoder)
        (samples, asvs), width, trees = inputs.abundances.shape, columns.shape[1], len(self.roots)
        sums_NM = np.zeros((samples, width))
        start = 0
        for levels in self.descents(inputs):
            places, changes, last = [], [], 0
            for node, child in pairwise(levels):
                last = len(node)
                rows = np.arange(last)[:, None]
                codes = explained.class_N[start : start + last][:, None]
                moved = child != node
                places.append((rows * width + self.asvs[node])[moved])
                changes.append((self.values[child, codes] - self.values[node, codes])[moved])
            if places:
                flat, size = np.concatenate(places), last * width
                block = np.bincount(flat, np.concatenate(changes), minlength=size)
                sums_NM[start : start + last] = block.reshape(last, width) / trees
            start += last
        if not outputs.classes:
            root = self.values[self.roots, 0].mean()
            sums_NM *= explained.slopes(outputs, root + sums_NM.sum(axis=1, keepdims=True))
        after_clades = asvs + member_FG.shape[1]
        # All ASVs of a clade without reads get the same share.
        reads_NF = inputs.abundances.toarray().astype(np.float64) + 1e-9
        share_NG = sums_NM[:, asvs:after_clades] / (member_FG.T @ reads_NF.T).T
        effects_NV = np.zeros((samples, len(explained.joint.tokens_FL)))
        effects_NV[:, :asvs] = sums_NM[:, :asvs] + reads_NF * (member_FG @ share_NG.T).T
        encoder = self.encoder
        metadata = {} if encoder is None else encoder.by_column(sums_NM[:, after_clades:])
        return SampleEffects(effects_NV, metadata)

    def _clade_members(self, asvs: int) -> sparse.csr_array:
        """Return which ASVs are in which clade; no clade of a forest that reads ASVs alone."""
        none_VF = np.empty((0, asvs), dtype=np.int64)
        return membership(none_VF if self.clades_VF is None else self.clades_VF)

    def state(self) -> State:
        encoder = self.encoder and dataclasses.asdict(self.encoder)
        arrays = {name: value for name, value in vars(self).items() if value is not None}
        for name in ("encoder", "bag", "left_out_NC"):
            arrays.pop(name, None)
        settings = {"covariates": encoder} | ({} if self.bag is None else {"bag": self.bag})
        return State(settings, arrays)


@dataclass(frozen=True)
class Forest(Estimator[ForestInputs]):
    """Random forest of scikit-learn (Breiman 2001)."""

    n_estimators: int = 200  # number of trees
    # fraction of the columns among which a node chooses, above 0 to 1; with metadata at least
    # `WITH_COVARIATES`
    max_features: float = 0.1
    min_samples_leaf: int = 2  # samples in a leaf, at least
    largest: int = EXACT_KERNEL  # samples of a study up to which a tree draws as many as there are
    bag: int = BAG  # samples that a tree draws in a larger study
    n_jobs: int = -1  # threads; -1 for all CPUs

    def read(self, samples: Samples, relations: AsvRelations) -> ForestInputs:
        trained_on = samples.tokens_FL is relations.tokens_FL
        relative = samples.relative
        if not trained_on:
            rows, columns = relations.known(samples.tokens_FL)
            shape = (len(samples.tokens_FL), len(relations.tokens_FL))
            indicator = sparse.csr_array((np.ones(len(rows), np.float32), (rows, columns)), shape)
            relative = sparse.csr_array(relative @ indicator)
        if not trained_on:
            return ForestInputs(relative, samples.covariates)
        bag = None
        if (number := relative.shape[0]) > self.largest:
            bag = self.bag
            info(
                f"Forest: each tree draws {bag} of the {number} samples, and reads the ASVs and "
                f"clades that at least {self.min_samples_leaf} of these are expected to have."
            )
        return ForestInputs(relative, samples.covariates, clades(relations), bag)

    def fit(self, inputs: ForestInputs, labels: Labels, seed: int) -> ForestModel:
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        forest_class = RandomForestClassifier if labels.classes else RandomForestRegressor
        grouped = len(np.unique(labels.groups)) < len(labels.groups)
        encoder = CovariateEncoder.fit(inputs.covariates)
        share = self.max_features if encoder is None else max(self.max_features, WITH_COVARIATES)
        # Folds of a small study are repeated `REPEATS` times, but studies are left out once: with
        # 200 trees the seed alone changes an AUC by 0.03 (benchmarks/members.py).
        small = labels.studies is not None and len(labels.values) < SMALL_SAMPLES
        forest = forest_class(
            max(1, int(self.n_estimators * (FRACTION if inputs.bag else REPEATS if small else 1))),
            max_features=share,
            min_samples_leaf=self.min_samples_leaf,
            random_state=seed,
            n_jobs=self.n_jobs,
            oob_score=not grouped,
            max_samples=inputs.bag,
        )
        matrix = inputs.columns(inputs.clades_VF, encoder)
        # A column that fewer samples have than a leaf needs cannot be split. Without these columns,
        # 39 % and 61 % in two studies, the matrix is more often small enough to be dense.
        having = np.bincount(matrix.indices, minlength=matrix.shape[1])
        # In a bag of some of the samples, fewer are expected to have it.
        drawn = (inputs.bag or len(labels.values)) / len(labels.values)
        splittable = having * drawn >= self.min_samples_leaf
        # scikit-learn refuses a matrix without columns.
        used_columns = np.flatnonzero(splittable | ~splittable.any())
        matrix = matrix[:, used_columns]
        shift, scale = 0.0, 1.0
        if not labels.classes:
            # scikit-learn splits no node with a variance below 2.2e-16, and a variance as a
            # difference of squares has no digits left if the target is far from 0: the trees would
            # depend on the unit. A power of two rounds nothing, so ties are broken as without it.
            mean, std = float(labels.values.mean()), float(labels.values.std())
            shift = mean if abs(mean) > _FAR * std else 0.0
            scale = 2.0 ** round(math.log2(std)) if std > 0 else 1.0
        with warnings.catch_warnings():
            # Classes with few samples, and samples that are in every bag, are accepted. Warning
            # filters do not suffice: the threads of scikit-learn 1.9 reset each other's filters.
            warnings.simplefilter("ignore")
            warnings.showwarning = lambda *_, **__: None
            forest.fit(
                matrix.toarray() if 4 * np.prod(matrix.shape) < _MAX_DENSE else as_csc(matrix),
                labels.values.astype(np.int64)
                if labels.classes
                else (labels.values - shift) / scale,
                # Weights of 1 would draw other bags than none.
                None if labels.studies is None else labels.weights_N,
            )
        model = model_of(forest, labels, used_columns, encoder, inputs.clades_VF)
        model = dataclasses.replace(model, values=model.values * scale + shift, bag=inputs.bag)
        if grouped:
            return model
        y_NC = labels.outputs_NC
        if not labels.classes:
            left_out_NC = forest.oob_prediction_[:, None] * scale + shift
        else:
            left_out_NC = np.zeros_like(y_NC)
            left_out_NC[:, forest.classes_] = np.nan_to_num(forest.oob_decision_function_)
        # Predictions are moved from the mean label of the trees without the sample (the values of
        # their roots) to the mean label of all samples.
        bags = [np.bincount(bag, minlength=len(y_NC)) for bag in forest.estimators_samples_]
        without_TN, means_TC = np.stack(bags) == 0, model.values[model.roots]
        # A sample that is in every bag has no out-of-bag prediction.
        trees_N1 = without_TN.sum(axis=0).clip(min=1)[:, None]
        left_out_NC += labels.mean_C - without_TN.T @ means_TC / trees_N1
        return dataclasses.replace(model, left_out_NC=left_out_NC)

    def left_out(
        self, model: FittedModel[ForestInputs], inputs: ForestInputs, labels: Labels, seed: int
    ) -> F64 | None:
        # The bags of scikit-learn divide groups, so that the trees without a sample have seen its
        # group: in a study of 42 infants out-of-bag predictions preferred the forest in every fold,
        # and the kernel was the better member. With groups, a quarter of the trees is grown on each
        # half of the groups, in a quarter of the time of the fit.
        assert isinstance(model, ForestModel)
        if model.left_out_NC is not None or not labels.several_groups:
            return model.left_out_NC
        smaller = dataclasses.replace(self, n_estimators=max(1, self.n_estimators // 4))
        return smaller.predict_parts(inputs, labels, seed)

    def restore(self, state: State, asvs: int, outputs: int, device: DeviceOptions) -> ForestModel:
        arrays = state.arrays
        thresholds = numbers(arrays, "thresholds", None)
        number = len(thresholds)
        children = (indices(arrays, name, number, number) for name in ("left", "right"))
        left_child, right_child = children
        # A child after its parent, but for leaves: otherwise a descent might not end.
        nodes = np.arange(number)
        leaf = (left_child == nodes) & (right_child == nodes)
        if (((left_child <= nodes) | (right_child <= nodes)) & ~leaf).any():
            raise Mismatch("a node of the forest has a child before it")
        roots = indices(arrays, "roots", number, None)
        settings = convert(state.settings, _ForestSettings, "forest")
        encoder = settings.covariates
        clades_VF = indices(arrays, "clades_VF", len(LEVELS) * asvs + 1, len(LEVELS), asvs)
        columns = asvs + int(clades_VF.max(initial=0)) + (encoder.width if encoder else 0)
        return ForestModel(
            roots,
            left_child,
            right_child,
            indices(arrays, "asvs", columns, number),
            thresholds,
            numbers(arrays, "values", number, outputs),
            encoder,
            clades_VF,
            settings.bag,
        )


MEMBER = Forest()


def as_csc(abundances: sparse.csr_array) -> sparse.csc_matrix:
    """Return what scikit-learn's forests read: a CSC matrix of the old type, 32-bit indices."""
    matrix = sparse.csc_matrix(abundances)
    matrix.indices, matrix.indptr = (a.astype(np.int32) for a in (matrix.indices, matrix.indptr))
    return matrix


def model_of(
    forest: Any,
    labels: Labels,
    columns: Rows,
    encoder: CovariateEncoder | None = None,
    clades_VF: Rows | None = None,
) -> ForestModel:
    """Copy the nodes of a forest that is fitted to the columns `kept`."""
    trees = [estimator.tree_ for estimator in forest.estimators_]
    roots = np.cumsum([0, *(tree.node_count for tree in trees)])[:-1]
    nodes_of = [np.arange(tree.node_count) for tree in trees]
    leaf = [tree.children_left < 0 for tree in trees]

    # A leaf is its own child, so that the samples of all trees descend together until the deepest
    # leaf is reached.
    def children(name: str) -> Rows:
        nodes_of_trees = zip(trees, roots, nodes_of, leaf, strict=True)
        return np.concatenate(
            [
                np.where(end, nodes, getattr(t, name)) + root
                for t, root, nodes, end in nodes_of_trees
            ]
        )

    values = np.concatenate([tree.value[:, 0] for tree in trees])
    if labels.classes:
        # A class without a training sample has no column.
        # Some versions of scikit-learn store counts here, others fractions.
        present = values / values.sum(axis=1, keepdims=True)
        values = np.zeros((len(present), len(labels.classes)))
        values[:, forest.classes_] = present
    ends = np.concatenate(leaf)
    return ForestModel(
        roots.astype(np.int64),
        children("children_left"),
        children("children_right"),
        # scikit-learn marks a leaf by the feature -2.
        np.where(ends, 0, columns[np.concatenate([tree.feature for tree in trees]).clip(min=0)]),
        np.concatenate([tree.threshold for tree in trees]),
        values,
        encoder,
        clades_VF,
    )


def clades(relations: AsvRelations) -> Rows:
    """Return the clade of each ASV at each of the `LEVELS`, int64 [levels, F].

    Clades have the numbers from 1, each level its own; 0 is an ASV that is alone.
    """
    tokens_FL = relations.tokens_FL
    clades_VF = np.zeros((len(LEVELS), len(tokens_FL)), dtype=np.int64)
    if (tree := relations.linkage) is None:
        return clades_VF
    length = (tokens_FL > 0).sum(axis=1).mean()
    for clades_F, level in zip(clades_VF, LEVELS, strict=True):
        labels = fcluster(tree, level * length, "distance")
        shared = np.flatnonzero(np.bincount(labels)[labels] > 1)
        numbers = np.unique(labels[shared], return_inverse=True)[1]
        clades_F[shared] = 1 + clades_VF.max(initial=0) + numbers
    return clades_VF


def membership(clades_VF: Rows) -> sparse.csr_array:
    """Return which ASVs are in which clade, float32 [F, clades] of zeros and ones."""
    level, asv = np.nonzero(clades_VF)
    ones = np.ones(len(asv), dtype=np.float32)
    shape = clades_VF.shape[1], int(clades_VF.max(initial=0))
    return sparse.csr_array((ones, (asv, clades_VF[level, asv] - 1)), shape)
