"""`aam train`: training of a predictor."""

from __future__ import annotations

from aam.contract.options.commands import Train
from aam.training.train import train


def run(options: Train) -> None:
    """Train a predictor."""
    train(options)
