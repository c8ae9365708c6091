"""Transformer: the network as a member.

All ranks of a run train it, one network for each fold, and a run that was stopped resumes each of
them. The networks of the folds are averaged for new samples.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from aam.contract.errors import Interrupted
from aam.contract.options.commands.train import Train
from aam.members.folds import Folds
from aam.members.member import CrossValidated, TrainingSamples
from aam.members.transformer_model import TransformerModel
from aam.training.labelled_study import LabelledStudy
from aam.training.pretrained import PretrainedEncoder
from aam.training.run_folder import RecordFact
from aam.training.runtime import Runtime
from aam.training.train import FoldResult, encode_frozen, train_fold


@dataclass(frozen=True)
class Transformer:
    """Network of a study, see `member.Member`.

    Attributes:
        options: options of the run; the checkpoints are in its folder.
        study: the samples with their phylogeny and metadata.
        base: pretrained encoder; None without one.
        runtime: device, precision and ranks.
        record_fact: adds facts to the run record.
    """

    options: Train
    study: LabelledStudy
    base: PretrainedEncoder | None
    runtime: Runtime
    record_fact: RecordFact

    def cross_validate(
        self, samples: TrainingSamples, folds: Folds, final: bool = True
    ) -> CrossValidated | None:
        """Train the network of each split and predict its held-out samples, see `member.Member`.

        Raises:
            Interrupted: a stop request came after the training of a fold that is not the last.
        """
        began = time.process_time()
        results = self._train_folds()
        if not results:
            return None
        target = results[0].target
        predictions_NC = np.concatenate([result.predictions_NC for result in results])
        points_NC = (
            predictions_NC if target.classes else target.point_predictions(predictions_NC)[:, None]
        )
        facts = {"folds": [result.facts for result in results], **results[0].facts}
        return CrossValidated(
            np.asarray(points_NC, dtype=np.float64),
            time.process_time() - began,
            model=TransformerModel(tuple(result.network for result in results)),
            columns=target.quantile_columns(predictions_NC),
            facts=facts,
        )

    def _train_folds(self) -> list[FoldResult]:
        """Train the network of each split; no results on ranks other than the first."""
        base, splits, runtime = self.base, self.study.splits, self.runtime
        if base is not None and self.options.freeze_base:
            base = encode_frozen(self.options, base, self.study, runtime)
        results = []
        with runtime.stop.handled():
            for fold, split in enumerate(splits, start=1):
                arguments = self.options, self.study, base, split, fold, self.record_fact, runtime
                if (result := train_fold(*arguments)) is not None:
                    results.append(result)
                # All ranks leave together: a rank that went on would wait in a collective for the
                # others. After the last fold nothing is left to resume.
                if fold < len(splits) and runtime.communicator.any_rank(runtime.stop.pending):
                    raise Interrupted(
                        f"Stopped after fold {fold} of {len(splits)}{runtime.stop.by_signal}",
                        f"the checkpoints in '{self.options.run.output_dir}' are complete",
                        "go on with --resume-from auto",
                    )
        return results
