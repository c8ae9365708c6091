"""Covariates: encoder fitted to training samples, unknown and missing values, bad columns."""

from __future__ import annotations

import numpy as np
import pytest

from aam.contract.errors import DataError, UsageError
from aam.contract.options.groups import CovariateOptions
from aam.data.covariates import CovariateEncoder, Covariates
from aam.data.metadata import Metadata
from aam.evaluation.splits import Split, check_covariates

IDS = tuple("abcdefgh")
METADATA = Metadata(
    IDS,
    {
        "site": ["gut", "gut", "skin", "skin", "", "mars", "gut", "skin"],
        "season": ["1.0", "1", "2", "2", "1", "2", "1", "2"],
        "a,b": list("xxxxyyyy"),
        "age": ["1", "2", "3", "", "not collected", "6", "7", "8"],
        "subject": list("stuvwxyz"),
        "empty": [""] * 8,
        "depth": ["1,5", *"2345678"],
    },
)


def read(categorical: tuple[str, ...] = (), numeric: tuple[str, ...] = ()) -> Covariates:
    options = CovariateOptions(categorical_columns=categorical, numeric_columns=numeric)
    found = Covariates.read(options, METADATA, IDS, {"--metadata-column": "target"})
    assert found is not None
    return found


def test_columns_are_separated_by_commas_or_spaces() -> None:
    assert read(("site,season", "a,b"), ("age",)).columns == ("site", "season", "a,b", "age")
    assert Covariates.read(CovariateOptions(), METADATA, IDS, {}) is None


def test_the_encoder_is_fitted_to_training_samples_alone() -> None:
    covariates = read(("site",), ("age",))
    encoder = CovariateEncoder.fit(covariates.take(np.arange(4)))
    assert encoder is not None
    assert encoder.categories == {"site": ("gut", "skin")}
    assert encoder.codes_NK(covariates)[:, 0].tolist() == [1, 1, 2, 2, 0, 0, 1, 2]
    standard = encoder.numbers["age"]
    assert (standard.mean, standard.spread) == (2, pytest.approx(np.sqrt(2 / 3)))
    numbers = encoder.numbers_NJ(covariates)
    assert numbers[:, 1].tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    assert numbers[3:6, 0] == pytest.approx([0, 0, 4 / standard.spread])
    features = encoder.features_NW(covariates)
    assert features.shape == (8, encoder.width) == (8, 4)
    assert features[:, :2].tolist() == [
        [1, 0], [1, 0], [0, 1], [0, 1], [0, 0], [0, 0], [1, 0], [0, 1]
    ]  # fmt: skip


def test_columns_of_one_type_alone_are_encoded() -> None:
    for covariates, shapes in (
        (read(("site", "season")), ((8, 2), (8, 0))),
        (read(numeric=("age",)), ((8, 0), (8, 2))),
    ):
        encoder = CovariateEncoder.fit(covariates)
        assert encoder is not None
        found = encoder.codes_NK(covariates), encoder.numbers_NJ(covariates)
        assert tuple(array.shape for array in found) == shapes


def test_a_category_of_one_training_sample_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    encoder = CovariateEncoder.fit(read(("site",)))
    assert encoder is not None
    assert encoder.categories == {"site": ("gut", "skin")}
    shown = " ".join(capsys.readouterr().err.split())
    assert "Categories of 'site' with a single sample count as unknown: 1 (mars)." in shown
    assert "1 without 'site'" in shown


def test_new_samples_are_counted_where_unknown_or_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    encoder = CovariateEncoder.fit(read(("site",), ("age",)))
    assert encoder is not None
    new = Metadata(("n", "m"), {"site": ["gut", "venus"], "age": ["", "3"]})
    capsys.readouterr()
    found = encoder.read(new, ("m", "n", "without a row"))
    assert encoder.codes_NK(found)[:, 0].tolist() == [0, 1, 0]
    shown = " ".join(capsys.readouterr().err.split())
    assert "'site' without training samples count as unknown: 1 of 3 samples, 1 (ven" in shown
    assert "1 without 'site', 2 without 'age'" in shown
    with pytest.raises(DataError, match="lacks columns that the model reads: site, age"):
        encoder.read(Metadata(("n",), {"place": ["gut"]}), ("n",))
    with pytest.raises(DataError, match="'age' of --numeric-columns is not numeric"):
        encoder.read(Metadata(("n",), {"site": ["gut"], "age": ["old"]}), ("n",))


@pytest.mark.parametrize(
    ("categorical", "numeric", "error", "expected"),
    [
        (("site",), ("site",), UsageError, "twice"),
        (("target",), (), UsageError, "The column of --metadata-column cannot be an input"),
        (("city", "town"), (), DataError, "lacks columns that the model reads: city, town"),
        ((), ("site",), DataError, "name it in --categorical-columns"),
        ((), ("depth",), DataError, "1 (1,5); write decimal points, not commas"),
        (("subject",), (), DataError, "No two samples have the same category of 'subject'"),
        (("empty",), (), DataError, "No two samples have the same category of 'empty'"),
    ],
)
def test_bad_columns_are_refused(
    categorical: tuple[str, ...], numeric: tuple[str, ...], error: type[Exception], expected: str
) -> None:
    with pytest.raises(error) as caught:
        read(categorical, numeric)
    assert expected in str(caught.value)


def test_many_different_numbers_are_no_categories() -> None:
    ids = tuple(map(str, range(30)))
    metadata = Metadata(ids, {"age": [str(number) for number in range(30)]})
    with pytest.raises(DataError, match="'age' of --categorical-columns is numeric.*30 different"):
        Covariates.read(CovariateOptions(categorical_columns=("age",)), metadata, ids, {})


def test_folds_without_known_categories_and_constant_targets_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    covariates, none = read(("a,b",)), np.empty(0, dtype=np.int64)
    apart = Split(np.arange(4), none, np.arange(4, 8))
    mixed = Split(np.array([0, 1, 4]), none, np.array([2, 3, 5, 6, 7]))
    check_covariates(covariates, (mixed, apart))
    shown = " ".join(capsys.readouterr().err.split())
    assert "No held-out sample of fold 2 has a category of 'a,b'" in shown
    covariates.warn_of_constant_target(np.array([1.0, 1, 1, 1, 2, 3, 4, 5]), "ph")
    shown = " ".join(capsys.readouterr().err.split())
    assert "'ph' is the same in all samples of 1 of 2 categories of 'a,b' (1 (x))" in shown
