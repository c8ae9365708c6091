"""Runs of the network: pretraining without labels, and the training and predictions of one fold."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aam.arrays import F64
from aam.console import info, track
from aam.contract.errors import DataError, Interrupted, UsageError
from aam.contract.options import to_plain, values_of
from aam.contract.options.commands.train import Pretrain, Train
from aam.contract.options.groups import TRANSFORMER, LoopOptions
from aam.contract.options.groups import networks as network_names
from aam.contract.run_files import COUNTS_ALONE, MODEL
from aam.data.metadata import read_metadata
from aam.data.store import Store, is_store
from aam.data.study import Study
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.evaluation.splits import Split, split_samples, write_splits
from aam.evaluation.subjects import find_subjects
from aam.members.member import CrossValidated, Member, TrainingSamples
from aam.members.output_tables import require_finite
from aam.network.batches import BatchPlan, FixedBatches, TrainingBatches
from aam.network.distributed.collectives import Communicator
from aam.network.distributed.process_group import process_group
from aam.network.inference.outputs import CHUNK, apply_network, encode_asvs
from aam.network.inference.stored_networks import ModelConfig, StoredNetwork, Target, network_state
from aam.network.memory_prediction import automatic, pretraining_run, training_run
from aam.network.model.network import Predictor
from aam.network.numerics.backends import BackendPolicy
from aam.network.numerics.device import gpu_names
from aam.network.training.configuration import (
    Runtime,
    check_resources,
    choose_length,
    choose_shape,
    configure_model,
    load_pretraining_study,
    read_pretrained_encoder,
)
from aam.network.training.fit import Fit, fit
from aam.network.training.module import LossWeights, TrainingModule, target_metrics
from aam.network.transformer_member import TransformerModel
from aam.pipeline import run_folder
from aam.pipeline.labelled_study import LabelledStudy
from aam.pipeline.plan import Session
from aam.pipeline.run_folder import RecordFact, no_record
from aam.serialization import model_folder


def pretrain(options: Pretrain, policy: BackendPolicy | None = None) -> None:
    """Pretrain an encoder and write its run folder."""
    options, task = automatic(options, pretraining_run), options.task
    table, phylogeny = options.input.table, options.phylogeny
    has_phylogeny = phylogeny.tree is not None or phylogeny.unifrac_matrix is not None
    if not has_phylogeny and is_store(table):
        has_phylogeny = Store(table).header.has_tree
    if task.penalty and not has_phylogeny:
        no_tree = " and the store has no tree" if is_store(table) else ""
        raise UsageError(
            "UniFrac needs a phylogeny",
            f"neither --tree nor --unifrac-matrix was given{no_tree}",
            "give one of them, or --penalty 0 to learn from sequences and abundances alone",
        )
    if not (task.penalty or task.nuc_penalty or task.count_penalty):
        weights = "--penalty 0 --nuc-penalty 0 --count-penalty 0"
        raise UsageError("Nothing to learn", weights, "raise one of them")
    with process_group(options.scale, options.device, options.loop.batch_samples) as communicator:
        communicator.require_equal_options(values_of(options))
        options = check_resources(options)
        base = read_pretrained_encoder(options)
        prepared = run_folder.prepare("pretrain", options, communicator, gpu_names())
        study, metric, plan = load_pretraining_study(options, base)
        metadata = None if options.metadata is None else read_metadata(options.metadata)
        seed = options.loop.seed
        splits = dataclasses.replace(options.split, splits=prepared.splits or options.split.splits)
        ids = study.table.sample_ids
        subjects = find_subjects(splits.group_column, "same", metadata, ids)
        (split, *_), subjects = split_samples(splits, 1, seed, ids, subjects)
        check_split(split, options.loop)
        shape, standard = choose_shape(base, study, options.model, plan, split.train)
        config = ModelConfig("pretrain", shape, metric, plan, standard, None, to_plain(options))
        runtime = Runtime.choose(options, shape, policy, communicator)
        with run_folder.begin(prepared, communicator, attention=runtime.attention) as record:
            if communicator.ranks.is_main:
                path = prepared.folder / "splits.tsv"
                write_splits(path, ids, [split], subjects.groups)
            _learn(options, config, study, split, base, record, runtime)


def _learn(
    options: Pretrain,
    config: ModelConfig,
    study: Study,
    split: Split,
    base: StoredNetwork | None,
    record: run_folder.RunRecord,
    runtime: Runtime,
) -> None:
    """Train the encoder, and write its embeddings of the study and its model."""
    folder, plan = options.run.output_dir, config.plan
    torch.manual_seed(options.loop.seed)
    network = config.network(runtime.backends, options.speed.gradient_checkpointing)
    if base is not None:
        network.encoder.load_state_dict(base.encoder_weights)
    # With different data or weights on a rank, training would silently give a wrong result.
    runtime.communicator.require_equal_data(
        study=study, split=split, plan=plan, weights=network.state_dict()
    )
    task = TrainingModule(
        network,
        LossWeights.of(options.task),
        options.loop,
        optimizer_steps(len(split.train), options.loop),
        standard=config.standard,
        asv_chunk=options.speed.chunk_size,
    )
    batches = batches_of(options, study, plan, split)
    trained = fit(task, config, *batches, options, runtime, record.record_fact)
    if trained is None:
        return
    loaded = trained.network
    asv_vectors_FD = encode_asvs(loaded.network.encoder, study, runtime.device)
    embeddings = folder / "embeddings.tsv"
    loaded.write_embeddings(embeddings, study, options.loop.batch_samples, asv_vectors_FD)
    model_folder.write(folder / MODEL, "pretrain", {TRANSFORMER: network_state([loaded.stored])})
    record.finish(
        samples={"training": len(split.train), "validation": len(split.validation)},
        asvs=len(study.table.feature_ids),
        rarefy_depth=plan.rarefy_depth,
        **trained.facts,
    )
    info(f"Encoder: {folder}")


def batches_of(
    options: Pretrain | Train, study: Study, plan: BatchPlan, split: Split
) -> tuple[TrainingBatches, FixedBatches | None]:
    """Return the batches of training samples, and of validation samples if there are any."""
    size, fresh = options.loop.batch_samples, options.sample.rarefy_each_epoch
    training = TrainingBatches(study, plan, split.train, size, fresh, options.loop.even_batches)
    validation = FixedBatches(study, plan, split.validation, size)
    return training, validation if len(split.validation) else None


@dataclass(frozen=True, kw_only=True)
class NetworkSession(Session):
    """Session of a run with a network; the runtime is made when the study has been read."""

    group: Communicator
    base: StoredNetwork | None
    policy: BackendPolicy | None
    ranks: ExitStack

    @classmethod
    def start(
        cls, options: Train, labelled: LabelledStudy | None, policy: BackendPolicy | None
    ) -> NetworkSession:
        """Join the process group of the ranks, and replace `auto` in the options for this host."""
        options = automatic(options, functools.partial(training_run, labelled=labelled))
        with ExitStack() as ranks:
            group = process_group(options.scale, options.device, options.loop.batch_samples)
            communicator = ranks.enter_context(group)
            # Compared before `auto` is replaced, since nodes may differ in their number of cores.
            communicator.require_equal_options(values_of(options))
            options = check_resources(options)
            base = read_pretrained_encoder(options)
            length = choose_length(base, options.sample)
            return cls(
                options=options, length=length, group=communicator, gpus=gpu_names(), base=base,
                policy=policy, ranks=ranks.pop_all(),
            )  # fmt: skip

    def __exit__(self, *error: Any) -> None:
        self.ranks.__exit__(*error)

    @functools.cached_property
    def runtime(self) -> Runtime:
        """Device, precision, attention backends and ranks."""
        # Backends are probed with the attention heads of the encoder.
        sizes = self.base.config.shape if self.base else self.options.model
        return Runtime.choose(self.options, sizes, self.policy, self.group)

    def check(self, study: LabelledStudy) -> Mapping[str, Any]:
        resumed = self.options.run.resume_from
        if len(study.splits) > 1 and isinstance(resumed, Path) and not resumed.is_dir():
            raise UsageError(
                "A cross-validation resumes from its run folder",
                f"--resume-from '{resumed}' is one checkpoint",
                "name the run folder that contains the folds",
            )
        for split in study.splits:
            check_split(split, self.options.loop)
        return {"attention": self.runtime.attention}

    def networks(
        self, study: LabelledStudy, record_fact: RecordFact = no_record, counts_alone: bool = False
    ) -> Mapping[str, Member]:
        options = self.options
        if counts_alone:
            run, columns = options.run, options.covariates
            columns = dataclasses.replace(columns, categorical_columns=(), numeric_columns=())
            folder, resumed = run.output_dir / COUNTS_ALONE, run.resume_from and "auto"
            run = dataclasses.replace(run, output_dir=folder, resume_from=resumed)
            options = dataclasses.replace(options, covariates=columns, run=run)
            study = dataclasses.replace(study, covariates=None)
        network = Transformer(options, study, self.base, self.runtime, record_fact)
        return dict.fromkeys(network_names(options.members), network)

    def leave(self) -> bool:
        self.ranks.close()
        return self.group.ranks.is_main


@dataclass(frozen=True)
class Transformer:
    """Network of a study, see `member.Member`."""

    options: Train  # options of the run; the checkpoints are in its folder
    labelled: LabelledStudy  # the samples with their phylogeny and metadata
    base: StoredNetwork | None  # pretrained encoder; None without one
    runtime: Runtime  # device, precision and ranks
    record_fact: RecordFact  # adds facts to the run record

    def cross_validate(
        self, samples: TrainingSamples, folds: Folds, final: bool = True
    ) -> CrossValidated | None:
        """Train the network of each split and predict its held-out samples, see `member.Member`."""
        began = time.process_time()
        results, splits = self._train_folds(), self.labelled.splits
        if not results:  # on ranks other than the first
            return None
        target = results[0].network.target
        held_out = zip(results, splits, strict=True)
        predictions_NC = np.concatenate(
            [result.predictions[split.held_out[0]] for result, split in held_out]
        )
        points_NC = _points(target, predictions_NC)
        # No second network is trained to leave samples out: those of a fold are its validation
        # samples, and those of the model for new samples the held-out ones.
        left_out: list[F64 | None] = []
        for rows, result, split in zip(folds.fitted_rows, results, folds.splits, strict=False):
            left_out_NC = np.full_like(folds.labels.outputs_NC, np.nan, dtype=np.float64)
            if (validation_NC := result.predictions.get("validation")) is not None:
                left_out_NC[split.validation] = _points(target, validation_NC)
            left_out.append(left_out_NC[rows])
        # Networks of different folds: moved to the mean label of all, see `Estimator.left_out`.
        columns = points_NC.shape[1]
        move_MC = folds.held_out.outputs_NC.mean(axis=0) - folds.baseline_MC[:, :columns]
        left_out_NC = np.full_like(folds.labels.outputs_NC, np.nan, dtype=np.float64)
        left_out_NC[folds.rows_M] = points_NC + move_MC
        left_out.append(left_out_NC[folds.fitted_rows[-1]])
        facts = {"folds": [result.facts for result in results], **results[0].facts}
        return CrossValidated(
            folds.with_levels(points_NC, left_out),
            time.process_time() - began,
            model=TransformerModel(tuple(result.network for result in results)),
            columns=target.quantile_columns(predictions_NC),
            facts=facts,
            left_out=tuple(left_out),
        )

    def _train_folds(self) -> list[Fit]:
        """Train the network of each split; return them on the first rank."""
        options, base, runtime = self.options, self.base, self.runtime
        vectors_FD = None
        if base is not None and options.freeze_base:
            # A frozen encoder encodes all ASVs once for all folds.
            encoder, study = base.build(runtime.backends).encoder, self.labelled.study
            vectors_FD = encode_asvs(encoder, study, runtime.device, options.vectors)
        results = []
        with runtime.stop.handled():
            for fold, split in enumerate(self.labelled.splits, start=1):
                trained = self._train_fold(split, fold, vectors_FD)
                if trained is not None:
                    results.append(trained)
                # All ranks leave together: a rank that went on would wait in a collective for the
                # others.
                if runtime.communicator.any_rank(runtime.stop.pending):
                    raise Interrupted(
                        f"Stopped after fold {fold} of {len(self.labelled.splits)}"
                        f"{runtime.stop.by_signal}",
                        f"the checkpoints in '{options.run.output_dir}' are complete",
                        "continue with --resume-from auto",
                    )
        return results

    def _train_fold(self, split: Split, fold: int, asv_vectors_FD: Tensor | None) -> Fit | None:
        """Train the network of one split (fold); on the first rank predict its held-out samples."""
        options, labelled, runtime = self.options, self.labelled, self.runtime
        study, folds = labelled.study, len(labelled.splits)
        torch.manual_seed(options.loop.seed + fold - 1)
        config = configure_model(options, labelled, self.base, split)
        target = config.target
        network = config.network(runtime.backends, options.speed.gradient_checkpointing)
        assert isinstance(network, Predictor) and target is not None
        if self.base is not None:
            network.encoder.load_state_dict(self.base.encoder_weights)
        # Start from the best constant, so that the first steps do not have to learn the mean.
        network.start_from(target.initial_outputs(labelled.values[split.train]))
        fit_profile(network, study, config.plan.for_inference, split.train)
        if options.freeze_base:
            network.encoder.requires_grad_(False)
        runtime.communicator.require_equal_data(
            study=study, values=labelled.values, split=split, weights=network.state_dict()
        )
        covariates = config.inputs(labelled.covariates)
        if covariates is not None:
            # On the device, so that a step need not wait for the rows of its batch.
            covariates = covariates.to(runtime.device)
        task = TrainingModule(
            network,
            LossWeights.of(options.task, options.target_penalty),
            options.loop,
            optimizer_steps(len(split.train), options.loop),
            target,
            labelled.values,
            asv_vectors_FD,
            config.standard,
            options.speed.chunk_size,
            covariates,
            _study_weights(labelled, split),
        )
        batches = batches_of(options, study, config.plan, split)
        trained = fit(task, config, *batches, options, runtime, self.record_fact, fold, folds)
        if trained is None:
            return None
        return self._apply_to_held_out(trained, split, fold, asv_vectors_FD)

    def _apply_to_held_out(
        self, trained: Fit, split: Split, fold: int, asv_vectors_FD: Tensor | None
    ) -> Fit:
        """Add the predictions of the held-out samples; in the first fold write the embeddings."""
        study, folds, loaded = self.labelled.study, len(self.labelled.splits), trained.network
        network, config, device = loaded.network, loaded.config, loaded.device
        if asv_vectors_FD is None:
            asv_vectors_FD = encode_asvs(network.encoder, study, device)
        plan, batch_size = config.plan.for_inference, self.options.loop.batch_samples
        held_out, rows = split.held_out
        predictions = {}
        # The validation samples weigh the network in an ensemble, and fit the levels of its ranks.
        for name in {held_out, "validation"} if len(split.validation) else {held_out}:
            _, outputs_NC = apply_network(
                network, study, plan, getattr(split, name), batch_size, device, asv_vectors_FD,
                covariates=config.inputs(self.labelled.covariates),
            )  # fmt: skip
            assert outputs_NC is not None
            predictions[name] = loaded.target.decode(outputs_NC)
        ids = [study.table.sample_ids[row] for row in rows]
        require_finite("predictions", ids, predictions[held_out])
        if fold == 1:
            embeddings = self.options.run.output_dir / "embeddings.tsv"
            loaded.write_embeddings(embeddings, study, batch_size, asv_vectors_FD)
        metrics = target_metrics(loaded.target, predictions[held_out], self.labelled.values[rows])
        title = f"Fold {fold} of {folds}, {held_out}" if folds > 1 else held_out.title()
        info(f"{title}: " + ", ".join(f"{name} {value:.3f}" for name, value in metrics.items()))
        scores = {f"{held_out}_{name}": value for name, value in metrics.items()}
        facts = trained.facts | {"best": trained.facts["best"] | scores}
        return Fit(loaded, facts, predictions)


def _points(target: Target, decoded_NC: F64) -> F64:
    """Return class probabilities, or numbers and ranks as one column."""
    points_NC = decoded_NC if target.classes else target.point_predictions(decoded_NC)[:, None]
    return np.asarray(points_NC, dtype=np.float64)


def _study_weights(labelled: LabelledStudy, split: Split) -> F64 | None:
    """Return weights [N] that make categories and studies independent in each set of a split.

    None for numbers and for a single study.
    """
    levels, studies = labelled.levels, labelled.studies
    labels = Labels.of(labelled.values, labelled.classes, None, levels, studies)
    if labels.studies is None or labels.type == "regression":
        return None
    weights_N = np.ones(len(labelled.values))
    for rows in (split.train, split.validation):
        weights_N[rows] = labels.take(rows).weights_N
    return weights_N


def fit_profile(
    network: Predictor, study: Study, plan: BatchPlan, rows: npt.NDArray[np.int64]
) -> None:
    """Standardize the community profile of a predictor by the training samples `rows`."""
    profile = network.profile
    if profile is None:
        return
    batches = FixedBatches(study, plan, rows, CHUNK // 8)
    steps = track(range(len(batches)), "Profiles", len(batches), "batches")
    fixed = (batches[k] for k in steps)
    profile.fit(profile.raw(profile.features(b.tokens_UL), b.slots_BS, b.counts_BS) for b in fixed)


def optimizer_steps(samples: int, loop: LoopOptions) -> int:
    """Return the number of optimizer steps of a run, with gradient accumulation.

    >>> optimizer_steps(100, LoopOptions(epochs=2, batch_size=32, gradient_accumulation_steps=2))
    4
    """
    batches = math.ceil(samples / loop.batch_samples)
    return loop.epochs * math.ceil(batches / loop.gradient_accumulation_steps)


def check_split(split: Split, loop: LoopOptions) -> None:
    """Refuse a split that has fewer training samples than a batch."""
    if len(split.train) < loop.batch_samples:
        raise DataError(
            "Fewer training samples than a batch",
            f"{len(split.train)} samples, --batch-size {loop.batch_samples}",
            "choose a smaller --batch-size",
        )
