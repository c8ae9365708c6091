"""Made-up member with a prediction that is no number, which cannot be scored."""

from __future__ import annotations

from typing import Any

import numpy as np

from aam.arrays import F64
from tests.support.richness_member import Richness, RichnessModel, RichnessRegression


class _UndefinedModel(RichnessModel):
    def predict(self, inputs: Richness) -> F64:
        return np.where(np.arange(len(inputs.asvs_N))[:, None], super().predict(inputs), np.nan)


class _UndefinedRegression(RichnessRegression):
    def fit(self, *given: Any) -> RichnessModel:
        return _UndefinedModel(super().fit(*given).line)


MEMBER = _UndefinedRegression()
