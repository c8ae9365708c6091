"""Pretraining run: learn an encoder without labels, from input files to a run folder."""

from __future__ import annotations

import torch

from aam.console import info
from aam.contract.errors import UsageError
from aam.contract.options import to_plain
from aam.contract.options.commands.pretrain import Pretrain
from aam.contract.options.study import Metric
from aam.contract.preflight import MODEL
from aam.data.batches import BatchPlan
from aam.data.metadata import read_metadata
from aam.data.splits import Split, write_splits
from aam.data.store import is_store
from aam.data.study import Study, has_phylogeny, load_study
from aam.data.targets import split_samples
from aam.distributed import strategies
from aam.distributed.collectives import identity
from aam.distributed.process_group import process_group
from aam.inference.outputs import encode_asvs, write_study_embeddings
from aam.inference.stored_networks import TRANSFORMER, ModelConfig, network_state
from aam.model.network import Encoder
from aam.numerics.backends import TORCH_POLICY, BackendPolicy
from aam.numerics.device import gpu_names
from aam.serialization import model_folder
from aam.training import checkpoints, fit, run_folder
from aam.training.labelled_study import choose_depth, deep_enough
from aam.training.module import LossWeights, TrainingModule
from aam.training.pretrained import (
    PretrainedEncoder,
    batch_plan,
    choose_length,
    choose_metric,
    choose_shape,
    read_pretrained_encoder,
)
from aam.training.runtime import Runtime, check_resources, make_runtime, numbers_of_host


def pretrain(options: Pretrain, policy: BackendPolicy = TORCH_POLICY) -> None:
    """Pretrain an encoder and write its run folder; `policy` has the attention backends.

    Raises:
        AamError: see the readers.
        UsageError: the UniFrac loss has neither a tree nor a distance matrix.
    """
    task = options.task
    if task.penalty and not has_phylogeny(options.input, options.phylogeny):
        made = " and the store has no tree" if is_store(options.input.table) else ""
        raise UsageError(
            "UniFrac needs a phylogeny",
            f"neither --tree nor --unifrac-matrix was given{made}",
            "give one, or --penalty 0 to learn from sequences and abundances alone",
        )
    if not (task.penalty or task.nuc_penalty or task.count_penalty):
        weights = "--penalty 0 --nuc-penalty 0 --count-penalty 0"
        raise UsageError("Nothing to learn", weights, "raise one of them")
    with process_group(options.scale, options.device, options.loop.batch_samples) as communicator:
        communicator.require_equal_options(options)
        check_resources(options)
        options = numbers_of_host(options)
        prepared = run_folder.prepare("pretrain", options, communicator, gpu_names())
        base = read_pretrained_encoder(options.pretrained_encoder)
        study, metric, plan = load_pretraining_study(options, base)
        metadata = None if options.metadata is None else read_metadata(options.metadata)
        splits, seed = prepared.split_options(options.split), options.loop.seed
        (split, *_), labels = split_samples(splits, 1, seed, study.table.sample_ids, metadata)
        fit.check_split(split, options.loop)
        shape, standard = choose_shape(base, study, options.model, plan, split.train)
        config = ModelConfig("pretrain", shape, metric, plan, standard, None, to_plain(options))
        runtime = make_runtime(options, shape, policy, communicator)
        with run_folder.begin(prepared, communicator, attention=runtime.attention) as record:
            if communicator.ranks.is_main:
                path = prepared.folder / "splits.tsv"
                write_splits(path, study.table.sample_ids, [split], labels)
            _learn(options, config, study, split, base, record, runtime)


def load_pretraining_study(
    options: Pretrain, base: PretrainedEncoder | None
) -> tuple[Study, Metric, BatchPlan]:
    """Read the study without shallow samples; return its phylogenetic metric and batch plan too."""
    study = load_study(options.input, options.phylogeny, choose_length(base, options.sample))
    depth = choose_depth(study, options.sample)
    study = study.take_samples(deep_enough(study, depth))
    metric = choose_metric(base, options.phylogeny)
    return study, metric, batch_plan(options, options.task, study, depth, metric)


def _learn(
    options: Pretrain,
    config: ModelConfig,
    study: Study,
    split: Split,
    base: PretrainedEncoder | None,
    record: run_folder.RunRecord,
    runtime: Runtime,
) -> None:
    """Train the encoder, and write the embeddings of the study."""
    folder, plan = options.run.output_dir, config.plan
    torch.manual_seed(options.loop.seed)
    network = config.network(runtime.backends, options.speed.gradient_checkpointing)
    assert isinstance(network, Encoder)
    if base is not None:
        strategies.load_model(network, base.weights)
    # Ranks whose data or weights differ would train without an error, to a wrong result.
    runtime.communicator.require_equal_data(
        study=identity(study), split=split, plan=plan, weights=network.state_dict()
    )
    steps = fit.optimizer_steps(len(split.train), options.loop)
    weights = LossWeights.of(options.task)
    task = TrainingModule(
        network,
        weights,
        options.loop,
        steps,
        standard=config.standard,
        asv_chunk=options.speed.chunk_size,
    )
    settings = fit.FitConfig(options, config, folder, runtime, record.record_fact)
    result = fit.fit_split(settings, task, study, split)
    if not runtime.communicator.ranks.is_main:
        return
    # From the file: the module has the weights of the last epoch, or shards of them, and the
    # checkpoint those of the chosen one.
    stored = checkpoints.read(result.checkpoint).network
    trained = stored.build(runtime.backends)
    assert isinstance(trained, Encoder)
    asv_vectors_FD = encode_asvs(trained, study, runtime.device)
    write_study_embeddings(folder, trained, study, plan, options.loop.batch_samples, asv_vectors_FD)
    model_folder.write(folder / MODEL, "pretrain", {TRANSFORMER: network_state([stored])})
    record.finish(
        samples={"training": len(split.train), "validation": len(split.validation)},
        asvs=len(study.table.feature_ids),
        rarefy_depth=plan.rarefy_depth,
        parameters=sum(p.numel() for p in trained.parameters()),
        epochs=result.epochs,
        steps=result.steps,
        best=result.best,
    )
    info(f"Encoder: {folder}")
