"""`aam memory`: predicted peak memory of a training step or of inference, and where it fits."""

from __future__ import annotations

from aam.contract.errors import DataError
from aam.contract.options.commands.memory import (
    MemoryPredict,
    MemoryPretrain,
    MemoryTrain,
)
from aam.data.study import load_study
from aam.members import checkpoint
from aam.performance.memory.report import show_step, show_training
from aam.performance.memory.runs import predict_inference, pretraining_run, training_run
from aam.training.run_files import checkpoints
from aam.training.run_files.checkpoints import checkpoint_files


def run(options: MemoryPretrain | MemoryTrain | MemoryPredict) -> None:
    """Print the memory of a step on the samples with most ASVs, and the GPUs on which it fits.

    Raises:
        AamError: see the readers.
        DataError: the model has no network.
    """
    if isinstance(options, MemoryPretrain):
        show_training(pretraining_run(options), options)
    elif isinstance(options, MemoryTrain):
        show_training(training_run(options), options)
    else:
        _show_inference(options)


def _show_inference(options: MemoryPredict) -> None:
    """Print the memory of encoding all ASVs and of reading the samples with most of them."""
    if (path := checkpoint.find(options.model)) is not None:
        configs = [config for config, _ in checkpoint.read(path).networks]
        if not configs:
            raise DataError(
                "The model has no network",
                f"'{path}' combines members without a GPU",
                "name a model with the member transformer",
            )
    else:
        configs = [checkpoints.read(file)[0] for file in checkpoint_files(options.model)]
    study = load_study(options.input, max_bp=configs[0].shape.max_bp)
    memory = predict_inference(configs[0], study, options.batch_size, len(configs))
    show_step(memory, f"--batch-size {options.batch_size}", options.gpu)
