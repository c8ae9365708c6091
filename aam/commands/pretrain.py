"""`aam pretrain`: pretraining of an encoder without labels."""

from __future__ import annotations

from aam.contract.options.commands.pretrain import Pretrain
from aam.performance.memory.fit import automatic
from aam.performance.memory.runs import pretraining_run
from aam.training.pretrain import pretrain


def run(options: Pretrain) -> None:
    """Pretrain an encoder."""
    pretrain(automatic(options, pretraining_run))
