"""Attention All Microbes: version, and the Python interface of `aam.api`, imported on first use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aam.api import AAMClassifier as AAMClassifier
    from aam.api import AAMRegressor as AAMRegressor
    from aam.api import AamWarning as AamWarning
    from aam.api import Model as Model
    from aam.api import compare as compare
    from aam.api import inspect as inspect
    from aam.api import join_studies as join_studies
    from aam.api import load as load
    from aam.api import unifrac as unifrac

from aam.contract.version import __version__ as __version__

_API = (
    "AAMClassifier",
    "AAMRegressor",
    "AamWarning",
    "Model",
    "compare",
    "inspect",
    "join_studies",
    "load",
    "unifrac",
)


def __getattr__(name: str) -> Any:
    """Import the Python interface on first use: the launcher imports this package without torch."""
    if name not in _API:
        raise AttributeError(f"module 'aam' has no attribute '{name}'")
    from aam import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_API])
