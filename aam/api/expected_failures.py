"""Checks of scikit-learn that the estimators fail by design, with the reason of each.

>>> from sklearn.utils.estimator_checks import check_estimator
>>> import aam.api
>>> model = aam.AAMRegressor(sequences=dna)  # doctest: +SKIP
>>> check_estimator(  # doctest: +SKIP
...     model, expected_failed_checks=aam.api.EXPECTED_FAILED_CHECKS
... )
"""

from __future__ import annotations

_FRACTIONS = "draws fractional numbers, and the estimator takes counts of reads alone"
_MESSAGE = "draws fractional numbers in a sparse matrix, and the refusal names the counts"

EXPECTED_FAILED_CHECKS = {
    **dict.fromkeys(
        (
            "check_classifiers_classes",
            "check_classifiers_train",
            "check_dict_unchanged",
            "check_dont_overwrite_parameters",
            "check_dtype_object",
            "check_estimators_dtypes",
            "check_estimators_fit_returns_self",
            "check_estimators_nan_inf",
            "check_estimators_overwrite_params",
            "check_estimators_pickle",
            "check_f_contiguous_array_estimator",
            "check_fit2d_1feature",
            "check_fit2d_predict1d",
            "check_fit_check_is_fitted",
            "check_fit_idempotent",
            "check_fit_score_takes_y",
            "check_methods_sample_order_invariance",
            "check_methods_subset_invariance",
            "check_n_features_in",
            "check_n_features_in_after_fitting",
            "check_pipeline_consistency",
            "check_readonly_memmap_input",
            "check_regressor_data_not_an_array",
            "check_regressors_int",
            "check_regressors_no_decision_function",
            "check_regressors_train",
            "check_supervised_y_2d",
        ),
        _FRACTIONS,
    ),
    "check_estimator_sparse_array": _MESSAGE,
    "check_estimator_sparse_matrix": _MESSAGE,
    "check_estimator_sparse_tag": _MESSAGE,
}
"""Name of a check -> reason, the argument `expected_failed_checks` of `check_estimator`.

The same checks on counts pass, see `tests/api/test_sklearn.py`."""
