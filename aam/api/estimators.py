"""Scikit-learn estimators: `AAMRegressor` and `AAMClassifier`, `aam train` in memory.

Their parameters have the names and defaults of the options of `aam train`. `TransformerOptions` has
the options of the network; `get_params` and grids name them `network__lr` and so on.
"""
# ruff: noqa: D416  # docstrings as NumPy writes them, whose parameters notebooks show

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_array, check_X_y
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_non_negative

from aam import wings
from aam.api.arguments import (
    MetadataTable,
    Sequences,
    Table,
    Taxonomy,
    arguments,
    as_biom,
    checked_ids,
    is_anndata,
    is_array,
    library_call,
    metadata_ids,
    path_argument,
    require_paths,
    require_type,
    sequences_in_memory,
    short_repr,
)
from aam.api.model import Model, fitted
from aam.api.run_results import IN_MEMORY, Results
from aam.api.transformer_options import TransformerOptions
from aam.console import level_of_caller
from aam.contract.errors import DataError, UsageError, first_few
from aam.contract.options import build, flag_of, values_of
from aam.contract.options.commands.train import Train
from aam.contract.options.conditions import require_consistent
from aam.contract.options.groups import GroupValues, TransformName
from aam.contract.preflight import check_run_folder
from aam.data.metadata import Metadata, as_numbers, read_metadata
from aam.data.table import table_of
from aam.members.option_checks import resolve
from aam.pipeline.labelled_study import label_study, read_study
from aam.pipeline.plan import sequence_length
from aam.pipeline.run import fit, run

E = TypeVar("E", bound=type)


_PLACES = {"seed": "random_state"} | {
    option.name: f"network__{option.name}" for option in fields(TransformerOptions)
}
"""Deprecated parameters of the estimators, and the parameters that replace them."""


def _with_deprecated_parameters(estimator: E) -> E:
    """Let the constructor of a class take deprecated parameters; its signature lacks them."""
    constructor = vars(estimator)["__init__"]

    @functools.wraps(constructor)
    def init(self: Any, **parameters: Any) -> None:
        constructor(self, **{n: v for n, v in parameters.items() if n not in _PLACES})
        self.set_params(**{n: v for n, v in parameters.items() if n in _PLACES})

    setattr(estimator, "__init__", init)  # noqa: B010  # mypy refuses a plain assignment
    return estimator


@dataclass(kw_only=True, eq=False, repr=False)
class _Estimator(BaseEstimator):  # type: ignore[misc]
    """Training of `aam train` on a table in memory."""

    members: str | Sequence[str] = ()
    folds: int | Literal["auto"] = "auto"
    repeats: int | Literal["auto"] = "auto"
    study_column: str | None = None
    group_column: str | None = None
    metadata: MetadataTable = None
    categorical_columns: str | Sequence[str] = ()
    numeric_columns: str | Sequence[str] = ()
    sequences: Sequences = None
    taxonomy: Taxonomy = None
    target_transform: TransformName = "zscore"
    random_state: int = 42
    output_dir: str | PathLike[str] | None = None
    overwrite: bool = False
    evaluate: bool = True
    verbose: bool = True
    network: TransformerOptions | Mapping[str, Any] | None = None
    test_size: float = 0.2
    stratify: bool = True
    splits: str | PathLike[str] | None = None
    group_values: GroupValues = "auto"
    output_min: float | None = None
    output_max: float | None = None
    adjust_for: str | Sequence[str] = ()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; if `deep`, also `network__lr` and so on."""
        parameters: dict[str, Any] = super().get_params(deep=False)
        of_network = self._of_network() if deep else {}
        return parameters | {f"network__{name}": value for name, value in of_network.items()}

    def set_params(self, **params: Any) -> Any:
        """Set parameters, also single options of the network, such as `network__lr`."""
        if deprecated := [name for name in params if name in _PLACES]:
            places = ", ".join(f"{_PLACES[name]} for {name}" for name in deprecated)
            text = "network__lr of set_params and grids is network={'lr': ...} of a new estimator"
            message = f"Deprecated parameters: write {places}; {text}"
            # As scikit-learn: Python shows a DeprecationWarning to few users.
            warnings.warn(message, FutureWarning, stacklevel=level_of_caller())
        params = {_PLACES.get(name, name): value for name, value in params.items()}
        prefix = "network__"
        of_network = {n.removeprefix(prefix): v for n, v in params.items() if n.startswith(prefix)}
        super().set_params(**{n: v for n, v in params.items() if not n.startswith(prefix)})
        if of_network:
            self.network = TransformerOptions.of(self._of_network() | of_network)
        return self

    def _of_network(self) -> dict[str, Any]:
        """Return all options of the network by name, with defaults."""
        record = isinstance(self.network, TransformerOptions)
        options: Any = vars(self.network) if record else self.network
        return {**vars(TransformerOptions()), **(options if isinstance(options, Mapping) else {})}

    def _columns(
        self,
        X: Table,
        path: Path | None,
        ids: list[str],
        groups: Any,
        target: str,
        labels: Sequence[str],
    ) -> tuple[dict[str, list[str]], str | None]:
        """Return metadata columns with the target and the groups, and the column of the groups."""
        columns: dict[str, list[str]] = {}
        if path is not None:
            metadata = read_metadata(path)
            columns = {
                name: [t or "" for t in metadata.texts(name, ids)] for name in metadata.columns
            }
        described = list(columns)
        columns[target] = list(labels)
        if groups is None or isinstance(groups, str):
            group_column = groups or self.group_column
            if group_column not in (None, *described):
                names_of_columns = first_few(described) or "none"
                evidence = f"{group_column!r}, the metadata have {names_of_columns}"
                remedy = "give metadata with this column, or the labels as groups of fit"
                raise UsageError("No such column for the groups", evidence, remedy)
            return columns, group_column
        group_N = np.asarray(_aligned(groups, _ids(X), "groups"))
        if group_N.shape != (len(ids),):
            remedy = f"give {len(ids)} labels, such as the column of a DataFrame"
            raise UsageError("Invalid groups", short_repr(groups), remedy)
        group_column = str(getattr(groups, "name", None) or "group")
        # Under the same name the groups would replace the target.
        group_column += " (groups)" if group_column == target else ""
        columns[group_column] = [str(name) for name in group_N]
        return columns, group_column

    def _train(self, X: Table, y: Any, names: Sequence[str], groups: Any, **target: Any) -> None:
        """Train on the table and the targets `y`, as metadata names them, and load the model."""
        column = str(getattr(y, "name", None) or "target")
        # An earlier fit may have evaluated the model.
        for name in Results._fields:
            self.__dict__.pop(f"{name}_", None)
        # A run without output_dir has a temporary folder.
        title = f"{type(self).__name__}.fit" if self.verbose else ""
        with library_call(title) as files:
            read = as_biom(X)
            ids = metadata_ids(read.ids())
            path = files.metadata(self._metadata(X))
            columns, group_column = self._columns(X, path, ids, groups, column, names)
            records = sequences_in_memory(X, self.sequences)
            output_dir = files.folder / "run"
            if self.output_dir is not None:
                output_dir = path_argument("output_dir", self.output_dir, "None")
            instead = "TransformerOptions, a dictionary or None"
            require_type("network", self.network, TransformerOptions | Mapping | None, instead)
            of_network = vars(TransformerOptions.of(self._of_network()))
            values = {
                **self.get_params(deep=False),
                **of_network,
                "seed": self.random_state,
                "tree": files.tree(of_network["tree"]),
                "taxonomy": files.taxonomy(self.taxonomy),
                "table": X if isinstance(X, (str, PathLike)) else "a table in memory",
                "sequences": records if isinstance(records, Path) else None,
                "metadata": IN_MEMORY,
                "metadata_column": column,
                "group_column": group_column,
                "output_dir": output_dir,
                **target,
            }
            require_type("evaluate", self.evaluate, bool | np.bool_, "True or False")
            checked = arguments(Train, values, {"seed": "random_state"})
            options = build(Train, {flag_of(name): value for name, value in checked.items()})
            require_consistent(options)
            in_memory = self.output_dir is None
            if in_memory and not self.evaluate:
                options = replace(options, repeats=1)  # without scores there is nothing to average
            check_run_folder(output_dir, options.run.overwrite, resumable=False)
            require_paths("train", values_of(options) | {"--metadata": path})
            options = resolve(options)
            # A copy, since `table_of` converts the values in place and the caller keeps them.
            values_NF = sparse.csr_array(read.matrix_data.T, dtype=np.float64, copy=True)
            table = table_of(values_NF, list(ids), list(read.ids("observation")))
            study = read_study(options, sequence_length(options), table, records)
            labelled = label_study(options, study, Metadata(ids, columns))
            # A training seeds PyTorch; the random numbers of the caller stay as they are.
            network = options.uses_network
            with wings.network().own_generators() if network else nullcontext():
                if in_memory and not self.evaluate:
                    trained, verbose = fit(options, labelled), bool(self.verbose)
                    self.model_ = Model(IN_MEMORY, options.device, trained, verbose=verbose)
                    return
                # sys.argv belongs to the program that called this one.
                run(options, labelled, report=not in_memory, facts={"argv": []})
            training_table = labelled.study.table if in_memory else None
            self.model_ = fitted(output_dir, options.device, training_table, bool(self.verbose))
            for name, value in self.model_.results()._asdict().items():
                setattr(self, f"{name}_", value)

    def __getattr__(self, name: str) -> Any:
        if name.removesuffix("_") in (*Results._fields, "model") and name.endswith("_"):
            state = "before fit" if "model_" not in self.__dict__ else "with evaluate=False"
            raise NotFittedError(f"{type(self).__name__} has no {name} {state}.")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _metadata(self, X: Table) -> MetadataTable:
        """Return the metadata; refuse them for samples that have no ids."""
        if self.metadata is not None and is_array(X):
            remedy = "give a DataFrame whose index has the sample ids of the metadata"
            raise UsageError("Metadata of an array, whose samples have no ids", "", remedy)
        if self.metadata is None and is_anndata(X) and len(X.obs.columns):
            return X.obs
        return self.metadata

    def _predict(self, X: Table) -> pd.DataFrame:
        """Predict a table with the trained model."""
        check_is_fitted(self)
        if is_array(X):
            X = self._checked_array(X)
        reads = self.categorical_columns or self.numeric_columns
        # With metadata, row numbers are ids; a model of counts alone treats such samples as new.
        metadata = self._metadata(X) if reads else None
        return self.model_.predict(X, self.sequences, metadata=metadata)

    def _checked_array(self, X: Any) -> Any:
        """Check an array, whose columns have no names, as scikit-learn does."""
        X = check_array(X, accept_sparse="csr")
        check_non_negative(X, type(self).__name__)
        self._require_dna(X)
        # `check_estimator` of scikit-learn compares the type and the text of this error.
        if X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        return X

    def _require_dna(self, X: Any) -> None:
        """Refuse an array whose features have no DNA, as steps of a pipeline return them."""
        if self.sequences is None:
            raise DataError(
                "Features without names or DNA",
                f"an array of {X.shape[1]} columns",
                'call set_output(transform="pandas") of the step before in a pipeline, or give a '
                "pandas DataFrame whose columns are the sequences",
            )

    def _checked(self, X: Table, y: Any, numeric: bool) -> tuple[Table, npt.NDArray[Any]]:
        """Check table and targets as scikit-learn does, and set the attributes of the features.

        Targets with sample ids are put in the order of the table.
        """
        if isinstance(y, str):
            remedy = f"give the labels, such as metadata[{y!r}] or adata.obs[{y!r}]"
            raise UsageError("A name in place of y", repr(y), remedy)
        y = _with_numpy_values(_aligned(y, _ids(X), "y"))
        texts = np.asarray(y).ravel() if numeric and y is not None else np.array([])
        if texts.dtype.kind in "OU" and np.isnan(as_numbers([*map(str, texts)])).all():
            remedy = "use AAMClassifier to predict classes"
            raise DataError("Targets that are words", first_few(np.unique(texts)), remedy)
        checks: dict[str, Any] = {"accept_sparse": "csr", "ensure_min_samples": 2}
        if is_array(X):
            counts, y = check_X_y(X, y, y_numeric=numeric, **checks)
            check_non_negative(counts, type(self).__name__)
            X = counts
            self._require_dna(X)
            self.__dict__.pop("feature_names_in_", None)  # of an earlier fit to a table with ids
        else:
            read = as_biom(X)
            self.feature_names_in_ = np.asarray(read.ids("observation"), dtype=object)
            counts, y = check_X_y(read.matrix_data.T, y, y_numeric=numeric, **checks)
        self.n_features_in_ = counts.shape[1]
        return X, y

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        return tags


@_with_deprecated_parameters
@dataclass(kw_only=True, eq=False, repr=False)
class AAMRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """Regressor of a number from a table of reads: `aam train` for tables in memory.

    Parameters
    ----------
    members : str or sequence of str, default=()
        Models to train and combine: "kernel", "forest", "transformer". () is kernel and forest, or
        the transformer with a pretrained encoder.
    folds : int or "auto", default="auto"
        Folds, each predicted by models of the other folds; 1 is a single split. "auto" is 5, or one
        fold for each group with fewer groups, and 1 with the transformer.
    repeats : int or "auto", default="auto"
        Partitions of the samples into folds, 1 to 1000; scores are their means. "auto" is 5 with
        fewer than 300 samples or 100 groups, else, and with the transformer, 1.
    study_column : str, default=None
        Column of studies: each study is predicted by models of the other studies and scored alone.
        It replaces `folds` and `repeats`.
    group_column : str, default=None
        Column of the metadata, or of `obs` of AnnData, such as subjects: the samples of each group
        stay together in each split. `groups` of `fit` replaces it.
    metadata : path or DataFrame by sample id, default=None
        Metadata of the samples of all tables that the estimator gets. The model reads
        `categorical_columns` and `numeric_columns`; `fit` also looks for columns that predict the
        target by themselves.
    categorical_columns, numeric_columns : str or sequence of str, default=()
        Columns that the model reads besides the counts. Metadata and counts are also scored alone.
    sequences : mapping or Series from feature id to DNA, or path, default=None
        DNA of the features, or a FASTA or .qza file. None: the feature ids are the sequences.
    taxonomy : mapping, DataFrame with the column Taxon, or path, default=None
        Taxon by feature id, for the names of ASVs: also a TSV or .qza file of QIIME 2.
    target_transform : {"none", "minmax", "zscore", "log-minmax", "log-zscore"}, default="zscore"
        Transform of numbers, fitted on training samples and undone in every result.
    random_state : int, default=42
        Seed of splits, forests, weights, masks, rarefaction and sample order.
    output_dir : path, default=None
        Run folder to write, with the report; None writes none.
    overwrite : bool, default=False
        Replace an earlier run in `output_dir`.
    evaluate : bool, default=True
        Score held-out samples with intervals and a permutation test, rank the ASVs, and compute the
        learning curve. False only trains, for `cross_val_score` and `GridSearchCV`, which score by
        themselves. A run folder is always evaluated.
    verbose : bool, default=True
        Show the progress of work of more than two seconds: a bar on a terminal or in a notebook,
        elsewhere a line a minute on standard error; none in the processes of `n_jobs`.
    network : TransformerOptions or dict, default=None
        Options of the transformer, such as {"lr": 1e-3}, and the device.

    Other Parameters
    ----------------
    test_size : float, default=0.2
        Fraction of validation samples, 0 to below 1: with one fold they measure the result, with
        several the transformer stops by them.
    stratify : bool, default=True
        Keep the proportions of the classes in training, validation and test samples.
    splits : path, default=None
        splits.tsv of another run, to use the same training and validation samples.
    group_values : {"auto", "same", "distinct"}, default="auto"
        Whether equal groups of two studies are one subject; "auto" compares their samples.
    output_min, output_max : float, default=None
        Lowest and highest predicted number; predictions beyond a limit become the limit.
    adjust_for : str or sequence of str, default=()
        Columns of the metadata that the associations of ASVs are adjusted for; the score of the
        counts beyond these columns is in `scores_["beyond"]`.

    Attributes
    ----------
    model_ : aam.Model
        Trained model; it predicts, explains, plots and writes the report.
    scores_, oof_predictions_, splits_, importance_
        See `aam.Model.results`; absent with `evaluate=False`.
    n_features_in_ : int
        Features of the training table. New tables may have others: they are read by their DNA.
    feature_names_in_ : ndarray of object [n_features_in_]
        Ids of these features; absent if they have none, as in an array.
    """

    def fit(self, X: Table, y: Any, groups: Any = None) -> AAMRegressor:
        """Train on the samples of a table, and evaluate the model on held-out samples.

        Parameters
        ----------
        X : biom.Table, DataFrame (samples x features), AnnData, array or path
            Reads of N samples.
        y : array of N numbers
            A Series is read by its index, the sample ids, if the table has ids.
        groups : array of N labels or str, default=None
            Labels, read as `y`, or the name of a column of the metadata: samples of one group stay
            together in each split.

        Raises
        ------
        ValueError, AamError
            Table and targets do not fit together, or a parameter is not of its type or range.
        """
        X, values = self._checked(X, y, numeric=True)
        # Targets pass as the text of metadata: `repr` keeps all digits of a float64.
        self._train(X, y, [repr(float(value)) for value in values], groups, classifier=False)
        return self

    def predict(self, X: Table) -> npt.NDArray[np.float64]:
        """Return the predicted numbers, float64 [N], in the units of the targets."""
        predicted_N: npt.NDArray[np.float64] = self._predict(X)["predicted"].to_numpy(np.float64)
        return predicted_N


@_with_deprecated_parameters
@dataclass(kw_only=True, eq=False, repr=False)
class AAMClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """Classifier of samples from a table of reads: `aam train` for tables in memory.

    Parameters
    ----------
    ordinal : sequence of labels, default=()
        All classes in their order, the lowest first, for ordered classes; the predicted class is
        the median of the probabilities.
    positive_class : label, default=None
        Positive class of two, for effects, ROC and calibration. None: the class not called control,
        healthy, no or the like, else the last of `classes_`. Probabilities keep the order of
        `classes_`.
    sensitivity : float, default=None
        The threshold of the positive class is the highest threshold with this sensitivity in
        left-out predictions of the training samples; None: the threshold with the largest Youden's
        J. Scores at this threshold and at 0.5 are in `scores_["thresholds"]`; `predict` uses 0.5.
    members, folds and the others
        See `AAMRegressor`.

    Attributes
    ----------
    classes_ : ndarray
        Class labels, sorted.
    model_ and the others
        See `AAMRegressor`.
    """

    ordinal: Sequence[Any] = ()
    positive_class: Any = None
    sensitivity: float | None = None

    def fit(self, X: Table, y: Any, groups: Any = None) -> AAMClassifier:
        """Train on the samples of a table, and evaluate the model on held-out samples.

        `y` are N class labels; for parameters and errors see `AAMRegressor.fit`. A label that
        means a missing value, such as "NA", is a DataError.
        """
        X, labels = self._checked(X, y, numeric=False)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"A classifier needs two classes or more, y has {len(self.classes_)}")
        names = _class_names(self.classes_)
        levels = tuple(map(str, np.atleast_1d(self.ordinal)))
        positive = None if self.positive_class is None else str(self.positive_class)
        target = {"classifier": not levels, "ordinal": levels, "positive_class": positive}
        self._train(X, y, [names[code] for code in codes], groups, **target)
        self._names = names
        return self

    def predict_proba(self, X: Table) -> npt.NDArray[np.float64]:
        """Return the probability of each class, float64 [N, C], in the order of `classes_`."""
        predicted = self._predict(X)
        predicted = predicted[[f"p_{name}" for name in self._names]]
        # A level of `ordinal` without training samples is not in `classes_`.
        probabilities_NC: npt.NDArray[np.float64] = predicted.div(
            predicted.sum(axis=1), axis=0
        ).to_numpy()
        return probabilities_NC

    def predict(self, X: Table) -> npt.NDArray[Any]:
        """Return the class of each sample: the most probable one, or the median of ordered ones."""
        predicted = self._predict(X)["predicted"]
        label_of = dict(zip(self._names, self.classes_, strict=True))
        # A level of `ordinal` without training samples becomes a label of the same type, text as
        # long as the longest level.
        dtype = self.classes_.dtype
        if dtype.kind == "U":
            dtype = np.result_type(dtype, np.array([*map(str, np.atleast_1d(self.ordinal)), ""]))
        labels = np.array([label_of.get(name, name) for name in predicted], dtype=object)
        return labels.astype(dtype)


def _aligned(values: Any, ids: list[str] | None, argument: str) -> Any:
    """Return a Series or DataFrame in the order of the sample ids, other values as they are."""
    if ids is None or not isinstance(values, (pd.Series, pd.DataFrame)):
        return values
    row_of = {name: row for row, name in enumerate(checked_ids(values.index, "sample"))}
    absent = [name for name in ids if name not in row_of]
    if absent or len(row_of) > len(ids):
        only_in = {"the table": absent, argument: [name for name in row_of if name not in set(ids)]}
        only = [
            f"only {source} has {first_few(names)}" for source, names in only_in.items() if names
        ]
        raise DataError(
            f"{argument} and the table have different sample ids",
            ", ".join(only),
            f"select the same samples of both, or give {argument} as an array in the table's order",
        )
    return values.iloc[[row_of[name] for name in ids]]


def _ids(X: Table) -> list[str] | None:
    """Return the sample ids of a table; None of an array, whose samples have none."""
    return None if is_array(X) else list(as_biom(X).ids())


def _with_numpy_values(y: Any) -> Any:
    """Convert a Series of an extension type of pandas to NumPy values; refuse missing values.

    scikit-learn turns the booleans of pandas into numbers, and cannot compare its missing value.
    """
    if not isinstance(y, pd.Series) or isinstance(y.dtype, np.dtype):
        return y
    if y.hasnans:
        missing = first_few(y.index[y.isna()])
        raise ValueError(f"Input y contains NaN: {missing}; leave these samples out of X and y.")
    return y.astype(getattr(y.dtype, "numpy_dtype", object))


def _class_names(classes: npt.NDArray[Any]) -> list[str]:
    """Return the class labels as text of metadata; refuse a label that means a missing value."""
    texts = [str(label) for label in classes]
    names: list[str] = Metadata(texts, {"class": texts}).values("class", texts).tolist()
    unusable = [
        text
        for text, name in zip(texts, names, strict=True)
        if names.count(name) > 1 or not name or text != text.strip()
    ]
    if unusable:
        remedy = "give each class a name that is no missing value and has no blank at its ends"
        raise DataError("Class labels that metadata cannot hold", first_few(unusable), remedy)
    return names
