"""Python interface: load models, scikit-learn estimators, UniFrac of tables in memory.

The names are attributes of `aam` itself (`aam.load`, `aam.AAMRegressor`), imported on first use.
Errors are those of `aam.contract.errors`. Messages go to the logger `aam`, warnings to the module
`warnings` as `AamWarning`; long work shows its progress on standard error or in the notebook cell.
"""

import importlib
from typing import TYPE_CHECKING, Any

from aam.console import AamWarning

if TYPE_CHECKING:
    from aam.api.arguments import unifrac
    from aam.api.estimators import AAMClassifier, AAMRegressor
    from aam.api.inspection import inspect
    from aam.api.joined_studies import join_studies
    from aam.api.model import Model, compare, load

_MODULES = {
    "AAMClassifier": "estimators",
    "AAMRegressor": "estimators",
    "Model": "model",
    "compare": "model",
    "inspect": "inspection",
    "join_studies": "joined_studies",
    "load": "model",
    "unifrac": "arguments",
}

__all__ = [
    "AAMClassifier",
    "AAMRegressor",
    "AamWarning",
    "Model",
    "compare",
    "inspect",
    "join_studies",
    "load",
    "unifrac",
]


def __getattr__(name: str) -> Any:
    """Import a name on first use: a model of kernel and forest needs no PyTorch."""
    if name not in _MODULES:
        raise AttributeError(f"module 'aam.api' has no attribute '{name}'")
    return getattr(importlib.import_module(f"aam.api.{_MODULES[name]}"), name)
