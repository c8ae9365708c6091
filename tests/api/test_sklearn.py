"""Scikit-learn's own checks of an estimator, on `AAMRegressor` and `AAMClassifier`."""

from __future__ import annotations

import inspect
import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError, UnsetMetadataPassedError
from sklearn.feature_selection import SelectKBest
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from aam import AAMClassifier, AAMRegressor, AamWarning, TransformerOptions
from aam.contract.errors import DataError, UsageError
from aam.contract.options import specs
from aam.contract.options.commands.train import Train
from aam.contract.options.groups import TRANSFORMER

_letters = random.Random(1)
_dna = ["".join(_letters.choices("ACGT", k=24)) for _ in range(120)]
DNA = {f"{start}{column}": dna for column, dna in enumerate(_dna) for start in ("x", "")}
"""By column: of an array (x0), and of the DataFrames of the checks (0)."""
NETWORK = TransformerOptions(
    epochs=1,
    embedding_dim=8,
    attention_heads=2,
    attention_layers=1,
    profile_features=8,
    batch_size=8,
    rarefy_depth=0,
    device="cpu",
)
SMALL = {"sequences": DNA, "members": "transformer", "evaluate": False, "network": NETWORK}
SCORE = "needs a score that a network of width 8 does not reach in one epoch on random DNA"
FEW = "its ten samples leave training or validation samples of one value"
NOT_APPLICABLE = {
    "Regressor": {"check_regressors_train": SCORE},
    "Classifier": {"check_classifiers_train": SCORE, "check_fit2d_1feature": FEW},
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


KERNEL = {"sequences": DNA, "members": "kernel", "evaluate": False}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::aam.AamWarning")
@parametrize_with_checks(
    [Regressor(**KERNEL)], expected_failed_checks=lambda _: {"check_fit2d_1feature": FEW}
)
def test_checks_of_a_regressor_of_kernels(
    estimator: BaseEstimator, check: Callable[[BaseEstimator], None]
) -> None:
    check(estimator)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::aam.AamWarning")
@parametrize_with_checks(
    [Regressor(**SMALL)], expected_failed_checks=lambda _: NOT_APPLICABLE["Regressor"]
)
def test_checks_of_a_regressor(
    estimator: BaseEstimator, check: Callable[[BaseEstimator], None]
) -> None:
    check(estimator)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::aam.AamWarning")
@parametrize_with_checks(
    [Classifier(**SMALL)], expected_failed_checks=lambda _: NOT_APPLICABLE["Classifier"]
)
def test_checks_of_a_classifier(
    estimator: BaseEstimator, check: Callable[[BaseEstimator], None]
) -> None:
    check(estimator)


def _study() -> tuple[pd.DataFrame, pd.Series, pd.Series]:
    """Return a table of 24 samples without ids, targets, and six groups."""
    draws = np.random.default_rng(1)
    table = pd.DataFrame(draws.poisson(20, (24, 12)), columns=_dna[:12])
    table.iloc[:, 0] += np.arange(24) * 5
    return table, pd.Series(np.arange(24.0), name="ph"), pd.Series(np.arange(24) // 4)


def test_groups_are_routed_to_fit_and_to_the_splitter() -> None:
    table, target, groups = _study()
    model = AAMRegressor(members="kernel", folds=2)
    with sklearn.config_context(enable_metadata_routing=True):
        given = {"cv": GroupKFold(3), "params": {"groups": groups}}
        with pytest.raises(UnsetMetadataPassedError, match="groups"):
            cross_val_score(model, table, target, **given)
        routed = model.set_fit_request(groups=True)
        found = cross_validate(routed, table, target, return_estimator=True, **given)
    assert np.isfinite(found["test_score"]).all()
    for estimator in found["estimator"]:
        assert estimator.model_.loaded.facts.options["split"]["group_column"] == "group"


def test_rows_without_ids_are_known_by_their_reads() -> None:
    table, target, _ = _study()
    with warnings.catch_warnings():
        warnings.simplefilter("error", AamWarning)
        fitted = AAMRegressor(members="kernel", folds=2).fit(table, target)
    other = table.sample(frac=1, axis=1, random_state=0).set_axis(table.columns, axis=1)
    assert set(fitted.model_.predict(other)["split"]) == {"new"}
    with pytest.warns(AamWarning, match="24 of 24 samples trained this model"):
        found = fitted.model_.predict(table)
    assert set(found["split"]) == {"train"}
    assert found.index.tolist() == [str(row) for row in range(24)]
    assert fitted.feature_names_in_.tolist() == _dna[:12]
    assert fitted.feature_names_in_.dtype == object
    dna = dict(zip((f"x{column}" for column in range(12)), _dna, strict=False))
    fitted.set_params(sequences=dna).fit(table.to_numpy(), target)
    assert not hasattr(fitted, "feature_names_in_")


def test_groups_are_a_column_of_the_metadata() -> None:
    table, target, groups = _study()
    table.index = target.index = [f"s{row}" for row in range(24)]
    metadata = pd.DataFrame({"subject": groups.to_numpy()}, table.index).astype(str)
    given = {"members": "kernel", "folds": 2, "metadata": metadata}
    model = AAMRegressor(**given, group_column="subject")
    with pytest.raises(NotFittedError, match="AAMRegressor has no scores_ before fit"):
        _ = model.scores_
    by_option = model.fit(table, target)
    by_name = AAMRegressor(**given).fit(table, target, groups="subject")
    assert by_name.splits_.equals(by_option.splits_)
    assert by_name.scores_["group_column"] == "subject"
    with pytest.raises(UsageError, match="No such column for the groups: 'sbject'"):
        AAMRegressor(**given).fit(table, target, groups="sbject")


def test_series_with_types_of_pandas_are_labels() -> None:
    table, target, _ = _study()
    model = AAMClassifier(members="kernel", evaluate=False, sequences=dict(enumerate(_dna[:12])))
    table.columns = range(12)  # names that are numbers, as those of `sequences`
    for labels in ((target > 11).astype("boolean"), (target > 11).astype("Int64")):
        found = model.fit(table, labels).predict(table)
        assert found.dtype == labels.dtype.numpy_dtype
        assert (found == labels.to_numpy()).mean() > 0.8
    sites = (target > 11).map({False: "sick", True: "well"}).astype("string")
    assert set(model.fit(table, sites).predict(table)) == {"sick", "well"}
    for missing in (sites.where(target != 3), target.where(target != 3).astype("Float64")):
        with pytest.raises(ValueError, match=r"contains NaN: 1 \(3\); leave these samples out"):
            model.fit(table, missing)


def test_common_slips_of_a_notebook_are_named() -> None:
    table, target, _ = _study()
    table.index = target.index = [f"s{row}" for row in range(24)]
    metadata = pd.DataFrame({"sample-id": table.index, "site": "a"})
    with_types = metadata.set_index("sample-id").rename(index={"s0": "#q2:types"})
    model = AAMRegressor(members="kernel", evaluate=False)
    for given, message in (
        (metadata, r"no sample ids: .*; give metadata.set_index\('sample-id'\)"),
        (with_types, r"#q2:types.*; leave out the row of types of QIIME 2, such as by skiprows"),
    ):
        with pytest.raises(DataError, match=message):
            model.set_params(metadata=given).fit(table, target)
    with pytest.raises(UsageError, match=r"A name in place of y: 'ph'; .* adata.obs\['ph'\]"):
        model.set_params(metadata=None).fit(table, "ph")
    with pytest.raises(DataError, match=r"Targets that are words: 2 \(a, b\); use AAMClassifier"):
        model.fit(table, ["a", "b"] * 12)
    with pytest.raises(DataError, match=r"A transposed table: .*; give samples x features"):
        model.fit(table.T, np.zeros(table.shape[1]))
    # A warning is of the line that called, and names what Python has.
    with pytest.warns(AamWarning, match="held-out samples are in oof_predictions_") as warned:
        model.fit(table, target).predict(table)
    assert {warning.filename for warning in warned} == {__file__}


def test_an_array_of_a_pipeline_names_the_output_of_dataframes() -> None:
    table, target, _ = _study()
    model = AAMRegressor(members="kernel", evaluate=False)
    steps = make_pipeline(SelectKBest(k=10), model)
    with pytest.raises(DataError, match=r'set_output\(transform="pandas"\)'):
        steps.fit(table, target)
    steps.set_output(transform="pandas").fit(table, target).predict(table)


def test_the_positive_class_of_a_classifier() -> None:
    table, target, _ = _study()
    labels = (target > 11).map({False: "sick", True: "well"})
    model = AAMClassifier(members="kernel", folds=2, positive_class="sick").fit(table, labels)
    assert model.scores_["classes"] == ["well", "sick"]
    assert model.classes_.tolist() == ["sick", "well"]
    probabilities = model.predict_proba(table)
    assert (model.predict(table) == model.classes_[probabilities.argmax(axis=1)]).all()


def test_parameters_are_the_options_of_train() -> None:
    """Names, defaults and types; others are arguments of `fit`, or of several processes."""
    options = {spec.field: spec for spec in specs(Train)}
    own = {"evaluate": None, "verbose": None, "network": None, "random_state": "seed"}
    for constructor in (AAMRegressor, AAMClassifier, TransformerOptions):
        for name, parameter in inspect.signature(constructor).parameters.items():
            assert parameter.annotation is not parameter.empty
            if (option := own.get(name, name)) is not None:
                assert parameter.default == options[option].default, name
    # Every option of the network alone is in its record.
    of_network = {name for name, spec in options.items() if spec.only_for == TRANSFORMER}
    of_processes = {"tuned_for"}
    assert of_network - of_processes <= set(inspect.signature(TransformerOptions).parameters)
    documentation = inspect.getdoc(AAMRegressor) or ""
    described = re.findall(r"^(\w+(?:, \w+)*) : ", documentation, re.MULTILINE)
    names = {name for names in described for name in names.split(", ")}
    assert set(inspect.signature(AAMRegressor).parameters) < names


@pytest.mark.medium
def test_options_of_the_network_are_a_record_a_dictionary_or_names_of_a_grid() -> None:
    table, target, _ = _study()
    model = AAMRegressor(members="transformer", folds=2, evaluate=False, network=NETWORK)
    assert model.get_params()["network__embedding_dim"] == 8
    assert AAMRegressor().get_params()["network__lr"] == 3e-4
    expected = model.fit(table, target).predict(table)
    given = {name: getattr(NETWORK, name) for name in ("epochs", "embedding_dim", "device")}
    model.set_params(network=given)
    changed = {"batch_size": 8, "attention_heads": 2, "attention_layers": 1}
    changed |= {"profile_features": 8, "rarefy_depth": 0}
    same = clone(model).set_params(**{f"network__{name}": v for name, v in changed.items()})
    assert same.network == NETWORK and model.network is given
    assert (same.fit(table, target).predict(table) == expected).all()
    same.set_params(network__batch_size=4)
    search = GridSearchCV(same, {"network__lr": [1e-4, 1e-2]}, cv=2).fit(table, target)
    assert search.best_estimator_.network.lr == search.best_params_["network__lr"]
    with pytest.raises(UsageError, match="No such option of the network: 'lrr'"):
        same.set_params(network__lrr=1)


@pytest.mark.medium
def test_deprecated_parameters_name_their_place() -> None:
    table, target, _ = _study()
    place = "write network__lr for lr, random_state for seed; "
    with pytest.warns(FutureWarning, match=place) as warned:
        model = AAMRegressor(members="kernel", lr=0.1, seed=7)  # type: ignore[call-arg]
    assert {warning.filename for warning in warned} == {__file__}
    assert model.random_state == 7 and model.network == TransformerOptions(lr=0.1)
    with pytest.warns(FutureWarning, match="write network__epochs for epochs"):
        model.set_params(epochs=3)
    assert model.network == TransformerOptions(lr=0.1, epochs=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        assert clone(model).get_params() == model.get_params()
    search = GridSearchCV(AAMRegressor(members="kernel"), {"seed": [1, 2]}, cv=2)
    with pytest.warns(FutureWarning, match="write random_state for seed"):
        search.fit(table, target)
    assert search.best_estimator_.random_state in (1, 2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'fold'"):
        AAMRegressor(fold=3)  # type: ignore[call-arg]


def test_folds_of_one_class_are_one_warning() -> None:
    table, target, _ = _study()
    labels = (target < 3).map({True: "rare", False: "common"})
    with pytest.warns(AamWarning) as warned:
        AAMClassifier(members="kernel", folds=8, evaluate=False).fit(table, labels)
    messages = [str(warning.message) for warning in warned]
    (of_one_class,) = (text for text in messages if "of one class" in text)
    assert re.search(r"of 8 folds in 5 \((\d, ){4}\d\)", of_one_class)
