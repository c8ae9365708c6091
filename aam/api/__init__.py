"""Python interface: load models, scikit-learn estimators, UniFrac of tables in memory.

The names are attributes of `aam` itself (`aam.load`, `aam.AAMRegressor`), imported on first use.
Errors are those of `aam.contract.errors`. Nothing is printed: messages go to the logger `aam`,
warnings to the module `warnings` as `AamWarning`.
"""

from aam.api.distances import unifrac
from aam.api.estimators import AAMClassifier, AAMRegressor
from aam.api.model import Model, load
from aam.console import AamWarning

__all__ = ["AAMClassifier", "AAMRegressor", "AamWarning", "Model", "load", "unifrac"]
