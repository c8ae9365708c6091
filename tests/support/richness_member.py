"""Made-up member: linear regression on the number of ASVs of a sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aam.arrays import F64, Rows, Tokens
from aam.contract.options.groups import DeviceOptions
from aam.data.covariates import CovariateEncoder
from aam.evaluation.labels import Labels
from aam.members.member import Estimator, FittedModel, Importance, Outputs
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from aam.serialization.model_folder import State, numbers


@dataclass(frozen=True)
class Richness:
    """Number of ASVs of N samples."""

    asvs_N: F64

    def take(self, rows: Rows) -> Richness:
        return Richness(self.asvs_N[rows])


@dataclass(frozen=True)
class RichnessModel(FittedModel[Richness]):
    """Slope and intercept, float64 [2]."""

    line: F64

    @property
    def encoder(self) -> CovariateEncoder | None:
        return None

    def predict(self, inputs: Richness) -> F64:
        return np.asarray(np.polyval(self.line, inputs.asvs_N)[:, None])

    def importance(
        self, inputs: Richness, tokens_UL: Tokens, relations: AsvRelations, outputs: Outputs
    ) -> Importance:
        size_U = np.full(len(tokens_UL), abs(self.line[0]))
        return Importance({"richness": size_U}, size_U)

    def state(self) -> State:
        return State({}, {"line": self.line})


class RichnessRegression(Estimator[Richness]):
    """Least squares."""

    def read(self, samples: Samples, relations: AsvRelations) -> Richness:
        return Richness(np.diff(samples.counts.indptr).astype(np.float64))

    def fit(self, inputs: Richness, labels: Labels, seed: int) -> RichnessModel:
        return RichnessModel(np.polyfit(inputs.asvs_N, labels.values, 1))

    def restore(
        self, state: State, asvs: int, outputs: int, device: DeviceOptions
    ) -> RichnessModel:
        return RichnessModel(numbers(state.arrays, "line", 2))


MEMBER = RichnessRegression()
