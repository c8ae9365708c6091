"""Evaluation of an ensemble and its members: `Scores`, the content of `scores.json`.

The classes are the scheme of the file. A statement about a model (a verdict, a difference, a
conclusion) is stored with its numbers, and decided here; `Scores.findings` lists all of them for
console, page and models.

AUC, Pearson and Spearman compare samples of the same fold alone (`aam.evaluation.metrics`), so the
guess has an AUC of 0.5. The held-out predictions are in `predictions.tsv`, of several repeats in
`predictions-repeats.tsv`: `fold`, and `predicted`, `lower`, `upper`, `p_<class>` of the ensemble,
and the same columns of each member with the prefix `<member>_`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
from sklearn.metrics import log_loss

from aam.arrays import F64
from aam.contract.errors import first_few
from aam.contract.files import write_json
from aam.contract.records import read_json
from aam.evaluation.calibration import COVERAGE
from aam.evaluation.confounding import Confounder, confounding_sentences
from aam.evaluation.ensemble import Combined
from aam.evaluation.external_validation import ExternalValidation, of_one_class
from aam.evaluation.folds import Folds
from aam.evaluation.intervals import (
    LEVEL,
    NO_SKILL,
    TITLES,
    ResampledMetrics,
    Score,
    units_of_two_classes,
)
from aam.evaluation.learning_curve import LearningCurve, units_to_decide
from aam.evaluation.meta_analysis import MIN_SUMMARISED, StudyScores, score_studies
from aam.evaluation.metrics import compute_metrics
from aam.evaluation.permutation import PermutationTest
from aam.evaluation.splits import MIN_UNITS
from aam.evaluation.study_transfer import StudyDifferences, TransferMatrix
from aam.evaluation.thresholds import ThresholdScores, score_thresholds
from aam.number_format import fixed, significant

ENSEMBLE, GUESS = "ensemble", "guess"

SIGNIFICANT = 0.05
"""Level of the permutation test."""

NO_FILES: Mapping[str, str] = MappingProxyType({})

_UNTESTED = "This model has not been tested on another study"

_BASELINES = {
    "regression": "the training mean",
    "classification": "the training class frequencies",
    "ordinal": "the mean training rank",
}
"""Predictions of the baseline."""


Outcome = Literal["better", "worse", "not better", "undecided"]


@dataclass(frozen=True)
class ModelFinding:
    """Statement about a model; its numbers are the field of `Scores` that it is from."""

    field: str
    text: str
    is_warning: bool = False


@dataclass(frozen=True)
class Verdict:
    """Whether the ensemble is better than the baseline.

    "better": the interval is above 0, the score above that of no skill, and the permutation test
    significant or missing. "worse": the interval is below 0, and the test of the lower tail
    significant or missing. "undecided": there is no interval, or it is above 0 and the test is not
    significant. Else "not better", also where repeated subjects that the split divides explain the
    score.
    """

    sentence: str
    headline: str = ""  # the same in a few words
    outcome: Outcome = "better"
    metric: str = ""
    model: float | None = None  # metric of the ensemble
    guess: float | None = None  # metric of the baseline
    # paired difference of both, and its interval
    difference: float | None = None
    lower: float | None = None
    upper: float | None = None
    p: float | None = None  # of the permutation test of the ensemble's predictions
    shufflings: int = 0  # number of its permutations
    p_worse: float | None = None  # of its lower tail
    units: str = ""  # units of the interval, such as "42 groups of infant"


@dataclass(frozen=True)
class PairedDifference:
    """Paired difference of the first metric of two models."""

    model: str
    reference: str
    sentence: str
    metric: str = ""
    value: float | None = None  # model less reference
    lower: float | None = None
    upper: float | None = None
    beyond_noise: bool = False


@dataclass(frozen=True)
class ModelScores:
    """Scores of a model."""

    metrics: dict[str, Score]  # those without an interval have a value alone
    cpu_seconds: float | None = None  # of a member


@dataclass(frozen=True)
class EnsembleWeights:
    """Weights of the members, of the final model and of each fold, chosen in its training part."""

    model: dict[str, float]
    folds: list[dict[str, float]]  # empty in another study

    @property
    def of_model(self) -> str:
        """How the final model combines its members."""
        weights = self.model
        named = [name for name, weight in weights.items() if weight > 0]
        if len(set(weights.values())) == 1:
            return f"the mean of {' and '.join(named)}"
        if len(named) == 1:
            return f"the {named[0]} alone"
        return " + ".join(f"{weights[name]:.0%} {name}" for name in named)

    @property
    def description(self) -> str:
        """How the final model combines its members, and how the models of the folds do.

        >>> folds = [{"kernel": 0.5, "forest": 0.5}]
        >>> EnsembleWeights({"kernel": 1.0, "forest": 0.0}, folds).description
        'the kernel alone; the models of the folds: kernel 50%, forest 50%'
        """
        text, weights = self.of_model, self.model
        if not self.folds:  # one model, as in another study
            return text
        if all(fold == weights for fold in self.folds):
            return f"{text}, in every fold as well" if len(set(weights.values())) > 1 else text
        ranges = []
        for name in weights:
            low, high = (limit(fold[name] for fold in self.folds) for limit in (min, max))
            ranges.append(f"{name} {low:.0%}" + f" to {high:.0%}" * (high > low))
        return f"{text}; the models of the folds: {', '.join(ranges)}"


@dataclass(frozen=True)
class PredictionIntervals:
    """Prediction intervals of a number or a rank."""

    coverage: float  # part of new samples that are expected inside
    half_width: float
    covered: float  # part of the held-out samples that are inside


@dataclass(frozen=True)
class Calibration:
    """Calibration of the ensemble's probabilities for held-out samples."""

    temperature: float
    log_loss: float
    uncalibrated_log_loss: float


@dataclass(frozen=True)
class RepeatedScore:
    """Scores of the kernel where the split divides repeated subjects, with and without these."""

    sentence: str
    column: str  # column of the subjects
    groups: int  # subjects with several samples
    metric: str
    given: float  # score on this split
    grouped: float  # score with the subjects kept together
    # paired difference of the grouped score and the baseline
    lower: float | None = None
    upper: float | None = None
    better: bool = False  # whether the difference is above 0


@dataclass(frozen=True)
class EqualDepthScore:
    """Score on tables of equal sequencing depth."""

    sentence: str
    confounder: bool  # whether the depth predicts as well as the table
    depth: int  # reads of each sample
    samples: int  # samples that have as many
    metric: str
    plain: float  # score of the same samples with all reads
    value: float
    lower: float | None
    upper: float | None
    better: bool  # whether it is better than the baseline


@dataclass(frozen=True)
class InputScores:
    """Scores of a model that reads metadata columns: by these alone, by the counts, by both."""

    columns: list[str]
    models: dict[str, dict[str, Score]]
    differences: list[PairedDifference]
    conclusion: str
    counts_add: bool = False


@dataclass(frozen=True)
class Performance:
    """Performance of a model, which the model stores for those who use it."""

    sentence: str  # in other studies if they were tested, else on held-out samples of its own study
    better: bool  # whether the model is shown to be better than the baseline


@dataclass(frozen=True)
class Scores:
    """Content of `scores.json`."""

    verdict: Verdict
    samples: int  # scored samples
    # name -> scores; the names are "ensemble", the members, and "guess": the mean or the class
    # frequencies of the training samples. Of several studies they are summaries over these
    models: dict[str, ModelScores]
    # of the ensemble and each member, and of each two members; without pairs of the same score
    # whichever unit is left out, such as an ensemble that is one of its members
    differences: list[PairedDifference]
    column: str = ""  # column of the metadata that is predicted
    kind: str = ""  # "regression", "classification" or "ordinal"
    # names of the classes, of an ordinal target the lowest first; empty for a number
    classes: list[str] = field(default_factory=list)
    part: str = ""  # scored samples: "test" or "validation"
    repeats: int = 1  # partitions of the samples into folds; every score is the mean of theirs
    groups: int = 0  # groups among the scored samples, which may be single samples
    group_column: str | None = None
    level: float = LEVEL  # of the confidence intervals, which leave out groups in turn
    metric: str = ""  # metric that compares models: "r2", "auc" or "weighted_kappa"
    weights: EnsembleWeights | None = None
    interval: PredictionIntervals | None = None  # None of classes and with too few groups
    calibration: Calibration | None = None  # None of a number
    repeated_samples: RepeatedScore | None = None
    divided_studies: str | None = None  # column of several studies, which the folds divide
    equal_depth: EqualDepthScore | None = None
    inputs: InputScores | None = None
    learning_curve: LearningCurve | None = None  # of the kernel; None with few groups
    # columns that alone predict as well as the ensemble: the depth, then the best first
    confounders: list[Confounder] = field(default_factory=list)
    # of samples of another study than that of the training; None of held-out samples
    external: ExternalValidation | None = None
    studies: StudyScores | None = None  # None of a single study
    # of the kernel or the forest; None of a single study and with many samples
    transfer: TransferMatrix | None = None
    study_differences: StudyDifferences | None = None
    # at 0.5 and at the threshold chosen in the training parts; empty but for two classes
    thresholds: list[ThresholdScores] = field(default_factory=list)
    # of a model of the counts and the columns of --adjust-for from one of these columns
    beyond: PairedDifference | None = None

    @property
    def members(self) -> list[str]:
        """Members of the ensemble."""
        return [name for name in self.models if name not in (ENSEMBLE, GUESS)]

    @property
    def baseline(self) -> str:
        """Predictions of the baseline."""
        return _BASELINES.get(self.kind, "the baseline")

    @property
    def is_better(self) -> bool:
        """Whether the model is shown to be better than the baseline."""
        return self.verdict.outcome == "better"

    @classmethod
    def read(cls, path: Path) -> Scores:
        """Read `scores.json`."""
        return read_json(path, cls, "scores of the run")

    def write(self, path: Path) -> None:
        """Write `scores.json` atomically."""
        write_json(path, asdict(self))

    def findings(self, unit: str = "") -> list[ModelFinding]:
        """List all statements about the model, the verdict first.

        `unit` is the unit of a numeric target; "" if it is unknown.
        """
        findings = [ModelFinding("verdict", self.verdict.sentence, not self.is_better)]
        if self.deciding:
            findings.append(ModelFinding("deciding", self.deciding))

        def add(field: str, text: str, is_warning: bool = False) -> None:
            findings.append(ModelFinding(field, text, is_warning))

        if self.repeated_samples is not None:
            add("repeated_samples", f"{self.repeated_samples.sentence}.", True)
        if len(self.members) > 1 and (weights := self.weights) is not None:
            add("weights", f"The ensemble is {weights.description}.")
        if self.study_differences is not None:
            add("study_differences", self.study_differences.sentence)
        if self.external is not None:
            for text in self.external.sentences(unit):
                add("external", text)
        # Where the depth predicts, the sentence stands beside that.
        equal = self.equal_depth
        if equal is not None and not equal.confounder:
            add("equal_depth", f"{equal.sentence}.")
        if (interval := self.interval) is not None:
            unit = "ranks" if self.kind == "ordinal" else unit
            half = f"{significant(interval.half_width)} {unit}".rstrip()
            add(
                "interval",
                f"{interval.coverage:.0%} prediction interval: ± {half} (it covers "
                f"{interval.covered:.0%} of the held-out samples).",
            )
        if (inputs := self.inputs) is not None:
            for difference in inputs.differences:
                add("inputs", f"{difference.sentence}.")
            add("inputs", inputs.conclusion, not inputs.counts_add)
        if (beyond := self.beyond) is not None:
            adds = self.is_better and beyond.beyond_noise and (beyond.value or 0) > 0
            add("beyond", f"{beyond.sentence}.", not adds)
        at_depth = None if equal is None else equal.sentence
        for text in confounding_sentences(self.confounders, self.is_better, at_depth):
            add("confounders", text, True)
        return findings

    @property
    def deciding(self) -> str:
        """How many units would decide a verdict whose interval includes 0; "" for others."""
        verdict, name, number, gain = self.verdict, "samples", self.groups, None
        if verdict.outcome != "not better" or verdict.lower is None or verdict.lower > 0:
            return ""
        if self.studies is not None:
            name, number = "studies", self.studies.summaries[verdict.metric].studies
        # The curve of several studies is of groups within them.
        elif self.learning_curve is not None:
            gain = self.learning_curve.gain
        if self.studies is None and self.group_column is not None:
            name = f"groups of {self.group_column}"
        difference = Score(verdict.difference, verdict.lower, verdict.upper)
        text = f"cannot be told from {number}"
        if estimate := units_to_decide(difference, number, gain):
            fewest, most = estimate
            end = f"to {most}" if most else "or more"
            text = f"is {fewest} {end} in all, instead of {number} (80 % power)"
        return f"The number of {name} that would decide whether the score is above a guess {text}."

    @property
    def performance(self) -> Performance:
        """Performance in other studies, or on held-out samples of the model's own study."""
        if self.studies is not None:
            text = f"{self.verdict.headline}. {self.verdict.sentence}"
        else:
            figures = _with_limits(self.models[ENSEMBLE].metrics[self.metric])
            samples = "held-out samples of its own study"
            if (repeated := self.repeated_samples) is not None:
                figures, samples = fixed(repeated.grouped), "new subjects of its own study"
            claim = "better" if self.is_better else "not shown to be better"
            text = (
                f"{_UNTESTED}. On {samples} it is {claim} than the baseline "
                f"({TITLES[self.metric]} {figures})."
            )
        return Performance(text, self.is_better)

    def next_step(
        self, model: str, files: Mapping[str, str], training: Mapping[str, str] = NO_FILES
    ) -> tuple[str, list[str]]:
        """Return what follows from the verdict, and the words of its command.

        `files` are --table, --metadata and --sequences of the scored samples, `training` those of
        the training of a model that is scored in another study.
        """
        column = ["--metadata-column", self.column]
        if self.repeated_samples is not None:
            words = ["--group-column", self.repeated_samples.column]
            return "the same with", [*words, "--output-dir", f"{model}-grouped"]
        if self.is_better and self.divided_studies is not None:
            words = ["--study-column", self.divided_studies, "--output-dir", f"{model}-studies"]
            return "for a new study, the same with", words
        if self.is_better and self.studies is None and self.external is None:
            words = ["--model", model, "--table", "TABLE", "--metadata", "METADATA", *column]
            words += ["--output", f"{model}-elsewhere"]
            return "in another study", ["aam", "evaluate", *words]
        one_class = self.external is not None and self.verdict.model is None
        if self.is_better or (one_class and self.studies is None):
            words = ["--model", model, "--table", "TABLE", "--output", "predictions.tsv"]
            return "new samples", ["aam", "predict", *words]
        switches = [flag for flag in files if not files[flag]]
        if self.external is not None and {*training, *switches} == files.keys():
            pairs = [(flag, training[flag], flag, files[flag]) for flag in training]
            words = [*itertools.chain.from_iterable(pairs), *switches]
            words += ["--studies", "training,other", "--output", "both.aam"]
            return "both studies as one", ["aam", "prepare", *words]
        named = [word for pair in files.items() for word in pair if word]
        return "what the data allow", ["aam", "inspect", *named, *column]


def unknown_performance(column: str) -> Performance:
    """Return the performance of a model that was fitted without an evaluation."""
    return Performance(f"{_UNTESTED}: '{column}' was fitted without an evaluation.", True)


def evaluate(
    column: str,
    folds: Folds,
    combined: Combined,
    seconds: Mapping[str, float],
    test: PermutationTest | None = None,
    repeated: RepeatedScore | None = None,
    divided_studies: str | None = None,
) -> Scores:
    """Score the ensemble, its members and the baseline on the held-out samples.

    `seconds` are CPU-seconds of the members; `repeated` and `divided_studies` are what the folds
    divide. Scores of inputs, depth, learning curve and confounders are added by the pipeline.
    """
    labels, members = folds.labels, combined.members
    if len(members) == 1:  # the model itself, calibrated
        members = dict.fromkeys(members, combined.predictions_MC)
    drawn = {
        name: folds.drawn(predictions_MC)
        for name, predictions_MC in (
            (ENSEMBLE, combined.predictions_MC),
            *members.items(),
            (GUESS, folds.dummy_MC),
        )
    }
    models = {}
    for name, model in drawn.items():
        values = {metric: Score(value) for metric, value in compute_metrics(model.scored).items()}
        del values["samples"]
        # Those of `SCORED` have an interval. Of several studies these alone have a summary.
        metrics = model.score() if labels.studies is not None else values | model.score()
        models[name] = ModelScores(metrics, seconds.get(name))
    studies = None
    if folds.study_column is not None:
        studies = score_studies(folds.study_column, drawn[ENSEMBLE])
    # Without enough residuals for the coverage the width is infinite (`calibration`): no interval
    # is stated then.
    known, widths_M = folds.held_out, combined.half_widths_M
    interval, calibration = None, None
    if widths_M is not None and np.isfinite(widths_M).all():
        errors_M = np.abs(combined.predictions_MC[:, 0] - known.values)
        covered = float((errors_M <= widths_M).mean())
        interval = PredictionIntervals(COVERAGE, combined.ensemble.half_width, covered)
    if labels.classes:
        # The held-out samples may lack a class, so `labels` names all of them.
        codes_M, names = known.values.astype(np.int64), range(len(labels.classes))
        before_MC, after_MC = combined.uncalibrated_MC, combined.predictions_MC
        calibration = Calibration(
            combined.ensemble.temperature,
            float(log_loss(codes_M, after_MC, labels=names)),
            float(log_loss(codes_M, before_MC, labels=names)),
        )
    compared = (ENSEMBLE, *members) if len(members) > 1 else ()
    return Scores(
        verdict=(
            _verdict(column, drawn[ENSEMBLE], drawn[GUESS], folds, test, repeated, divided_studies)
            if studies is None
            else _verdict_over_studies(column, studies, test, repeated)
        ),
        samples=len(folds.first.rows_M),
        models=models,
        differences=[
            compare(drawn, model, reference, folds.units)
            for model, reference in itertools.combinations(compared, 2)
            # An ensemble in which one member has all the weight is that member.
            if not drawn[model].equals(drawn[reference])
        ],
        column=column,
        kind=labels.type,
        classes=list(labels.classes or labels.levels),
        part=folds.part,
        repeats=folds.repeats,
        groups=folds.held_out_units.number,
        group_column=folds.group_column,
        metric=next(iter(drawn[ENSEMBLE].whole)),
        weights=EnsembleWeights(
            dict(combined.ensemble.weights), [dict(weights) for weights in combined.fold_weights]
        ),
        interval=interval,
        calibration=calibration,
        repeated_samples=repeated,
        divided_studies=divided_studies,
        studies=studies,
        thresholds=score_thresholds(folds, combined),
    )


def _verdict_over_studies(
    column: str, studies: StudyScores, test: PermutationTest | None, repeated: RepeatedScore | None
) -> Verdict:
    included = [study for study in studies.studies if not study.left_out]
    metric = next(iter(studies.studies[0].metrics))
    summary, guess, title = studies.summaries.get(metric), NO_SKILL[metric], TITLES[metric]
    outcome: Outcome = "undecided"
    reasons: list[str] = []
    # Of the mean over studies: samples of a study are alike, so that not they but the studies are
    # the independent observations.
    if summary is not None and summary.upper < guess:
        outcome = _below_baseline(test, reasons)
    elif summary is not None and summary.lower <= guess:
        outcome = "not better"
        reasons.append(f"the interval of the mean includes {guess:g}, the score of the baseline")
    # Few studies have wide intervals, but a spread that is small by chance makes them narrow: both
    # the interval and the test have to agree.
    elif summary is not None and test is not None and test.p > SIGNIFICANT:
        reasons.append("the interval is above the baseline, but permuted labels often are too")
    elif summary is not None:
        outcome = "better"
    # Subjects that several studies have are known to the models of the others.
    if outcome == "better" and repeated is not None:
        outcome, reason = _with_subjects_apart(repeated, metric)
        reasons.append(reason)
    if summary is None:
        figures = [f"{title} {_with_limits(study.metrics[metric])} in {study.study}"
                   for study in included]  # fmt: skip
        text = "; ".join([*figures, f"a mean needs {MIN_SUMMARISED} studies"])
    else:
        mean = Score(summary.value, summary.lower, summary.upper)
        text = f"Mean {title} {mean.estimate()} over {summary.studies} studies (95 % interval "
        text += f"{mean.limits()}; baseline {guess:g}), significant in {studies.better}; "
        following = Score(None, summary.next_lower, summary.next_upper).limits()
        text += f"next study expected between {following.replace(' to ', ' and ')}"
    if test is not None:
        text += f"; {_permutation_text(test, outcome)} within studies"
    if len(included) < len(studies.studies):
        left_out: dict[str, list[str]] = {}
        for study in studies.studies:
            left_out.setdefault(study.left_out, []).append(study.study)
        named = [f"{first_few(left_out[why])} with {why}" for why in left_out if why]
        reasons.append(f"not in the summary: {', '.join(named)}")
    if constant := [study.study for study in included if study.constant]:
        reasons.append(f"studies with one prediction for all samples: {first_few(constant)}")
    value = lower = upper = few = None
    if summary is None:
        few = f"{len(included)} {'study' if len(included) == 1 else 'studies'}"
    else:
        value, lower, upper = summary.value, summary.lower - guess, summary.upper - guess
    place = " in a new study" if few is None else ""
    return Verdict(
        sentence=f"{'; '.join([text, *reasons])}.",
        headline=f"{_headline(outcome, few)}{place}",
        outcome=outcome,
        metric=metric,
        model=value,
        guess=guess,
        difference=None if value is None else value - guess,
        lower=lower,
        upper=upper,
        **({} if test is None else asdict(test)),
        units=f"{len(included)} studies",
    )


def _below_baseline(test: PermutationTest | None, reasons: list[str]) -> Outcome:
    """Return the outcome of an interval below the baseline; append the reason if it is not worse.

    Models of folds share training samples: random labels lie below the baseline more often than
    above.
    """
    if test is None or test.p_worse <= SIGNIFICANT / 2:
        return "worse"
    reasons.append("the interval is below the baseline, but permuted labels often are too")
    return "not better"


def _permutation_text(test: PermutationTest, outcome: Outcome) -> str:
    p = test.p_worse if outcome == "worse" else test.p
    return f"permutation test p = {p:.2g}, {test.shufflings} permutations"


def _headline(outcome: Outcome, few: str | None) -> str:
    """Return an outcome in a few words; `few` names units that are too few for an interval."""
    if few is not None:
        return f"Too few to tell: {few}"
    starts = {"better": "Better", "worse": "Worse"}
    return f"{starts.get(outcome, 'Not shown to be better')} than the baseline"


def _with_limits(score: Score) -> str:
    if score.value is None:
        return "not defined"
    return ", ".join(filter(None, (score.estimate(), score.limits())))


def _with_subjects_apart(repeated: RepeatedScore, metric: str) -> tuple[Outcome, str]:
    """Return the outcome of a better score where the split divides subjects, and its reason."""
    reason = (
        f"with each '{repeated.column}' entirely in training or in test, the kernel has "
        f"{TITLES[metric]} {fixed(repeated.grouped)}"
    )
    if repeated.better:
        return "better", reason
    reason += " and is not shown to be better than the baseline"
    if limits := Score(None, repeated.lower, repeated.upper).limits():
        reason += f" (difference {limits})"
    return "not better", f"{reason}: this split tests subjects that the model was trained on"


def _verdict(
    column: str,
    model: ResampledMetrics,
    dummy: ResampledMetrics,
    folds: Folds,
    test: PermutationTest | None,
    repeated: RepeatedScore | None,
    divided_studies: str | None,
) -> Verdict:
    """Decide whether the ensemble is shown to be better than the baseline, and state it."""
    metric, difference = model.paired_difference(dummy)
    value, guess = model.whole[metric], dummy.whole[metric]
    lower, upper = difference.lower, difference.upper
    if known := of_one_class(model.scored, folds.held_out_units.number):
        text = f"{known}, {folds.units}; one class cannot show how well classes are told apart."
        headline = known.partition(":")[0]
        return Verdict(text, headline, "undecided", metric, units=folds.units)
    # One rounding for the score here, in tables and in tiles: that of its own interval.
    digits = model.score()[metric].digits
    outcome: Outcome
    reasons: list[str] = []
    # An interval is a necessary condition. Few units have none, however small p is: two studies do
    # not tell how far a third one differs from them.
    if lower is None or upper is None:
        outcome = "undecided"
    elif upper < 0:
        outcome = _below_baseline(test, reasons)
    elif lower <= 0:
        outcome = "not better"
        reasons.append("the interval of the difference includes 0")
    # The baseline of folds with different means scores below 0: a score above it is no skill.
    elif value <= NO_SKILL[metric]:
        outcome = "not better"
        reasons.append(f"a score of at most {NO_SKILL[metric]:g} is no skill")
    # The interval takes the models as they are. Those of several folds share training samples, so
    # that scores of random labels vary more than it says; the test allows for that.
    elif test is not None and test.p > SIGNIFICANT:
        outcome = "undecided"
        reasons.append("the interval is above 0, but permuted labels often are too")
    else:
        outcome = "better"
    # Interval and test are those of known subjects where the split divides these: the kernel also
    # has to be better with the subjects kept together.
    if outcome == "better" and repeated is not None:
        outcome, reason = _with_subjects_apart(repeated, metric)
        reasons.append(reason)
    if difference.value is None:
        text = f"{TITLES[metric]} of '{column}' is not defined"
    else:
        text = f"{TITLES[metric]} {fixed(value, digits)} on {'new' if folds.guess else 'held-out'} "
        text += f"samples (baseline, {_BASELINES[folds.labels.type]}: {fixed(guess, digits)}); "
        text += f"difference {fixed(difference.value, digits)} ("
        if lower is not None and upper is not None:
            limits = f"{fixed(lower, digits)} to {fixed(upper, digits)}"
            text += f"{100 * LEVEL:.0f} % interval {limits}, {folds.units})"
        else:
            few = folds.units
            if metric == "auc":
                rarer = units_of_two_classes(model.scored, model.units)
                few = f"{rarer} of {folds.units} have the rarer class"
            text += f"no interval: {few}, at least {MIN_UNITS} are needed)"
    if test is not None:
        text += f"; {_permutation_text(test, outcome)}"
    elif lower is not None:
        reasons.append("no permutation test: too few different orders of the groups' labels")
    if model.scored.is_constant:
        reasons.append("all samples have the same prediction")
    place = ""
    if divided_studies is not None and lower is not None:
        place = " in new samples of the same studies"
    return Verdict(
        sentence=f"{'; '.join([text, *reasons])}.",
        headline=f"{_headline(outcome, folds.units if lower is None else None)}{place}",
        outcome=outcome,
        metric=metric,
        model=None if math.isnan(value) else value,
        guess=None if math.isnan(guess) else guess,
        difference=difference.value,
        lower=lower,
        upper=upper,
        **({} if test is None else asdict(test)),
        units=folds.units,
    )


def compare(
    drawn: Mapping[str, ResampledMetrics], model: str, reference: str, units: str
) -> PairedDifference:
    """Compare a model with a reference on the same units."""
    metric, difference = drawn[model].paired_difference(drawn[reference])
    text = difference_sentence(model, reference, metric, difference, units)
    value, lower, upper = difference.value, difference.lower, difference.upper
    return PairedDifference(
        model, reference, text, metric, value, lower, upper, difference.beyond_noise
    )


def compare_inputs(
    columns: Sequence[str], predictions: Mapping[str, F64], both: str, folds: Folds, better: bool
) -> InputScores:
    """Compare models that read metadata and counts (`both`), or one of these.

    `better` states whether the model of both is shown to be better than the baseline.
    """
    drawn = {name: folds.drawn(predicted_MC) for name, predicted_MC in predictions.items()}
    differences = [compare(drawn, both, name, folds.units) for name in drawn if name != both]
    counts_add, metadata_add = (
        better and part.beyond_noise and part.value is not None and part.value > 0
        for part in differences
    )
    conclusion = (
        "The microbiome improves on the metadata alone. "
        if counts_add
        else "The microbiome does not significantly improve on the metadata alone: these scores "
        "are no evidence of a signal in the microbiome. "
    ) + (
        "The metadata improve on the microbiome alone."
        if metadata_add
        else "The metadata do not significantly improve on the microbiome alone."
    )
    if not better:
        conclusion = "Metadata and microbiome together are not better than the baseline."
    models = {name: model.score() for name, model in drawn.items()}
    return InputScores(list(columns), models, differences, conclusion, counts_add)


def difference_sentence(
    model: str, reference: str, metric: str, difference: Score, units: str
) -> str:
    """Describe a paired difference."""
    if difference.value is None:
        return f"{model} and {reference} cannot be compared: {TITLES[metric]} is not defined"
    size = fixed(abs(difference.value))
    place = "ahead of" if difference.value > 0 else "behind"
    text = f"{model} is {place} {reference} by {size} {TITLES[metric]}"
    if size == fixed(0):
        text = f"{model} and {reference} have the same {TITLES[metric]}"
    if difference.lower is None or difference.upper is None:
        return f"{text} (no interval: {units})"
    low, high = difference.lower, difference.upper
    ahead = difference if difference.value >= 0 else Score(None, -high, -low)
    if not (limits := ahead.limits()):  # the same score whichever unit is left out
        return f"{text} ({units})"
    text += f" ({100 * LEVEL:.0f} % {limits}, {units})"
    return text if difference.beyond_noise else f"{text}; not significant"
