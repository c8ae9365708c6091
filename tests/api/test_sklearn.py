"""Scikit-learn's own checks of an estimator, on `AAMRegressor` and `AAMClassifier`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import parametrize_with_checks

from aam import AAMClassifier, AAMRegressor

_letters = random.Random(1)
_dna = ["".join(_letters.choices("ACGT", k=24)) for _ in range(120)]
DNA = {f"{start}{column}": dna for column, dna in enumerate(_dna) for start in ("x", "")}
"""By column: of an array (x0), and of the DataFrames of the checks (0)."""
SMALL = {
    "sequences": DNA,
    "epochs": 1,
    "embedding_dim": 8,
    "attention_heads": 2,
    "attention_layers": 1,
    "profile_features": 8,
    "batch_size": 8,
    "rarefy_depth": 0,
    "device": "cpu",
    "members": ("transformer",),
}
SCORE = "needs a score that a network of width 8 does not reach in one epoch on random DNA"
NOT_APPLICABLE = {
    "Regressor": {"check_regressors_train": SCORE},
    "Classifier": {
        "check_classifiers_train": SCORE,
        "check_fit2d_1feature": "its ten samples leave validation samples of one class",
    },
}


class _Counts:
    """The checks draw fractional numbers, which are no reads: they become counts from 1 on.

    Everything before (the checks of the input) and after (training, prediction) is unchanged.
    """

    def _checked(self, X: Any, y: Any, numeric: bool) -> tuple[Any, Any]:
        X, y = super()._checked(X, y, numeric)  # type: ignore[misc]
        return _counts(X), y

    def _checked_array(self, X: Any) -> Any:
        return _counts(super()._checked_array(X))  # type: ignore[misc]

    def _predict(self, X: Any) -> Any:
        return super()._predict(_counts(X) if isinstance(X, pd.DataFrame) else X)  # type: ignore[misc]

    def __repr__(self) -> str:
        return type(self).__name__


def _counts(X: Any) -> Any:
    return np.rint(100 * (X.toarray() if sparse.issparse(X) else X)) + 1


class Regressor(_Counts, AAMRegressor):
    pass


class Classifier(_Counts, AAMClassifier):
    pass


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::aam.AamWarning")
@parametrize_with_checks(
    [Regressor(**SMALL), Classifier(**SMALL)],
    expected_failed_checks=lambda estimator: NOT_APPLICABLE[type(estimator).__name__],
)
def test_checks_of_scikit_learn(
    estimator: BaseEstimator, check: Callable[[BaseEstimator], None]
) -> None:
    check(estimator)
