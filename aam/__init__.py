"""Attention All Microbes: models that predict from tables of amplicon sequence variants (ASVs).

>>> import aam
>>> model = aam.AAMRegressor().fit(table, ages)  # doctest: +SKIP
>>> model.scores_["verdict"]["sentence"]  # doctest: +SKIP

`AAMRegressor` and `AAMClassifier` follow scikit-learn. `load` reads a model of `aam train`; `Model`
predicts, explains, plots and writes the report. docs/python.md shows all of it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aam.api import (
        AAMClassifier,
        AAMRegressor,
        AamWarning,
        Model,
        compare,
        inspect,
        join_studies,
        load,
        unifrac,
    )

from aam.contract.version import __version__

__all__ = [
    "AAMClassifier",
    "AAMRegressor",
    "AamWarning",
    "Model",
    "__version__",
    "compare",
    "inspect",
    "join_studies",
    "load",
    "unifrac",
]


def __getattr__(name: str) -> Any:
    """Import the Python interface on first use: the launcher imports this package without torch."""
    if name not in __all__:
        raise AttributeError(f"module 'aam' has no attribute '{name}'")
    from aam import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return __all__
