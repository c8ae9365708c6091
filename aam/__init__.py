"""Attention All Microbes: models that predict from tables of amplicon sequence variants (ASVs).

>>> import aam
>>> model = aam.AAMRegressor().fit(table, ages)  # doctest: +SKIP
>>> model.scores_["verdict"]["sentence"]  # doctest: +SKIP

`AAMRegressor` and `AAMClassifier` follow scikit-learn. `load` reads a model of `aam train`; `Model`
predicts, explains, plots and writes the report. docs/python.md shows all of it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from aam.contract.version import __version__

if TYPE_CHECKING:
    from aam.api.estimators import AAMClassifier, AAMRegressor
    from aam.api.model import Model, compare, load
    from aam.api.studies import inspect, join_studies, unifrac
    from aam.api.transformer_options import TransformerOptions
    from aam.console import AamWarning

_MODULES = {
    "AAMClassifier": "api.estimators",
    "AAMRegressor": "api.estimators",
    "AamWarning": "console",
    "Model": "api.model",
    "TransformerOptions": "api.transformer_options",
    "compare": "api.model",
    "inspect": "api.studies",
    "join_studies": "api.studies",
    "load": "api.model",
    "unifrac": "api.studies",
}

__all__ = [
    "AAMClassifier",
    "AAMRegressor",
    "AamWarning",
    "Model",
    "TransformerOptions",
    "__version__",
    "compare",
    "inspect",
    "join_studies",
    "load",
    "unifrac",
]


def __getattr__(name: str) -> Any:
    """Import a name on first use: the launcher, and a kernel and a forest, need no PyTorch."""
    if name not in _MODULES:
        raise AttributeError(f"module 'aam' has no attribute '{name}'")
    return getattr(importlib.import_module(f"aam.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
