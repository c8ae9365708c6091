"""`aam train`."""

from __future__ import annotations

from aam.learn.training import train
from aam.options.commands import Train


def run(options: Train) -> None:
    """Train a predictor."""
    train(options)
