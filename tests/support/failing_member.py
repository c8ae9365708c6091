"""Made-up member that fails after the training: in its importance, and where it is refitted."""

from __future__ import annotations

from typing import Any

from aam.evaluation.folds import Folds
from aam.members.member import CrossValidated, Importance, TrainingSamples
from tests.support.richness_member import Richness, RichnessModel, RichnessRegression


class _FailingModel(RichnessModel):
    def importance(self, inputs: Richness, *others: Any) -> Importance:
        raise ZeroDivisionError("importance of nothing")


class _FailingRegression(RichnessRegression):
    def cross_validate(
        self,
        samples: TrainingSamples,
        folds: Folds,
        final: bool = True,
        inputs_of: str = "",
        weighed: bool = False,
    ) -> CrossValidated:
        if not final:
            raise ZeroDivisionError("studies of nothing")
        return super().cross_validate(samples, folds, final, inputs_of, weighed)

    def fit(self, *given: Any) -> RichnessModel:
        return _FailingModel(super().fit(*given).line)


MEMBER = _FailingRegression()
