"""Command `aam pretrain`: train an encoder without labels."""

from __future__ import annotations

from aam.contract.options.commands.train import Pretrain
from aam.contract.preflight import check_run_folder


def run_pretrain(options: Pretrain) -> None:
    """Run `aam pretrain`."""
    run = options.run
    check_run_folder(run.output_dir, run.overwrite, run.resume_from is not None)
    # The import of PyTorch takes 2 CPU-seconds, so refusals come first.
    from aam.network.batch_size import automatic
    from aam.network.memory_prediction import pretraining_run
    from aam.network.training.runs import pretrain

    pretrain(automatic(options, pretraining_run))
