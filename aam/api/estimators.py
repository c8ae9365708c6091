"""Scikit-learn estimators: `AAMRegressor` and `AAMClassifier`, `aam train` in memory.

Their parameters are the options of `aam train`, with the same names and defaults, so that
`GridSearchCV`, `cross_val_score` and pipelines can set them.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_array, check_X_y
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_non_negative

from aam.api.arguments import aligned, argument, metadata_ids, path_argument, shown
from aam.api.model import Model, load
from aam.api.parameters import PARAMETERS, Parameters, documented
from aam.api.tables import (
    Table,
    as_biom,
    is_array,
    sequences_in_memory,
    table_in_memory,
    tree_file,
)
from aam.console import as_library
from aam.contract.errors import DataError, UsageError, first_few
from aam.contract.options import from_plain
from aam.contract.options.commands.train import Train
from aam.contract.options.contradictions import require_consistent
from aam.contract.suggestions import nearest
from aam.data.metadata import Metadata
from aam.data.study import make_study
from aam.members.option_checks import resolve
from aam.pipeline.run import fit, run
from aam.pipeline.session import sequence_length
from aam.report.page import write_reports
from aam.training.labelled_study import LabelledStudy, label_study

IN_MEMORY = Path("in memory")
"""Path of a table and of labels that are no files, in the record of the options."""


class _Estimator(Parameters, BaseEstimator):  # type: ignore[misc]
    """Training of `aam train` on a table in memory.

    Attributes:
        model_: the trained `aam.Model`.
        n_features_in_: number of features of the training table. New tables may have others: they
            are read by their DNA.
        feature_names_in_: ids of these features, object [n_features_in_]; a table whose features
            have no ids, such as an array, leaves it out.
    """

    @functools.wraps(Parameters.__init__)  # type: ignore[misc]
    def __init__(self, **parameters: Any) -> None:
        known = [field.name for field in dataclasses.fields(Parameters)]
        if unknown := [name for name in parameters if name not in known]:
            remedy = nearest(unknown[0], known, "`aam train --help-all` lists them")
            raise UsageError(f"{type(self).__name__} has no parameter", unknown[0], remedy)
        super().__init__(**parameters)

    def _train(
        self, X: Table, names: Sequence[str], column: str, groups: Any, classifier: bool
    ) -> None:
        """Train on the table and the names of the targets, and load the model."""
        columns = {column: list(names)}
        group_column = _name(groups, "group")
        # The groups would replace the target, whose column has the same name.
        if group_column == column:
            group_column = f"{column} (groups)"
        ids = metadata_ids(as_biom(X).ids())
        if groups is not None:
            columns[group_column] = _group_names(aligned(groups, _ids(X), "groups"), len(ids))
        records = sequences_in_memory(X, self.sequences)
        # The folder for a tree in memory, and for the checkpoints of a network without another.
        with tempfile.TemporaryDirectory(prefix="aam-") as temporary, as_library():
            folder = Path(temporary)
            output_dir = folder / "run" if self.output_dir is None else self.output_dir
            given = {
                spec.field: argument(Train, spec.field, getattr(self, spec.field))
                for spec in PARAMETERS
                if spec.field != "tree"
            }
            values = given | {
                "tree": tree_file(self.tree, folder),
                "table": Path(X) if isinstance(X, (str, PathLike)) else IN_MEMORY,
                "sequences": records if isinstance(records, Path) else None,
                "metadata": IN_MEMORY,
                "metadata_column": column,
                "classifier": classifier,
                "group_column": None if groups is None else group_column,
                "output_dir": path_argument("output_dir", output_dir, "None"),
            }
            options = from_plain(Train, _nested(Train, values))
            require_consistent(options)
            options = resolve(options)
            labelled = self._labelled(X, records, Metadata(ids, columns), options)
            # A training seeds PyTorch; the random numbers of the caller stay as they are.
            with torch.random.fork_rng():
                if self.output_dir is None:
                    self.model_ = Model(IN_MEMORY, options.device, fit(options, labelled))
                    return
                run(options, labelled)
            write_reports([options.run.output_dir])
            self.model_ = load(options.run.output_dir, options.device.device)

    def _labelled(
        self,
        X: Table,
        records: Path | Mapping[str, str] | None,
        metadata: Metadata,
        options: Train,
    ) -> LabelledStudy:
        """Return the table with sequences, phylogeny and labels."""
        # A kernel and a forest read no phylogeny, so no ASV is refused for it.
        phylogeny = options.phylogeny if options.uses_network else None
        length = sequence_length(options)
        study = make_study(table_in_memory(X), records, options.input, phylogeny, length)
        return label_study(options, study, metadata, options.split)

    def _predict(self, X: Table) -> pd.DataFrame:
        """Predict a table with the trained model."""
        check_is_fitted(self)
        if is_array(X):
            X = self._checked_array(X)
        return self.model_.predict(X, self.sequences)

    def _checked_array(self, X: Any) -> Any:
        """Check an array, whose columns have no names, as scikit-learn does."""
        X = check_array(X, accept_sparse="csr")
        check_non_negative(X, type(self).__name__)
        # `check_estimator` of scikit-learn compares the type and the text of this error.
        if X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        return X

    def _checked(self, X: Table, y: Any, numeric: bool) -> tuple[Table, npt.NDArray[Any]]:
        """Check table and targets as scikit-learn does, and set the attributes of the features.

        Targets with sample ids are put in the order of the table.
        """
        y = aligned(y, _ids(X), "y")
        if is_array(X):
            X, y = check_X_y(X, y, accept_sparse="csr", y_numeric=numeric, ensure_min_samples=2)
            check_non_negative(X, type(self).__name__)
            counts = X
            # An earlier fit to a table with ids has set it.
            if hasattr(self, "feature_names_in_"):
                delattr(self, "feature_names_in_")
        else:
            read = as_biom(X)
            counts = read.matrix_data.T
            self.feature_names_in_ = np.asarray(read.ids("observation"), dtype=object)
            _, y = check_X_y(
                counts, y, accept_sparse="csr", y_numeric=numeric, ensure_min_samples=2
            )
        self.n_features_in_ = counts.shape[1]
        return X, y

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        return tags


@documented
class AAMRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """Regressor of a number from a table of reads, with the options of `aam train`.

    The table is a `biom.Table`, a DataFrame (samples x features), AnnData or an array. The DNA of
    its features is `sequences`, unless their ids are the sequences.

    >>> from aam import AAMRegressor
    >>> model = AAMRegressor(epochs=20).fit(table, ages)  # doctest: +SKIP
    >>> model.predict(new_table)  # doctest: +SKIP
    """

    def fit(self, X: Table, y: Any, groups: Any = None) -> AAMRegressor:
        """Train on the samples of a table.

        Args:
            X: N samples; see `aam.api.tables.Table`.
            y: N numbers. A Series is read by its index, the sample ids, where the table has ids.
            groups: N labels; samples of a group are on the same side of the split into training
                and validation samples. A Series is read as `y`.

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
        self._train(X, names, _name(y, "target"), groups, classifier=False)
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


@documented
class AAMClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """Classifier of samples from a table of reads, with the options of `aam train`.

    Attributes:
        classes_: the class labels, sorted.
    """

    def fit(self, X: Table, y: Any, groups: Any = None) -> AAMClassifier:
        """Train on the samples of a table.

        Args:
            X: N samples; see `aam.api.tables.Table`.
            y: N class labels; a Series is read as in `AAMRegressor.fit`.
            groups: N labels, see `AAMRegressor.fit`.

        Returns:
            The estimator.

        Raises:
            ValueError: table and labels do not fit together, or the labels are numbers of a
                regression.
            DataError: see `AAMRegressor.fit`; a label means a missing value, such as "NA".
            AamError: see `aam train`.
        """
        X, labels = self._checked(X, y, numeric=False)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"A classifier needs two classes or more, y has {len(self.classes_)}")
        names = _class_names(self.classes_)
        self._train(X, [names[code] for code in codes], _name(y, "target"), groups, classifier=True)
        self._names = names
        return self

    def predict_proba(self, X: Table) -> npt.NDArray[np.float64]:
        """Return the probability of each class, float64 [N, C], in the order of `classes_`."""
        found = self._predict(X)
        columns = [f"p_{name}" for name in self._names]
        probabilities_NC: npt.NDArray[np.float64] = found[columns].to_numpy(np.float64)
        return probabilities_NC

    def predict(self, X: Table) -> npt.NDArray[Any]:
        """Return the most probable class of each sample."""
        probabilities_NC = self.predict_proba(X)
        found: npt.NDArray[Any] = self.classes_[probabilities_NC.argmax(axis=1)]
        return found


def _ids(X: Table) -> list[str] | None:
    """Return the sample ids of a table; None of an array, whose samples have none."""
    return None if is_array(X) else list(as_biom(X).ids())


def _group_names(groups: Any, samples: int) -> list[str]:
    """Return the group of each sample as text.

    Raises:
        UsageError: it is not one label for each sample.
    """
    labels = np.asarray(groups)
    if labels.shape != (samples,):
        remedy = f"give {samples} labels, such as the column of a DataFrame"
        raise UsageError("Invalid groups", shown(groups), remedy)
    return [str(label) for label in labels]


def _name(values: Any, otherwise: str) -> str:
    """Return the name of a Series, for messages and the report."""
    return str(getattr(values, "name", None) or otherwise)


def _class_names(classes: npt.NDArray[Any]) -> list[str]:
    """Return the class labels as metadata has them.

    Raises:
        DataError: a label means a missing value, or two labels are the same text.
    """
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


def _nested(options_class: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Arrange option values by the groups of a command."""
    return {
        field.name: _nested(field.type, values)  # type: ignore[arg-type]
        if dataclasses.is_dataclass(field.type)
        else values[field.name]
        for field in dataclasses.fields(options_class)
        if dataclasses.is_dataclass(field.type) or field.name in values
    }
