"""Scikit-learn estimators: `AAMRegressor` and `AAMClassifier`, `aam train` in memory.

Their parameters are the options of `aam train`, with the same names and defaults, so that
`GridSearchCV`, `cross_val_score` and pipelines can set them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, make_dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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
    Table,
    aligned,
    arguments,
    as_biom,
    as_parameters,
    is_anndata,
    is_array,
    library_call,
    metadata_file,
    metadata_ids,
    path_argument,
    require_paths,
    sequences_in_memory,
    shown,
    taxonomy_file,
    tree_file,
)
from aam.api.model import IN_MEMORY, Model, Results, fitted
from aam.contract.errors import DataError, UsageError, first_few
from aam.contract.options import build, flag_of, specs, values_of
from aam.contract.options.commands.train import Train
from aam.contract.options.conditions import require_consistent
from aam.contract.preflight import check_run_folder
from aam.data.metadata import Metadata, read_metadata
from aam.data.study import make_study
from aam.data.table import table_of
from aam.data.taxonomy import read_taxonomy, require_common
from aam.members.option_checks import resolve
from aam.pipeline.labelled_study import label_study
from aam.pipeline.plan import sequence_length
from aam.pipeline.run import fit, run

if TYPE_CHECKING:  # scikit-bio takes a CPU-second to import
    pass

E = TypeVar("E", bound=type)

_MEANINGS = {
    "sequences": "DNA by feature id, or a FASTA or .qza file; None if the ids are the sequences.",
    "metadata": "Metadata of the samples of all tables that the estimator gets: a DataFrame by "
    "sample id, or a file. The model reads the columns of `categorical_columns` and "
    "`numeric_columns`; `fit` looks for columns that predict the target by themselves.",
    "group_column": "Column of the metadata, or of `obs` of AnnData, whose samples stay on one "
    "side of each split; `groups` of `fit` replaces it.",
    "positive_class": "The class of two that effects, ROC and calibration are of; None: the one "
    "that is not called control, healthy, no or the like, else the last of `classes_`, in whose "
    "order probabilities stay.",
    "taxonomy": "Taxon by feature id, for the names of ASVs: a dictionary, a DataFrame with the "
    "column Taxon, or a TSV or .qza file of QIIME 2.",
    "tree": "Rooted phylogeny of the ASVs: Newick, .qza or skbio.TreeNode. UniFrac is computed "
    "from it batch by batch.",
    "output_dir": "Run folder to write, with the report; None writes none.",
    "evaluate": "Score the held-out samples, with intervals and a permutation test, rank the ASVs "
    "and draw the learning curve. False: train alone, for `cross_val_score` and `GridSearchCV`, "
    "which score by themselves. A run folder is always evaluated.",
    "verbose": "Show the progress of what takes more than two seconds: a bar on a terminal or in a "
    "notebook, elsewhere a line a minute on standard error; none in the processes of `n_jobs`.",
}
"""Parameters that no option or another type of option describes."""


def _documented(estimator: E) -> E:
    """Add the parameters to the documentation of a class, as their options describe them."""
    options = {spec.field: spec for spec in specs(Train)}
    common, further = "", ""
    for name in (parameter.name for parameter in fields(estimator)):
        text = _MEANINGS.get(name) or as_parameters(options[name].help)
        spec = options.get(name)
        choices = [choice for choice in spec.choices if isinstance(choice, str)] if spec else []
        if name not in _MEANINGS and any(choice not in text for choice in choices):
            text = f"{text.rstrip('.')} ({', '.join(choices)})."
        if spec and spec.takes:
            text = f"{text.rstrip('.')} ({spec.takes.description})."
        entry = textwrap.fill(
            f"{name}: {text}", 96, initial_indent=" " * 8, subsequent_indent=" " * 12
        )
        if name in _MEANINGS or (spec and spec.basic):
            common += f"{entry}\n"
        else:
            further += f"{entry}\n"
    documentation = (estimator.__doc__ or "").rstrip()
    estimator.__doc__ = f"{documentation}\n\n    Args:\n{common}\n    Further args:\n{further}    "
    # The types of the options, such as a path for what may be a DataFrame, are not those here.
    vars(estimator)["__init__"].__annotations__.clear()
    return estimator


_NO_PARAMETERS = {
    # Arguments of `fit`, and those of the classifier alone.
    *("table", "metadata_column", "classifier", "ordinal", "positive_class"),
    *("drop_empty_samples", "max_memory_gb", "where", "equal_depth", "resume_from", "logger"),
    *("checkpoint_every_n_steps", "tuned_for", "loss_config"),
    # Of several processes.
    *("processes", "rank_timeout", "distributed", "fsdp", "fsdp_sharded_checkpoint"),
    "data_parallel",
}
"""Options of `aam train` that are no parameters."""

_Parameters: Any = make_dataclass(
    "_Parameters",
    [
        (spec.field, spec.type, field(default=spec.default))
        for spec in sorted(specs(Train), key=lambda spec: not spec.basic)
        if spec.field not in _NO_PARAMETERS
    ],
    kw_only=True,
    eq=False,
    repr=False,
)


@dataclass(kw_only=True, eq=False, repr=False)
class _Estimator(BaseEstimator, _Parameters):  # type: ignore[misc]
    """Training of `aam train` on a table in memory."""

    evaluate: bool = True
    verbose: bool = True

    def _train(
        self, X: Table, names: Sequence[str], column: str, groups: Any, **target: Any
    ) -> None:
        """Train on the table and the names of the targets, and load the model."""
        # Of an earlier fit, which may have evaluated the model.
        for name in Results._fields:
            self.__dict__.pop(f"{name}_", None)
        if groups is None or isinstance(groups, str):
            groups, group_column = None, groups or self.group_column
        else:
            group_column = str(getattr(groups, "name", None) or "group")
            # The groups would replace the target, whose column has the same name.
            if group_column == column:
                group_column = f"{column} (groups)"
        # The folder is that of a run without another.
        title = f"{type(self).__name__}.fit" if self.verbose else ""
        with library_call(title) as folder:
            read = as_biom(X)
            ids = metadata_ids(read.ids())
            columns: dict[str, list[str]] = {}
            if (path := metadata_file(self._metadata(X), folder)) is not None:
                metadata = read_metadata(path)
                columns = {
                    name: [t or "" for t in metadata.texts(name, ids)] for name in metadata.columns
                }
            if groups is None and group_column is not None and group_column not in columns:
                evidence = f"{group_column!r}, the metadata have {first_few(columns) or 'none'}"
                remedy = "give metadata with this column, or the labels as groups of fit"
                raise UsageError("No such column for the groups", evidence, remedy)
            columns[column] = list(names)
            if groups is not None:
                labels = np.asarray(aligned(groups, _ids(X), "groups"))
                if labels.shape != (len(ids),):
                    remedy = f"give {len(ids)} labels, such as the column of a DataFrame"
                    raise UsageError("Invalid groups", shown(groups), remedy)
                columns[group_column] = [str(label) for label in labels]
            records = sequences_in_memory(X, self.sequences)
            output_dir = folder / "run"
            if self.output_dir is not None:
                output_dir = path_argument("output_dir", self.output_dir, "None")
            values = {
                **self.get_params(deep=False),
                "tree": tree_file(self.tree, folder),
                "taxonomy": taxonomy_file(self.taxonomy, folder),
                "table": X if isinstance(X, (str, PathLike)) else "a table in memory",
                "sequences": records if isinstance(records, Path) else None,
                "metadata": IN_MEMORY,
                "metadata_column": column,
                "group_column": group_column,
                "output_dir": output_dir,
                **target,
            }
            if not isinstance(self.evaluate, bool | np.bool_):
                raise UsageError("Invalid evaluate", repr(self.evaluate), "give True or False")
            checked = arguments(Train, values)
            options = build(Train, {flag_of(name): value for name, value in checked.items()})
            require_consistent(options)
            if not self.evaluate and self.output_dir is None:
                options = replace(options, repeats=1)  # without scores there is nothing to average
            check_run_folder(output_dir, options.run.overwrite, resumable=False)
            require_paths("train", values_of(options) | {"--metadata": path})
            options = resolve(options)
            # A kernel and a forest read no phylogeny, so no ASV is refused for it.
            phylogeny = options.phylogeny if options.uses_network else None
            length = sequence_length(options)
            # A copy, since `table_of` converts the values in place and the caller keeps them.
            values_NF = sparse.csr_array(read.matrix_data.T, dtype=np.float64, copy=True)
            table = table_of(values_NF, list(ids), list(read.ids("observation")))
            study = make_study(table, records, options.input, phylogeny, length)
            if options.taxonomy is not None:
                require_common(read_taxonomy(options.taxonomy), study.table.feature_ids)
            labelled = label_study(options, study, Metadata(ids, columns), options.split)
            # A training seeds PyTorch; the random numbers of the caller stay as they are.
            network = options.uses_network
            with wings.network().own_generators() if network else nullcontext():
                if not self.evaluate and self.output_dir is None:
                    trained, verbose = fit(options, labelled), bool(self.verbose)
                    self.model_ = Model(IN_MEMORY, options.device, trained, verbose=verbose)
                    return
                # The command line is that of the program which called this one.
                in_memory = self.output_dir is None
                run(options, labelled, report=not in_memory, facts={"argv": []})
            kept = labelled.study.table if in_memory else None
            self.model_ = fitted(options.run.output_dir, options.device, kept, bool(self.verbose))
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
        # With metadata, row numbers are ids: without need of them, such samples count as new.
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
        """Refuse an array whose features have no DNA, which steps of a pipeline return."""
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
        y = _with_numpy_values(aligned(y, _ids(X), "y"))
        given: dict[str, Any] = {"accept_sparse": "csr", "ensure_min_samples": 2}
        if is_array(X):
            counts, y = check_X_y(X, y, y_numeric=numeric, **given)
            check_non_negative(counts, type(self).__name__)
            X = counts
            self._require_dna(X)
            self.__dict__.pop("feature_names_in_", None)  # of an earlier fit to a table with ids
        else:
            read = as_biom(X)
            self.feature_names_in_ = np.asarray(read.ids("observation"), dtype=object)
            counts, y = check_X_y(read.matrix_data.T, y, y_numeric=numeric, **given)
        self.n_features_in_ = counts.shape[1]
        return X, y

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        return tags


@_documented
@dataclass(kw_only=True, eq=False, repr=False)
class AAMRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """Regressor of a number from a table of reads, with the options of `aam train`.

    The table is a `biom.Table`, a DataFrame (samples x features), AnnData or an array. The DNA of
    its features is `sequences`, unless their ids are the sequences.

    >>> from aam import AAMRegressor
    >>> model = AAMRegressor(folds=10).fit(table, ages)  # doctest: +SKIP
    >>> model.predict(new_table)  # doctest: +SKIP

    Attributes:
        model_: the trained `aam.Model`, which predicts, explains, plots and writes the report.
        scores_, oof_predictions_, splits_, importance_: see `aam.Model.results`; absent with
            `evaluate=False`.
        n_features_in_: number of features of the training table. New tables may have others: they
            are read by their DNA.
        feature_names_in_: ids of these features, object [n_features_in_]; a table whose features
            have no ids, such as an array, leaves it out.
    """

    def fit(self, X: Table, y: Any, groups: Any = None) -> AAMRegressor:
        """Train on the samples of a table, and evaluate the model on held-out samples.

        Args:
            X: N samples; see `aam.api.arguments.Table`.
            y: N numbers. A Series is read by its index, the sample ids, where the table has ids.
            groups: N labels, or the name of a column of the metadata; samples of a group are on
                the same side of the split into training and validation samples. A Series is read
                as `y`.

        Returns:
            The estimator.

        Raises:
            ValueError: table and targets do not fit together, or have NaN.
            UsageError: a parameter is not of the type or range of its option, or `groups` are not
                N labels.
            DataError: `y` or `groups` have other sample ids than the table.
            AamError: see `aam train`.
        """
        X, values = self._checked(X, y, numeric=True)
        # Targets pass as the text of metadata: `repr` keeps all digits of a float64.
        names = [repr(float(value)) for value in values]
        column = str(getattr(y, "name", None) or "target")
        self._train(X, names, column, groups, classifier=False)
        return self

    def predict(self, X: Table) -> npt.NDArray[np.float64]:
        """Return the predicted numbers, float64 [N], in the units of the targets.

        Args:
            X: N samples; features that the training table lacks are read by their DNA.

        Raises:
            NotFittedError: `fit` was not called.
            DataError: not a table of reads, or features without DNA.
        """
        predicted_N: npt.NDArray[np.float64] = self._predict(X)["predicted"].to_numpy(np.float64)
        return predicted_N


@_documented
@dataclass(kw_only=True, eq=False, repr=False)
class AAMClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """Classifier of samples from a table of reads, with the options of `aam train`.

    With `ordinal` the classes are ordered, and the predicted one is the median of their
    probabilities.

    Attributes:
        classes_: the class labels, sorted.
        model_ and the others: see `AAMRegressor`.
    """

    ordinal: Sequence[Any] = ()
    positive_class: Any = None

    def fit(self, X: Table, y: Any, groups: Any = None) -> AAMClassifier:
        """Train on the samples of a table, and evaluate the model on held-out samples.

        Args:
            X, groups: see `AAMRegressor.fit`.
            y: N class labels; a Series is read by its index.

        Raises:
            ValueError: table and labels do not fit together, or the labels are numbers of a
                regression.
            DataError: see `AAMRegressor.fit`; a label means a missing value, such as "NA".
        """
        X, labels = self._checked(X, y, numeric=False)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"A classifier needs two classes or more, y has {len(self.classes_)}")
        names = _class_names(self.classes_)
        column = str(getattr(y, "name", None) or "target")
        levels = tuple(map(str, np.atleast_1d(self.ordinal)))
        positive = None if self.positive_class is None else str(self.positive_class)
        target = {"classifier": not levels, "ordinal": levels, "positive_class": positive}
        self._train(X, [names[code] for code in codes], column, groups, **target)
        self._names = names
        return self

    def predict_proba(self, X: Table) -> npt.NDArray[np.float64]:
        """Return the probability of each class, float64 [N, C], in the order of `classes_`."""
        predicted = self._predict(X)
        predicted = predicted[[f"p_{name}" for name in self._names]]
        # A level of `ordinal` that no training sample has is no class.
        probabilities_NC: npt.NDArray[np.float64] = predicted.div(
            predicted.sum(axis=1), axis=0
        ).to_numpy()
        return probabilities_NC

    def predict(self, X: Table) -> npt.NDArray[Any]:
        """Return the class of each sample: the most probable one, or the median of ordered ones."""
        predicted = self._predict(X)["predicted"]
        label_of = dict(zip(self._names, self.classes_, strict=True))
        # A level of `ordinal` that no training sample has becomes a label of the same type; of text
        # the longest level decides it.
        dtype = self.classes_.dtype
        if dtype.kind == "U":
            dtype = np.result_type(dtype, np.array([*map(str, np.atleast_1d(self.ordinal)), ""]))
        labels = np.array([label_of.get(name, name) for name in predicted], dtype=object)
        return labels.astype(dtype)


def _ids(X: Table) -> list[str] | None:
    """Return the sample ids of a table; None of an array, whose samples have none."""
    return None if is_array(X) else list(as_biom(X).ids())


def _with_numpy_values(y: Any) -> Any:
    """Return a Series of a type that pandas alone has with the values of NumPy, if none is missing.

    scikit-learn makes numbers of its booleans, and cannot compare its missing value.
    """
    if not isinstance(y, pd.Series) or isinstance(y.dtype, np.dtype):
        return y
    if y.hasnans:
        missing = first_few(y.index[y.isna()])
        raise ValueError(f"Input y contains NaN: {missing}; leave these samples out of X and y.")
    return y.astype(getattr(y.dtype, "numpy_dtype", object))


def _class_names(classes: npt.NDArray[Any]) -> list[str]:
    """Return the class labels as metadata has them; none may mean a missing value."""
    texts = [str(label) for label in classes]
    names: list[str] = Metadata(texts, {"class": texts}).values("class", texts).tolist()
    wrong = [
        text
        for text, name in zip(texts, names, strict=True)
        if names.count(name) > 1 or not name or text != text.strip()
    ]
    if wrong:
        raise DataError(
            "Class labels that metadata cannot hold",
            first_few(wrong),
            "give each class a name that is no missing value and has no blank at its ends",
        )
    return names
