"""`aam pretrain`: pretraining of an encoder without labels."""

from __future__ import annotations

from aam.contract.options.commands.pretrain import Pretrain
from aam.contract.preflight import check_run_folder, is_usable


def run(options: Pretrain) -> None:
    """Pretrain an encoder."""
    check_run_folder(options.run.output_dir, is_usable(options.run))
    # PyTorch takes 4 CPU-seconds to import, which a refusal does without.
    from aam.performance.fit import automatic
    from aam.performance.memory import pretraining_run
    from aam.training.pretrain import pretrain

    pretrain(automatic(options, pretraining_run))
