"""`aam memory`: predicted memory of a training or prediction, and the GPUs on which it fits."""

from __future__ import annotations

from aam.contract.errors import UsageError
from aam.contract.options.commands.measure import Memory
from aam.contract.options.commands.train import Pretrain, Train
from aam.contract.options.commands.use import Embed, Predict
from aam.data.study import load_study
from aam.network.batch_size import show_step, show_training
from aam.network.inference.stored_networks import read_networks
from aam.network.memory_prediction import predict_inference, pretraining_run, training_run


def run_memory(options: Memory, measured: Pretrain | Train | Predict | Embed) -> None:
    """Print the memory of a step on the samples with most ASVs, and the GPUs on which it fits."""
    if isinstance(measured, Pretrain):
        show_training(pretraining_run(measured), measured, options)
        return
    if isinstance(measured, Train):
        show_training(training_run(measured), measured, options)
        return
    # Inference encodes all ASVs, and reads the samples with most of them.
    if options.device_memory is not None:
        raise UsageError(
            "--device-memory finds the settings of a training",
            f"--device-memory {options.device_memory:g}",
            "leave it out, and see where the batch fits",
        )
    configs = [network.config for network in read_networks(measured.model)]
    study = load_study(measured.input, max_bp=configs[0].shape.max_bp)
    memory = predict_inference(configs[0], study, measured.batch_size, len(configs))
    show_step(memory, f"--batch-size {measured.batch_size}", options)
