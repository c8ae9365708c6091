"""Scores of an ensemble and its members, with verdict and findings: the content of `scores.json`.

The classes are the schema of the file. Each statement about a model (verdict, difference,
conclusion) is decided here and stored with its numbers; `Scores.findings` lists all statements for
console, page and models.

AUC, Pearson and Spearman only compare samples of the same fold (`aam.evaluation.metrics`), so the
baseline has an AUC of 0.5. The held-out predictions are in `predictions.tsv`, or with several
repeats in `predictions-repeats.tsv`: `fold`, then `predicted`, `lower`, `upper`, `p_<class>` of the
ensemble, then the same columns for each member with the prefix `<member>_`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
from sklearn.metrics import log_loss

from aam.contract.errors import first_few
from aam.contract.files import write_json
from aam.contract.records import read_json
from aam.evaluation.calibration import COVERAGE
from aam.evaluation.confounding import Confounder, confounding_sentences
from aam.evaluation.ensemble import Combined, ThresholdScores, score_thresholds
from aam.evaluation.external_validation import ExternalValidation, one_class_score
from aam.evaluation.folds import Folds
from aam.evaluation.intervals import LEVEL, NO_SKILL, TITLES, ResampledMetrics, Score
from aam.evaluation.learning_curve import LearningCurve, units_to_decide
from aam.evaluation.meta_analysis import MIN_SUMMARISED, StudyScores
from aam.evaluation.permutation import PermutationTest
from aam.evaluation.splits import MIN_UNITS
from aam.evaluation.study_transfer import StudyDifferences, TransferMatrix
from aam.number_format import fixed, significant

ENSEMBLE, BASELINE = "ensemble", "guess"
"""Names in `Scores.models`; files call the baseline a guess."""

SIGNIFICANT = 0.05
"""Significance level of the permutation test."""

NO_FILES: Mapping[str, str] = MappingProxyType({})

UNTESTED = "This model has not been tested on another study"

_BASELINES = {
    "regression": "the training mean",
    "classification": "the training class frequencies",
    "ordinal": "the mean training rank",
}
"""What the baseline predicts, by type of target."""

Outcome = Literal["better", "worse", "not better", "undecided"]


@dataclass(frozen=True)
class ModelFinding:
    """Statement about a model; `field` names the field of `Scores` with its numbers."""

    field: str
    text: str
    is_warning: bool = False


@dataclass(frozen=True)
class Verdict:
    """Whether the ensemble is better than the baseline; `_decide` has the rules."""

    sentence: str
    headline: str = ""  # a few words that say the same
    outcome: Outcome = "better"
    metric: str = ""
    model: float | None = None  # metric of the ensemble
    guess: float | None = None  # metric of the baseline
    difference: float | None = None  # ensemble minus baseline, with a paired interval
    lower: float | None = None
    upper: float | None = None
    p: float | None = None  # permutation test of the ensemble's predictions
    shufflings: int = 0  # number of permutations
    p_worse: float | None = None  # lower tail of the permutation test
    units: str = ""  # units of the interval, such as "42 groups of infant"


@dataclass(frozen=True)
class PairedDifference:
    """Paired difference of the first metric of two models."""

    model: str
    reference: str
    sentence: str
    metric: str = ""
    value: float | None = None  # model minus reference
    lower: float | None = None
    upper: float | None = None
    beyond_noise: bool = False  # whether the interval excludes 0

    @classmethod
    def of(
        cls, model: str, reference: str, metric: str, difference: Score, units: str
    ) -> PairedDifference:
        """Describe a paired difference of a metric."""
        value, low, high = difference.value, difference.lower, difference.upper
        if value is None:
            text = f"{model} and {reference} cannot be compared: {TITLES[metric]} is not defined"
            return cls(model, reference, text, metric)
        size = fixed(abs(value))
        text = f"{model} is {'ahead of' if value > 0 else 'behind'} {reference} by {size} "
        text += TITLES[metric]
        if size == fixed(0):
            text = f"{model} and {reference} have the same {TITLES[metric]}"
        if low is None or high is None:
            text += f" (no interval: {units})"
        # Without limits the difference is the same without any unit.
        elif limits := (difference if value >= 0 else Score(None, -high, -low)).limits():
            text += f" ({100 * LEVEL:.0f} % {limits}, {units})"
            text += "" if difference.excludes_zero else "; not significant"
        else:
            text += f" ({units})"
        return cls(model, reference, text, metric, value, low, high, difference.excludes_zero)

    @property
    def is_ahead(self) -> bool:
        """Whether the interval is above 0."""
        return self.beyond_noise and (self.value or 0) > 0


@dataclass(frozen=True)
class ModelScores:
    """Scores of a model."""

    metrics: dict[str, Score]  # some metrics have no interval
    cpu_seconds: float | None = None  # time of a member


@dataclass(frozen=True)
class EnsembleWeights:
    """Weights of the members: in the final model, and in each fold, chosen in its training set."""

    model: dict[str, float]
    folds: list[dict[str, float]]  # empty in another study

    @property
    def of_model(self) -> str:
        """How the final model combines its members."""
        weights = self.model
        members = [name for name, weight in weights.items() if weight > 0]
        if len(set(weights.values())) == 1:
            return f"the mean of {' and '.join(members)}"
        if len(members) == 1:
            return f"the {members[0]} alone"
        return " + ".join(f"{weights[name]:.0%} {name}" for name in members)

    @property
    def description(self) -> str:
        """How the final model and the models of the folds combine their members.

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

    coverage: float  # expected share of new samples inside
    half_width: float
    covered: float  # share of held-out samples inside


@dataclass(frozen=True)
class Calibration:
    """Calibration of the ensemble's probabilities for held-out samples."""

    temperature: float
    log_loss: float
    uncalibrated_log_loss: float


@dataclass(frozen=True)
class RepeatedScore:
    """Kernel scores with repeated subjects split over training and test, and kept together."""

    sentence: str
    column: str  # column of the subjects
    groups: int  # subjects with several samples
    metric: str
    given: float  # score on this split
    grouped: float  # score with each subject entirely in training or in test
    lower: float | None = None  # paired interval of the grouped score minus the baseline
    upper: float | None = None
    better: bool = False  # whether this interval is above 0


@dataclass(frozen=True)
class EqualDepthScore:
    """Score on tables of equal sequencing depth."""

    sentence: str
    confounder: bool  # whether the depth predicts as well as the microbiome
    depth: int  # reads of each sample
    samples: int  # samples with at least this depth
    metric: str
    plain: float  # score of the same samples with all reads
    value: float
    lower: float | None
    upper: float | None
    better: bool  # whether it is better than the baseline


@dataclass(frozen=True)
class InputScores:
    """Scores of a model with metadata columns: metadata alone, microbiome alone, both."""

    columns: list[str]
    models: dict[str, dict[str, Score]]
    differences: list[PairedDifference]
    conclusion: str
    counts_add: bool = False


@dataclass(frozen=True)
class Performance:
    """Performance of a model, stored in the model file for its users."""

    sentence: str  # in other studies if tested there, else on held-out samples of its own study
    better: bool  # whether the model is shown to be better than the baseline


@dataclass(frozen=True)
class Scores:
    """Content of `scores.json`."""

    verdict: Verdict
    samples: int  # scored samples
    # scores of "ensemble", the members, and "guess", the baseline; with several studies they are
    # summaries over the studies
    models: dict[str, ModelScores]
    # pairs of models, without pairs that always have the same score (an ensemble of one member)
    differences: list[PairedDifference]
    column: str = ""  # metadata column that is predicted
    kind: str = ""  # "regression", "classification" or "ordinal"
    # ordered ones lowest first; empty for a number
    classes: list[str] = field(default_factory=list)
    part: str = ""  # scored samples: "test" or "validation"
    repeats: int = 1  # partitions of the samples into folds; every score is a mean over them
    groups: int = 0  # groups, or samples without groups, among the scored samples
    group_column: str | None = None
    level: float = LEVEL  # level of the confidence intervals
    metric: str = ""  # metric that compares models: "r2", "auc" or "weighted_kappa"
    weights: EnsembleWeights | None = None
    interval: PredictionIntervals | None = None  # None for classes and with too few groups
    calibration: Calibration | None = None  # None for a number
    repeated_samples: RepeatedScore | None = None
    divided_studies: str | None = None  # column with several studies that the folds divide
    equal_depth: EqualDepthScore | None = None
    inputs: InputScores | None = None
    learning_curve: LearningCurve | None = None  # curve of the kernel; None with few groups
    # columns that alone predict as well as the ensemble: the depth, then the best first
    confounders: list[Confounder] = field(default_factory=list)
    external: ExternalValidation | None = None  # only for samples of another study
    studies: StudyScores | None = None  # None for a single study
    # models of the kernel or the forest; None for a single study and with many samples
    transfer: TransferMatrix | None = None
    study_differences: StudyDifferences | None = None
    # at 0.5 and at the threshold chosen in the training sets; empty unless there are two classes
    thresholds: list[ThresholdScores] = field(default_factory=list)
    # model of the microbiome and the --adjust-for columns against the model of these columns
    beyond: PairedDifference | None = None

    @property
    def members(self) -> list[str]:
        """Members of the ensemble."""
        return [name for name in self.models if name not in (ENSEMBLE, BASELINE)]

    @property
    def baseline(self) -> str:
        """What the baseline predicts."""
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
        """List the statements about the model, the verdict first; tables state the inputs.

        `unit` is the unit of a numeric target; "" if it is unknown.
        """
        findings = [ModelFinding("verdict", self.verdict.sentence, not self.is_better)]
        if self.deciding:
            findings.append(ModelFinding("deciding", self.deciding))
        if (repeated := self.repeated_samples) is not None:
            findings.append(ModelFinding("repeated_samples", f"{repeated.sentence}.", True))
        if len(self.members) > 1 and (weights := self.weights) is not None:
            findings.append(ModelFinding("weights", f"The ensemble is {weights.description}."))
        if (differences := self.study_differences) is not None:
            findings.append(ModelFinding("study_differences", differences.sentence))
        if self.external is not None:
            findings += [ModelFinding("external", text) for text in self.external.sentences(unit)]
        # If the depth is a confounder, its own sentence includes this one.
        if (equal := self.equal_depth) is not None and not equal.confounder:
            findings.append(ModelFinding("equal_depth", f"{equal.sentence}."))
        if (interval := self.interval) is not None:
            unit = "ranks" if self.kind == "ordinal" else unit
            half = f"{significant(interval.half_width)} {unit}".rstrip()
            text = (
                f"{interval.coverage:.0%} prediction interval: ± {half} (it covers "
                f"{interval.covered:.0%} of the held-out samples)."
            )
            findings.append(ModelFinding("interval", text))
        if (beyond := self.beyond) is not None:
            adds = self.is_better and beyond.is_ahead
            findings.append(ModelFinding("beyond", f"{beyond.sentence}.", not adds))
        at_depth = None if equal is None else equal.sentence
        texts = confounding_sentences(self.confounders, self.is_better, at_depth)
        return findings + [ModelFinding("confounders", text, True) for text in texts]

    @property
    def deciding(self) -> str:
        """How many units could show that the model is better; "" unless the interval includes 0."""
        verdict, name, number, gain = self.verdict, "samples", self.groups, None
        if verdict.outcome != "not better" or verdict.lower is None or verdict.lower > 0:
            return ""
        if self.studies is not None:
            name, number = "studies", self.studies.summaries[verdict.metric].studies
        elif self.learning_curve is not None:  # with several studies its units are not studies
            gain = self.learning_curve.gain
        if self.studies is None and self.group_column is not None:
            name = f"groups of {self.group_column}"
        difference = Score(verdict.difference, verdict.lower, verdict.upper)
        if (estimate := units_to_decide(difference, number, gain)) is None:
            return (
                f"{number} {name} are too few to estimate how many would show whether the model is "
                "better than the baseline."
            )
        fewest, most = estimate
        return (
            f"{fewest} {f'to {most}' if most else 'or more'} {name} in all, instead of {number}, "
            "would show whether the model is better than the baseline (80 % power)."
        )

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
                f"{UNTESTED}. On {samples} it is {claim} than the baseline "
                f"({TITLES[self.metric]} {figures})."
            )
        return Performance(text, self.is_better)

    def next_step(
        self, model: str, files: Mapping[str, str], training: Mapping[str, str] = NO_FILES
    ) -> tuple[str, list[str]]:
        """Return the purpose and the arguments of the command that the verdict suggests.

        `files` are --table, --metadata and --sequences of the scored samples. `training` are the
        training files of a model that is scored in another study.
        """
        column = ["--metadata-column", self.column]
        if self.repeated_samples is not None:
            options = ["--group-column", self.repeated_samples.column]
            return "the same with", [*options, "--output-dir", f"{model}-grouped"]
        if self.is_better and self.divided_studies is not None:
            options = ["--study-column", self.divided_studies, "--output-dir", f"{model}-studies"]
            return "for a new study, the same with", options
        new_samples = ["--model", model, "--table", "TABLE"]
        if self.is_better and self.studies is None and self.external is None:
            argv = ["aam", "evaluate", *new_samples, "--metadata", "METADATA", *column]
            return "in another study", [*argv, "--output", f"{model}-elsewhere"]
        one_class = self.external is not None and self.verdict.model is None
        if self.is_better or (one_class and self.studies is None):
            return "new samples", ["aam", "predict", *new_samples, "--output", "predictions.tsv"]
        switches = [flag for flag in files if not files[flag]]
        if self.external is not None and {*training, *switches} == files.keys():
            pairs = [(flag, training[flag], flag, files[flag]) for flag in training]
            options = [*itertools.chain.from_iterable(pairs), *switches]
            options += ["--studies", "training,other", "--output", "both.aam"]
            return "both studies as one", ["aam", "prepare", *options]
        options = [word for pair in files.items() for word in pair if word]
        return "what the data allow", ["aam", "inspect", *options, *column]


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

    `seconds` are CPU-seconds of the members; the folds divide the subjects of `repeated` and the
    studies of `divided_studies`. The pipeline adds inputs, depth, learning curve and confounders.
    """
    labels, members = folds.labels, combined.members
    if len(members) == 1:  # the model itself, calibrated
        members = dict.fromkeys(members, combined.predictions_MC)
    predictions = {ENSEMBLE: combined.predictions_MC, **members, BASELINE: folds.baseline_MC}
    resampled = {name: folds.resampled(each_MC) for name, each_MC in predictions.items()}
    models = {}
    for name, model in resampled.items():
        values = {metric: Score(value) for metric, value in model.scored.metrics().items()}
        del values["samples"]
        # With several studies, only metrics with an interval have a summary.
        metrics = model.score() if labels.studies is not None else values | model.score()
        models[name] = ModelScores(metrics, seconds.get(name))
    studies = None
    if folds.study_column is not None:
        studies = StudyScores.of(folds.study_column, resampled[ENSEMBLE])
    actual_M, widths_M = folds.held_out.values, combined.half_widths_M
    interval, calibration = None, None
    # With too few residuals for the coverage the widths are infinite (`calibration`).
    if widths_M is not None and np.isfinite(widths_M).all():
        errors_M = np.abs(combined.predictions_MC[:, 0] - actual_M)
        covered = float((errors_M <= widths_M).mean())
        interval = PredictionIntervals(COVERAGE, combined.ensemble.half_width, covered)
    if labels.classes:
        losses = [  # the held-out samples may lack a class, so `labels` lists all classes
            float(log_loss(actual_M.astype(np.int64), each_MC, labels=range(len(labels.classes))))
            for each_MC in (combined.predictions_MC, combined.uncalibrated_MC)
        ]
        calibration = Calibration(combined.ensemble.temperature, *losses)
    compared = (ENSEMBLE, *members) if len(members) > 1 else ()
    pairs = itertools.combinations(compared, 2)
    return Scores(
        verdict=_verdict(column, resampled, folds, studies, test, repeated, divided_studies),
        samples=len(folds.first.rows_M),
        models=models,
        differences=[
            PairedDifference.of(a, b, *resampled[a].paired_difference(resampled[b]), folds.units)
            for a, b in pairs
            # An ensemble equals a member that has all the weight.
            if not resampled[a].equals(resampled[b])
        ],
        column=column,
        kind=labels.type,
        classes=list(labels.classes or labels.levels),
        part=folds.part,
        repeats=folds.repeats,
        groups=folds.held_out_units.number,
        group_column=folds.group_column,
        metric=next(iter(resampled[ENSEMBLE].values)),
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


def _decide(
    value: float | None,
    difference: Score,
    metric: str,
    test: PermutationTest | None,
    repeated: RepeatedScore | None,
    includes: str,
    above: str,
) -> tuple[Outcome, list[str]]:
    """Return the outcome of a score, by its difference from the baseline, and the reasons.

    `value` is above the value without skill if the score shows skill; `includes` and `above` word
    an interval that includes 0, and what a higher one is above.
    """
    # An interval is necessary. Few units have none, however small p is.
    if value is None or difference.lower is None or difference.upper is None:
        return "undecided", []
    if difference.upper < 0:
        # Models of different folds share training samples, so random labels score below the
        # baseline more often than above it.
        if test is None or test.p_worse <= SIGNIFICANT / 2:
            return "worse", []
        reason = "the interval is below the baseline, but permuted labels often are too"
        return "not better", [reason]
    if difference.lower <= 0:
        return "not better", [includes]
    # With different means in the folds the baseline scores below 0; beating it shows no skill then.
    if value <= NO_SKILL[metric]:
        return "not better", [f"a score of at most {NO_SKILL[metric]:g} shows no skill"]
    # The interval treats the models as fixed. Models of several folds share training samples, so
    # scores of random labels vary more than the interval suggests; the test allows for this. With
    # few studies a spread that is small by chance gives a narrow interval.
    if test is not None and test.p > SIGNIFICANT:
        return "undecided", [f"the interval is above {above}, but permuted labels often are too"]
    if repeated is None:
        return "better", []
    # If the split divides subjects, or a subject has samples in several studies, interval and test
    # are about subjects that are in training: the kernel also has to be better with each subject
    # entirely in training or in test.
    reason = (
        f"with each '{repeated.column}' entirely in training or in test, the kernel has "
        f"{TITLES[metric]} {fixed(repeated.grouped)}"
    )
    if repeated.better:
        return "better", [reason]
    reason += " and is not shown to be better than the baseline"
    if limits := Score(None, repeated.lower, repeated.upper).limits():
        reason += f" (difference {limits})"
    return "not better", [f"{reason}: this split tests subjects that the model was trained on"]


def _verdict_over_studies(
    studies: StudyScores, test: PermutationTest | None, repeated: RepeatedScore | None
) -> Verdict:
    included = [study for study in studies.studies if not study.left_out]
    metric = next(iter(studies.studies[0].metrics))
    summary, baseline, title = studies.summaries.get(metric), NO_SKILL[metric], TITLES[metric]
    # The interval of the mean over studies decides: samples of one study are alike, so the studies
    # are the independent observations.
    if summary is None:
        value, difference = None, Score(None)
        few: str | None = f"{len(included)} {'study' if len(included) == 1 else 'studies'}"
        figures = [f"{title} {_with_limits(study.metrics[metric])} in {study.study}"
                   for study in included]  # fmt: skip
        text = "; ".join([*figures, f"a mean needs {MIN_SUMMARISED} studies"])
    else:
        value, few = summary.value, None
        difference = Score(value - baseline, summary.lower - baseline, summary.upper - baseline)
        mean = Score(value, summary.lower, summary.upper)
        text = f"Mean {title} {mean.estimate()} over {summary.studies} studies (95 % interval "
        text += f"{mean.limits()}; baseline {baseline:g}), significant in {studies.better}; "
        following = Score(None, summary.next_lower, summary.next_upper).limits()
        text += f"next study expected between {following.replace(' to ', ' and ')}"
    includes = f"the interval of the mean includes {baseline:g}, the score of the baseline"
    outcome, reasons = _decide(value, difference, metric, test, repeated, includes, "the baseline")
    if len(included) < len(studies.studies):
        left_out: dict[str, list[str]] = {}
        for study in studies.studies:
            left_out.setdefault(study.left_out, []).append(study.study)
        excluded = [f"{first_few(left_out[why])} with {why}" for why in left_out if why]
        reasons.append(f"not in the summary: {', '.join(excluded)}")
    if constant := [study.study for study in included if study.constant]:
        reasons.append(f"studies with one prediction for all samples: {first_few(constant)}")
    return Verdict(
        sentence=_sentence(text, test, outcome, reasons, " within studies"),
        headline=_headline(outcome, few) + (" in a new study" if few is None else ""),
        outcome=outcome,
        metric=metric,
        model=value,
        guess=baseline,
        difference=difference.value,
        lower=difference.lower,
        upper=difference.upper,
        **({} if test is None else asdict(test)),
        units=f"{len(included)} studies",
    )


def _sentence(
    text: str, test: PermutationTest | None, outcome: Outcome, reasons: list[str], within: str = ""
) -> str:
    if test is not None:
        p = test.p_worse if outcome == "worse" else test.p
        text += f"; permutation test p = {p:.2g}, {test.shufflings} permutations{within}"
    return f"{'; '.join([text, *reasons])}."


def _headline(outcome: Outcome, few: str | None) -> str:
    """State an outcome in a few words; `few` names units that are too few for an interval."""
    if few is not None:
        return f"Too few to tell: {few}"
    starts = {"better": "Better", "worse": "Worse"}
    return f"{starts.get(outcome, 'Not shown to be better')} than the baseline"


def _with_limits(score: Score) -> str:
    if score.value is None:
        return "not defined"
    return ", ".join(filter(None, (score.estimate(), score.limits())))


def _verdict(
    column: str,
    resampled: Mapping[str, ResampledMetrics],
    folds: Folds,
    studies: StudyScores | None,
    test: PermutationTest | None,
    repeated: RepeatedScore | None,
    divided_studies: str | None,
) -> Verdict:
    """Decide whether the ensemble is shown to be better than the baseline, and state it."""
    if studies is not None:
        return _verdict_over_studies(studies, test, repeated)
    model, baseline = resampled[ENSEMBLE], resampled[BASELINE]
    metric, difference = model.paired_difference(baseline)
    value, baseline_value = model.values[metric], baseline.values[metric]
    lower, upper = difference.lower, difference.upper
    if one_class := one_class_score(model.scored, folds.held_out_units.number):
        rate, counts = one_class
        text = f"{rate}: {counts}, {folds.units}; samples of one class do not show how well the "
        text += "model separates classes."
        return Verdict(text, rate, "undecided", metric, units=folds.units)
    includes = "the interval of the difference includes 0"
    outcome, reasons = _decide(value, difference, metric, test, repeated, includes, "0")
    # The interval of the score decides its rounding here as in tables and tiles.
    digits = model.score()[metric].digits
    if difference.value is None:
        text = f"{TITLES[metric]} of '{column}' is not defined"
    else:
        samples = "new" if folds.baseline else "held-out"
        text = f"{TITLES[metric]} {fixed(value, digits)} on {samples} samples (baseline, "
        text += f"{_BASELINES[folds.labels.type]}: {fixed(baseline_value, digits)}); "
        text += f"difference {fixed(difference.value, digits)} ("
        if lower is not None and upper is not None:
            limits = f"{fixed(lower, digits)} to {fixed(upper, digits)}"
            text += f"{100 * LEVEL:.0f} % interval {limits}, {folds.units})"
        else:
            few = folds.units
            if metric == "auc":
                few = f"{model.units_of_rarer_class} of {folds.units} have the rarer class"
            text += f"no interval: {few}, at least {MIN_UNITS} are needed)"
    if test is None and lower is not None:
        reasons.append("no permutation test: too few different orders of the groups' labels")
    if model.scored.is_constant:
        reasons.append("all samples have the same prediction")
    headline = _headline(outcome, folds.units if lower is None else None)
    if divided_studies is not None and lower is not None:
        headline += " in new samples of the same studies"
    return Verdict(
        sentence=_sentence(text, test, outcome, reasons),
        headline=headline,
        outcome=outcome,
        metric=metric,
        model=None if math.isnan(value) else value,
        guess=None if math.isnan(baseline_value) else baseline_value,
        difference=difference.value,
        lower=lower,
        upper=upper,
        **({} if test is None else asdict(test)),
        units=folds.units,
    )
