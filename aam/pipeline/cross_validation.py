"""Cross-validation of members on a study in memory, and the ensemble of them.

Each member is fitted for each split without its held-out samples. Scores, prediction intervals and
calibration come from the held-out predictions. For new samples, estimators are fitted once more to
all samples, and the networks of the folds are averaged.

With metadata among the inputs, the same members are also fitted to the same splits with the columns
alone and with the counts alone: a site or a season that predicts by itself must not be taken for
biology.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from aam.arrays import F64
from aam.console import info
from aam.contract.options.commands.train import Train
from aam.contract.options.groups import MEMBERS, default_members
from aam.evaluation.ensemble import Combined, combine_members
from aam.evaluation.folds import Folds
from aam.evaluation.metrics import ScoredPredictions
from aam.members.member import CrossValidated, TrainingSamples, estimator
from aam.pipeline.labelled_study import LabelledStudy
from aam.pipeline.plan import Session, TrainingPlan, plan, start_session
from aam.pipeline.run_folder import RecordFact, no_record
from aam.threads import blas_threads

METADATA, COUNTS = "metadata alone", "counts alone"


@dataclass(frozen=True)
class Result:
    """Result of a training."""

    samples: TrainingSamples
    folds: Folds
    members: Mapping[str, CrossValidated]
    combined: Combined
    by_input: Mapping[str, F64]  # held-out predictions [M, C] from metadata and counts alone

    @property
    def scored(self) -> ScoredPredictions:
        """The ensemble's predictions of the held-out samples."""
        return self.folds.scored(self.combined.predictions_MC)


def ensemble_predictions(
    names: Sequence[str],
    samples: TrainingSamples,
    folds: Folds,
    title: str = "",
    networks: Mapping[str, CrossValidated] = MappingProxyType({}),
) -> F64:
    """Fit estimators to other samples, and return the ensemble's held-out predictions [M, C].

    The ensemble also has `networks`; they are cross-validated already.
    """
    weighed = len(names) + len(networks) > 1
    results = {
        name: estimator(name).cross_validate(samples, folds, False, title, weighed)
        for name in names
    }
    return combine_results(results | dict(networks), folds).predictions_MC


def cross_validate(
    planned: TrainingPlan,
    samples: TrainingSamples,
    session: Session,
    record_fact: RecordFact = no_record,
    final: bool = True,
) -> Result | None:
    """Train the members of a plan, and combine them; None on ranks other than the first.

    The only files are the checkpoints from which a network resumes, in the run folder of the
    session's options. Without `final` the members predict the held-out samples alone.
    """
    study, folds = planned.study, planned.folds
    compares = final and study.covariates is not None
    # Networks come first, since all ranks train them. `leave` then ends the group of the ranks: one
    # process fits the estimators.
    networks = {
        name: network.cross_validate(samples, folds, final)
        for name, network in session.networks(study, record_fact).items()
    }  # None on ranks other than the first
    of_counts: dict[str, CrossValidated] = {}
    if compares:
        for name, network in session.networks(study, counts_alone=True).items():
            info(f"Training the {name} again with the counts alone, to compare the inputs.")
            if trained := network.cross_validate(samples.counts_alone, folds, final=False):
                of_counts[name] = trained
    if not session.leave():
        return None
    estimators = {name: estimator(name) for name in planned.members if not MEMBERS[name].network}
    # Left-out predictions choose the weights, and the threshold of two classes.
    weighed = len(planned.members) > 1 or (final and len(folds.labels.classes) == 2)
    results = {
        name: member.cross_validate(samples, folds, final, weighed=weighed)
        for name, member in estimators.items()
    }
    results |= {name: result for name, result in networks.items() if result is not None}
    predictions_of: dict[str, F64] = {}
    if compares:
        # Only estimators are fitted to the metadata alone: the default members, if the members are
        # all networks.
        names, inputs = tuple(estimators) or default_members(), samples.metadata_alone
        predictions_of[METADATA] = ensemble_predictions(names, inputs, folds, METADATA)
        predictions_of[COUNTS] = ensemble_predictions(
            tuple(estimators), samples.counts_alone, folds, COUNTS, of_counts
        )
    combined = combine_results(results, folds)
    for name in networks:
        if len(results) > 1 and not combined.ensemble.weights[name]:
            info(
                f"The {name} has weight 0 for new samples: on samples outside its training it does "
                "not significantly lower the error of the other members."
            )
    return Result(samples, folds, results, combined, predictions_of)


def cross_validate_study(
    options: Train,
    study: LabelledStudy,
    samples: TrainingSamples | None = None,
    final: bool = True,
) -> tuple[TrainingPlan, Result]:
    """Train the members on a study in memory, or on `samples` of it, without a run folder."""
    with start_session(options, study) as session, blas_threads(len(study.values)):
        planned = plan(session.options, study)
        session.check(study)
        result = cross_validate(planned, samples or planned.samples(), session, final=final)
    assert result is not None  # several ranks write a run folder
    return planned, result


def combine_results(results: Mapping[str, CrossValidated], folds: Folds) -> Combined:
    """Combine members that are cross-validated on `folds`."""
    predictions = {name: result.predictions_MC for name, result in results.items()}
    left_out = {name: result.left_out for name, result in results.items()}
    return combine_members(predictions, folds, left_out)
