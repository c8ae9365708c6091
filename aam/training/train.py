"""Training run: from input files to a run folder, with one split or one model for each fold."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch

from aam.console import say
from aam.contract.errors import UsageError
from aam.contract.options.commands import Train
from aam.contract.precision import choose_precision
from aam.data.splits import Split, write_splits
from aam.distributed.communicator import Communicator, identity
from aam.distributed.process_group import process_group
from aam.model.network import Predictor
from aam.numerics.backend_selection import TORCH_POLICY, BackendPolicy
from aam.numerics.device import arch_of, choose_device
from aam.training import checkpoints, fit, run_folder
from aam.training.inference import apply_network, encode_asvs
from aam.training.initialization import initialize
from aam.training.labelled_study import LabelledStudy, fit_target, load_labelled_study
from aam.training.lightning_module import LossWeights, TrainingModule, target_metrics
from aam.training.output_tables import prediction_table, write_table
from aam.training.pipeline import (
    check_network_size,
    fit_split,
    load_trained,
    write_study_embeddings,
)
from aam.training.pretrained import PretrainedEncoder, choose_length, read_pretrained_encoder
from aam.training.runtime import Runtime, make_runtime
from aam.training.sample_selection import reading_plan
from aam.training.training_summary import reference_rows, summarize


def train(options: Train, policy: BackendPolicy = TORCH_POLICY) -> None:
    """Train one model, or one per fold, and write the run folder.

    `policy` selects the attention backends.

    Raises:
        AamError: see the readers and `load_labelled_study`.
    """
    with process_group(options.scale, options.device, options.loop.batch_size) as communicator:
        _train(options, policy, communicator)


def _train(options: Train, policy: BackendPolicy, communicator: Communicator) -> None:
    """Read and check the input, and train, as one of the ranks."""
    communicator.require_equal_options(options)
    _check_options(options)
    prepared = run_folder.prepare("train", options, communicator.ranks)
    base = read_pretrained_encoder(options.pretrained_encoder)
    labelled = load_labelled_study(options, choose_length(base, options.sample), prepared.splits)
    if len(labelled.splits) > 1:
        checkpoints.check_folds(options.run)
    for split in labelled.splits:
        fit.check_split(split, options.loop)
        fit_target(options, labelled, split)
    sizes = base.config.shape if base else options.model
    runtime = make_runtime(options, sizes, policy, communicator)
    with run_folder.begin(prepared, communicator.ranks, attention=runtime.attention) as record:
        _train_folds(options, labelled, base, record, runtime)


def _train_folds(
    options: Train,
    labelled: LabelledStudy,
    base: PretrainedEncoder | None,
    record: run_folder.RunRecord,
    runtime: Runtime,
) -> None:
    """Train the model of each split; a resumed run trains the rest of each.

    A completed fold is only applied to its samples.
    """
    folder = options.run.output_dir
    if runtime.communicator.ranks.is_main:
        write_splits(
            folder / "splits.tsv", labelled.study.table.sample_ids, labelled.splits, labelled.labels
        )
    of_folds = [
        train_fold(options, labelled, base, split, fold, record, runtime)
        for fold, split in enumerate(labelled.splits, start=1)
    ]
    results = [result for result in of_folds if result is not None]
    if not results:
        return
    predictions = pd.concat([table for table, _ in results], ignore_index=True)
    write_table(folder / "predictions.tsv", predictions)
    record.finish(
        samples={
            part: len(getattr(labelled.splits[0], part)) for part in ("train", "validation", "test")
        },
        asvs=len(labelled.study.table.feature_ids),
        rarefy_depth=labelled.depth,
        classes=labelled.classes,
        folds=[facts for _, facts in results],
        **results[0][1],
    )
    say(f"Model: {folder}")


def train_fold(
    options: Train,
    labelled: LabelledStudy,
    base: PretrainedEncoder | None,
    split: Split,
    fold: int,
    record: run_folder.RunRecord,
    runtime: Runtime,
) -> tuple[pd.DataFrame, dict[str, object]] | None:
    """Train the model of one split; return its predictions and the facts for the run record.

    Only the first rank applies the model; the others return None.
    """
    study, folds, device = labelled.study, len(labelled.splits), runtime.device
    torch.manual_seed(options.loop.seed + fold - 1)
    target = fit_target(options, labelled, split)
    initial = initialize(options, labelled, base, split, target, device, runtime.backends)
    config = initial.config
    runtime.communicator.require_equal_data(
        study=identity(study),
        values=labelled.values,
        split=split,
        weights=initial.network.state_dict(),
    )
    task = TrainingModule(
        initial.network,
        LossWeights.of(options.task, options.target_penalty),
        options.loop,
        fit.optimizer_steps(len(split.train), options.loop),
        target,
        labelled.values,
        initial.asv_vectors_FD,
        config.standard,
    )
    folder = _fold_folder(options.run.output_dir, folds, fold)
    metric = options.best_metric
    result = fit_split(
        options, config, task, study, split, folder, record, runtime, metric, fold, folds
    )
    if not runtime.communicator.ranks.is_main:
        return None
    network = load_trained(config, result, runtime)
    assert isinstance(network, Predictor)
    asv_vectors_FD = initial.asv_vectors_FD
    if asv_vectors_FD is None:
        asv_vectors_FD = encode_asvs(network.encoder, study, device)
    plan, batch_size = reading_plan(config.plan), options.loop.batch_size
    reference = reference_rows(split.train, plan.seed)
    known = apply_network(
        network.encoder, study, plan, reference, batch_size, device, asv_vectors_FD
    )
    checkpoints.add_training_summary(
        result.checkpoint, summarize(study, split, plan, reference, known.embeddings_ND)
    )
    part, rows = split.held_out
    output = apply_network(network, study, plan, rows, batch_size, device, asv_vectors_FD)
    assert output.outputs_NC is not None
    predictions, values = target.decode(output.outputs_NC), labelled.values[rows]
    ids = [study.table.sample_ids[row] for row in rows]
    table = prediction_table(target, ids, predictions, values)
    table.insert(1, "fold", fold)
    table.insert(2, "split", part)
    if fold == 1:
        write_study_embeddings(
            options.run.output_dir, config, network, study, batch_size, device, asv_vectors_FD
        )
    metrics = target_metrics(target, predictions, values)
    title = f"Fold {fold} of {folds}, {part}" if folds > 1 else part.title()
    say(f"{title}: " + ", ".join(f"{name} {value:.3f}" for name, value in metrics.items()))
    facts = {
        "parameters": sum(p.numel() for p in network.parameters()),
        "epochs": result.epochs,
        "steps": result.steps,
        "best": result.best | {f"{part}_{name}": value for name, value in metrics.items()},
    }
    return table, facts


def _check_options(options: Train) -> None:
    """Refuse options that contradict each other, before anything is read.

    Raises:
        UsageError: see the messages.
    """
    choose_precision(options.speed.mixed_precision, arch_of(choose_device(options.device)))
    if options.pretrained_encoder is None:
        check_network_size(options.model, options.device, options.scale)
    if options.freeze_base and options.pretrained_encoder is None:
        raise UsageError(
            "Nothing to freeze", "--freeze-base without --pretrained-encoder", "name an encoder"
        )
    regression_only = options.best_metric in ("r2", "mae")
    if regression_only == options.target.classifier and options.best_metric != "val_loss":
        raise UsageError(
            "The metric does not fit the target",
            f"--best-metric {options.best_metric}",
            "r2 and mae are for numbers, accuracy and f1 for classes",
        )
    if options.loss_type == "quantile" and not all(0 < q < 1 for q in options.quantiles):
        raise UsageError("No quantiles", f"--quantiles {options.quantiles}", "give 0 to 1")


def _fold_folder(folder: Path, folds: int, fold: int) -> Path:
    return folder if folds == 1 else folder / f"fold-{fold}"
