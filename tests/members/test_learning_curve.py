"""Learning curve of the kernel over the number of groups."""

from __future__ import annotations

import numpy as np
import pytest

from aam.data.splits import make_splits
from aam.members.base import Labels, Samples
from aam.members.evaluation import MIN_GROUPS, learning_curve
from aam.members.kernel import Kernel
from aam.members.member import TrainingSamples
from aam.members.relations import AsvRelations
from aam.members.scores import Folds
from tests.support.run_folders import make_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Samples, np.ndarray, np.ndarray]:
    made = make_study(tmp_path_factory.mktemp("curve") / "study", 120)
    tokens = np.random.default_rng(0).integers(1, 5, (made.counts.shape[1], 20), dtype=np.uint8)
    return Samples(made.counts, tokens), made.ph, np.arange(120) // 2


def test_more_groups_predict_better(study: tuple[Samples, np.ndarray, np.ndarray]) -> None:
    samples, ph, groups = study
    splits = make_splits(120, test_size=0.2, folds=3, seed=0, groups=groups.astype(str).tolist())
    folds = Folds(Labels(ph, (), groups), splits, 0, "subject")
    inputs = TrainingSamples(samples, AsvRelations(samples.tokens_FL))
    found = Kernel().cross_validate(inputs, folds, final=False)
    curve = learning_curve("kernel", Kernel(), inputs, folds, found.predictions_MC)
    assert curve is not None
    assert (curve["model"], curve["metric"], curve["units"]) == (
        "kernel", "r2", "groups of subject",
    )  # fmt: skip
    points = curve["points"]
    assert [point["units"] for point in points] == [MIN_GROUPS + 2, 20, 40]
    assert points[0]["value"] < points[-1]["value"]
    assert points[-1]["value"] == pytest.approx(folds.drawn(found.predictions_MC).whole["r2"])
    assert all(point["lower"] < point["value"] < point["upper"] for point in points)
    difference = points[-1]["value"] - points[-2]["value"]
    assert (
        f"From 20 to 40 groups of subject the R² changes by {difference:+.3f}" in curve["sentence"]
    )


def test_few_groups_have_no_curve(study: tuple[Samples, np.ndarray, np.ndarray]) -> None:
    samples, ph, _ = study
    splits = make_splits(120, test_size=0.2, folds=3, seed=0)
    folds = Folds(Labels(ph, (), np.arange(120) % 12), splits, 0)
    inputs = TrainingSamples(samples, AsvRelations(samples.tokens_FL))
    found = Kernel().cross_validate(inputs, folds, final=False)
    assert learning_curve("kernel", Kernel(), inputs, folds, found.predictions_MC) is None
