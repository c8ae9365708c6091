"""`aam pretrain`."""

from __future__ import annotations

from aam.contract.options.commands import Pretrain
from aam.training.pretrain import pretrain


def run(options: Pretrain) -> None:
    """Learn an encoder."""
    pretrain(options)
