"""Models on the samples of a run: metrics with confidence intervals, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aam.contract.errors import DataError
from aam.data.metrics import ScoredPredictions, compute_metrics
from aam.members.evaluation import sentence
from aam.members.scores import Draws, Score, draw_groups, draw_metrics
from aam.report.run import Run

OWN, GUESS = "this model", "guess"
_TITLES = {"ensemble": OWN, "dummy": GUESS, "forest": "random forest",
           "kernel": "sequence kernel"}  # fmt: skip


@dataclass(frozen=True)
class ModelComparison:
    """Comparison of models on the samples that a run scored.

    Attributes:
        metrics: model -> metric -> value with its interval; the first model is that of the run.
        sentences: about differences of the run's model from others, and about other samples.
        chance: verdict of scores.json; "" without that file.
    """

    metrics: Mapping[str, Mapping[str, Score]]
    sentences: tuple[str, ...]
    chance: str


def compare_models(run: Run) -> ModelComparison | None:
    """Compare the model of a run with a guess, its members and its baselines; None without labels.

    Guess and members have their metrics in scores.json, a baseline in its folder.

    Args:
        run: run folder, with its baselines.

    Raises:
        DataError: scores.json and predictions.tsv contradict each other.
    """
    if run.scored is None:
        return None
    names = [run.groups.get(name, name) for name in run.sample_ids]
    draws = draw_groups(np.array(names))
    column = run.option("split", "group_column")
    units = (
        f"{draws.groups} groups of {column}" if run.groups and column else f"{draws.groups} samples"
    )
    metrics: dict[str, Mapping[str, Score]] = {}
    sentences: list[str] = []
    if run.scores is None:
        metrics[OWN] = _metrics(run.scored, draws)
    else:
        # A page must not show the metrics of one file beside the predictions of another: either may
        # have been edited.
        _check_scores(run, run.scores, run.scored)
        for name, model in run.scores["models"].items():
            values = model["metrics"].items()
            metrics[_TITLES.get(name, name)] = {metric: _stored(one) for metric, one in values}
        stored = [one for one in run.scores["differences"] if one["model"] == "ensemble"]
        sentences += [one["sentence"].replace("ensemble", OWN, 1) for one in stored]
    for baseline in run.baselines:
        name = baseline.model
        # The random forest of scores.json is a member, which reads other columns.
        if run.scores is not None and name in _TITLES.values():
            name += " (aam baseline)"
        if baseline.column != run.target:
            sentences.append(f"the {name} predicts another column ({baseline.column})")
        elif baseline.scored is None:
            sentences.append(f"the {name} was scored on other samples and is not compared")
        else:
            metrics[name] = _metrics(baseline.scored, draws)
            if all(map(_has_intervals, (run.scored, baseline.scored))):
                own, other = (draw_metrics(one, draws) for one in (run.scored, baseline.scored))
                metric, value = own.ahead_of(other)
                sentences.append(sentence(OWN, f"the {name}", metric, value, units))
    shown = tuple(f"{text[:1].upper()}{text[1:]}." for text in sentences)
    chance = "" if run.scores is None else run.scores["verdict"]["sentence"]
    return ModelComparison(metrics, shown, chance)


def _check_scores(run: Run, scores: Mapping[str, Any], scored: ScoredPredictions) -> None:
    """Refuse scores that are not those of the predictions.

    Raises:
        DataError: naming the first difference.
    """
    stored = {name: one["value"] for name, one in scores["models"]["ensemble"]["metrics"].items()}
    stored["samples"] = scores["samples"]
    for name, value in compute_metrics(scored).items():
        if name in stored and not _agree(stored[name], value):
            raise DataError(
                "The files scores.json and predictions.tsv contradict each other",
                f"'{run.folder}', {name}: {stored[name]} and {value}",
                "restore the file that was edited, or remove scores.json: the report is then "
                "computed from predictions.tsv",
            )


def _agree(stored: float | None, found: float | None) -> bool:
    if stored is None or found is None:
        return stored is found
    return math.isclose(stored, found, rel_tol=1e-3, abs_tol=1e-3)


def _metrics(scored: ScoredPredictions, draws: Draws) -> dict[str, Score]:
    plain = {name: Score(value, None, None) for name, value in compute_metrics(scored).items()}
    del plain["samples"]
    return plain | draw_metrics(scored, draws).score() if _has_intervals(scored) else plain


def _has_intervals(scored: ScoredPredictions) -> bool:
    """Return whether the metrics with an interval can be computed: those of classes need them."""
    return scored.type != "classification" or scored.probabilities is not None


def _stored(stored: Mapping[str, float | None]) -> Score:
    return Score(stored.get("value"), stored.get("lower"), stored.get("upper"))
