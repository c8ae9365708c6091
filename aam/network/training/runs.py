"""Runs of the network: pretraining without labels, and the training and predictions of one fold."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aam.arrays import F64
from aam.console import info, track, warn
from aam.contract.errors import UsageError
from aam.contract.options import to_plain, values_of
from aam.contract.options.commands.train import Pretrain, Train
from aam.contract.options.groups import (
    TRANSFORMER,
    MaskOptions,
    Metric,
    ModelOptions,
    PhylogenyOptions,
    SampleOptions,
    TableOptions,
)
from aam.contract.run_files import MODEL
from aam.data.covariates import CovariateEncoder
from aam.data.metadata import read_metadata
from aam.data.store import Store, is_store
from aam.data.study import Study, load_study
from aam.data.targets import OutputRange
from aam.evaluation.labels import Labels
from aam.evaluation.splits import Split, split_samples, write_splits
from aam.evaluation.subjects import find_subjects
from aam.members.output_tables import require_finite
from aam.network.batches import BatchPlan, FixedBatches, TrainingBatches
from aam.network.distributed import strategies
from aam.network.distributed.process_group import process_group
from aam.network.inference.outputs import CHUNK, apply_network, encode_asvs
from aam.network.inference.stored_networks import (
    DiversityScale,
    ModelConfig,
    StoredNetwork,
    Target,
    network_state,
    read_networks,
)
from aam.network.model.network import Encoder, Predictor
from aam.network.model.shape import CovariateShape, NetworkShape
from aam.network.numerics.backends import BackendPolicy
from aam.network.numerics.device import gpu_names
from aam.network.training.fit import Fit, check_split, fit, optimizer_steps
from aam.network.training.module import LossWeights, TrainingModule, target_metrics
from aam.network.training.runtime import Runtime, check_resources
from aam.network.unifrac import faith_pd
from aam.pipeline import run_folder
from aam.pipeline.labelled_study import LabelledStudy, choose_depth, deep_enough
from aam.pipeline.run_folder import RecordFact
from aam.serialization import model_folder

HIDDEN_RATIO = 0.15  # fraction of the abundances that --count-penalty hides

_FAITH_SAMPLES = 256
"""Samples whose Faith PD is computed together: their tree branches are dense in memory."""


def pretrain(options: Pretrain, policy: BackendPolicy | None = None) -> None:
    """Pretrain an encoder and write its run folder."""
    task = options.task
    if task.penalty and not has_phylogeny(options.input, options.phylogeny):
        no_tree = " and the store has no tree" if is_store(options.input.table) else ""
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
        prepared = run_folder.prepare("pretrain", options, communicator, gpu_names())
        base = read_pretrained_encoder(options.pretrained_encoder)
        study, metric, plan = load_pretraining_study(options, base)
        metadata = None if options.metadata is None else read_metadata(options.metadata)
        splits, seed = options.split, options.loop.seed
        if prepared.splits is not None:
            splits = dataclasses.replace(splits, splits=prepared.splits)
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


def load_pretraining_study(
    options: Pretrain, base: StoredNetwork | None
) -> tuple[Study, Metric, BatchPlan]:
    """Read the study of a pretraining without shallow samples; return its metric and batch plan."""
    length = choose_length(base, options.sample)
    study = load_study(options.input, options.phylogeny, length).sorted_by_id()
    depth = choose_depth(study, options.sample.rarefy_depth)
    study = study.take_samples(deep_enough(study, depth))
    metric = choose_metric(base, options.phylogeny)
    return study, metric, batch_plan(options, options.task, study, depth, metric)


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
    assert isinstance(network, Encoder)
    if base is not None:
        strategies.load_model(network, base.encoder_weights)
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


def batch_plan(
    options: Pretrain | Train, task: MaskOptions, study: Study, depth: int, metric: Metric
) -> BatchPlan:
    """Build the batch plan of a run; data of loss terms with weight 0 in `task` is omitted."""
    related = study.phylogeny is not None or study.distances is not None
    return BatchPlan(
        seed=options.loop.seed,
        rarefy_depth=depth,
        token_limit=options.sample.token_limit,
        mask_ratio=task.nuc_mask_ratio if task.nuc_penalty else 0.0,
        metric=metric if related and task.penalty else None,
        alpha=options.phylogeny.unifrac_alpha,
        hidden_ratio=HIDDEN_RATIO if task.count_penalty else 0.0,
    )


def diversity_scale(study: Study, plan: BatchPlan, rows: npt.NDArray[np.int64]) -> DiversityScale:
    """Return the scale of Faith PD in the training samples; the default for other metrics."""
    if plan.metric != "faith_pd" or study.phylogeny is None:
        return DiversityScale()
    chunks = (rows[start : start + _FAITH_SAMPLES] for start in range(0, len(rows), _FAITH_SAMPLES))
    diversities = [faith_pd(study.table.counts[chunk], study.phylogeny) for chunk in chunks]
    values = torch.from_numpy(np.concatenate(diversities))
    return DiversityScale(float(values.mean()), float(values.std()) or 1.0)


def read_pretrained_encoder(path: Path | None) -> StoredNetwork | None:
    """Read the encoder of a model (of its first fold); None without a path."""
    if path is None:
        return None
    stored = read_networks(path)[0]
    shape = stored.config.shape
    info(
        f"Pretrained encoder: width {shape.embedding_dim}, {shape.attention_layers} layers, patch "
        f"{shape.nucleotide_patch}, from '{path}'."
    )
    return stored


def choose_length(base: StoredNetwork | None, options: SampleOptions) -> int | None:
    """Return the length to which sequences are cut; None for the longest sequence of the table."""
    if base is not None:
        return base.config.shape.max_bp
    return None if options.max_bp == "auto" else options.max_bp


def choose_metric(base: StoredNetwork | None, options: PhylogenyOptions) -> Metric:
    """Return the phylogenetic metric of a run; a pretrained encoder keeps its own metric."""
    requested = options.unifrac_metric
    metric: Metric = "unweighted" if requested == "unifrac" else requested  # an alias
    if base is not None and base.config.metric != metric:
        warn(f"The pretrained encoder keeps its UniFrac metric: {base.config.metric}.")
        return base.config.metric
    return metric


def choose_shape(
    base: StoredNetwork | None,
    study: Study,
    model: ModelOptions,
    plan: BatchPlan,
    rows: npt.NDArray[np.int64],
) -> tuple[NetworkShape, DiversityScale]:
    """Return the sizes of the encoder and the scale of Faith PD; a pretrained encoder has both."""
    if base is None:
        sizes = {
            name: getattr(model, name)
            for name in ("embedding_dim", "attention_heads", "attention_layers", "nucleotide_patch")
        }
        length, counts = study.tokens_FL.shape[1], plan.hidden_ratio > 0
        shape = NetworkShape(length, **sizes, dropout=model.dropout, predicts_counts=counts)
        return shape, diversity_scale(study, plan, rows)
    if plan.hidden_ratio and not base.config.shape.predicts_counts:
        raise UsageError(
            "The pretrained encoder cannot predict abundances",
            "it was pretrained without --count-penalty",
            "omit --count-penalty, or pretrain with it",
        )
    # Without the target heads of the pretrained model; `configure_model` adds new heads.
    shape = dataclasses.replace(
        base.config.shape,
        dropout=model.dropout,
        outputs=0,
        profile_features=0,
        profile_dropout=NetworkShape.profile_dropout,
        covariates=None,
    )
    return shape, base.config.standard


def train_fold(
    options: Train,
    labelled: LabelledStudy,
    base: StoredNetwork | None,
    split: Split,
    fold: int,
    record_fact: RecordFact,
    runtime: Runtime,
    asv_vectors_FD: Tensor | None = None,  # of every ASV, by a frozen encoder
) -> Fit | None:
    """Train the network of one split (fold); on the first rank predict its held-out samples."""
    study, folds = labelled.study, len(labelled.splits)
    torch.manual_seed(options.loop.seed + fold - 1)
    config = configure_model(options, labelled, base, split)
    target = config.target
    network = config.network(runtime.backends, options.speed.gradient_checkpointing)
    assert isinstance(network, Predictor) and target is not None
    if base is not None:
        strategies.load_model(network.encoder, base.encoder_weights)
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
    trained = fit(task, config, *batches, options, runtime, record_fact, fold, folds)
    if trained is None:
        return None
    return _apply_to_held_out(trained, options, labelled, split, fold, asv_vectors_FD)


def fit_target(options: Train, labelled: LabelledStudy, split: Split) -> Target:
    """Build the target, with class weights or a transform fitted to the training samples."""
    weights, transform = labelled.fit_labels(split, options.target_transform, options.class_weights)
    column = labelled.column
    if labelled.classes:
        return Target(column, labelled.classes, weights)
    return Target(
        column,
        transform=transform,
        loss_type=options.loss_type,
        quantiles=tuple(sorted(options.quantiles)) if options.loss_type == "quantile" else (),
        over_penalty=options.over_penalty,
        under_penalty=options.under_penalty,
        range=OutputRange.of(labelled.levels, options.output_min, options.output_max),
        levels=labelled.levels,
    )


def _apply_to_held_out(
    trained: Fit,
    options: Train,
    labelled: LabelledStudy,
    split: Split,
    fold: int,
    asv_vectors_FD: Tensor | None,
) -> Fit:
    """Add the predictions of the held-out samples; in the first fold write the embeddings too."""
    study, folds, config = labelled.study, len(labelled.splits), trained.network.config
    network, target, device = trained.network.network, config.target, trained.network.device
    assert isinstance(network, Predictor) and target is not None
    if asv_vectors_FD is None:
        asv_vectors_FD = encode_asvs(network.encoder, study, device)
    plan, batch_size = config.plan.for_inference, options.loop.batch_samples
    held_out, rows = split.held_out
    predictions = {}
    # The validation samples weigh the network in an ensemble, and fit the levels of its ranks.
    for name in {held_out, "validation"} if len(split.validation) else {held_out}:
        _, outputs_NC = apply_network(
            network, study, plan, getattr(split, name), batch_size, device, asv_vectors_FD,
            covariates=config.inputs(labelled.covariates),
        )  # fmt: skip
        assert outputs_NC is not None
        predictions[name] = target.decode(outputs_NC)
    require_finite(
        "predictions", [study.table.sample_ids[row] for row in rows], predictions[held_out]
    )
    if fold == 1:
        embeddings = options.run.output_dir / "embeddings.tsv"
        trained.network.write_embeddings(embeddings, study, batch_size, asv_vectors_FD)
    metrics = target_metrics(target, predictions[held_out], labelled.values[rows])
    title = f"Fold {fold} of {folds}, {held_out}" if folds > 1 else held_out.title()
    info(f"{title}: " + ", ".join(f"{name} {value:.3f}" for name, value in metrics.items()))
    best = trained.facts["best"] | {f"{held_out}_{name}": value for name, value in metrics.items()}
    return Fit(trained.network, trained.facts | {"best": best}, predictions)


def configure_model(
    options: Train,
    labelled: LabelledStudy,
    base: StoredNetwork | None,
    split: Split,
) -> ModelConfig:
    """Return the configuration of the network of one split, fitted to its training samples."""
    target = fit_target(options, labelled, split)
    metric = choose_metric(base, options.phylogeny)
    task = options.task
    if options.freeze_base:
        # A frozen encoder does not learn from its pretraining tasks.
        task = dataclasses.replace(task, penalty=0.0, nuc_penalty=0.0, count_penalty=0.0)
    plan = batch_plan(options, task, labelled.study, labelled.depth, metric)
    encoder = covariates = None
    if labelled.covariates is not None:
        encoder = CovariateEncoder.fit(labelled.covariates.take(split.train))
    if encoder is not None:
        covariates = CovariateShape(
            tuple(len(names) + 1 for names in encoder.categories.values()),
            2 * len(encoder.numbers),
            options.covariates.categorical_embed_dim,
            options.covariates.categorical_fusion,
        )
    shape, standard = choose_shape(base, labelled.study, options.model, plan, split.train)
    shape = dataclasses.replace(
        shape,
        outputs=target.outputs,
        profile_features=options.profile_features,
        profile_dropout=options.profile_dropout,
        covariates=covariates,
    )
    return ModelConfig("train", shape, metric, plan, standard, target, to_plain(options), encoder)


def encode_frozen(
    options: Train, base: StoredNetwork, labelled: LabelledStudy, runtime: Runtime
) -> Tensor:
    """Encode all ASVs with a frozen encoder, once for all folds."""
    encoder = Encoder(base.config.shape, base.config.metric, runtime.backends)
    strategies.load_model(encoder, base.encoder_weights)
    return encode_asvs(encoder, labelled.study, runtime.device, options.vectors)


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


def has_phylogeny(input: TableOptions, phylogeny: PhylogenyOptions) -> bool:
    """Return whether the options, or the store, name a tree or a distance matrix."""
    if phylogeny.tree is not None or phylogeny.unifrac_matrix is not None:
        return True
    return is_store(input.table) and Store(input.table).header.has_tree


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
