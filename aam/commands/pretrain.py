"""`aam pretrain`."""

from __future__ import annotations

from aam.learn.pretraining import pretrain
from aam.options.commands import Pretrain


def run(options: Pretrain) -> None:
    """Learn an encoder."""
    pretrain(options)
