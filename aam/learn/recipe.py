"""What a checkpoint says beside its weights: all that `aam predict` needs to know."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from aam import __version__
from aam.errors import DataError
from aam.learn.target import Target
from aam.learn.transforms import TargetTransform
from aam.model.attention import AUTO, Backends
from aam.model.network import Encoder, Predictor
from aam.model.shape import VOCABULARY, NetworkShape
from aam.options.groups import Metric
from aam.study.batches import BatchPlan
from aam.study.sequences import VOCABULARY as LETTERS

FORMAT = 2
"""Version of a checkpoint; a newer one is refused, an older one is brought up to date when read."""


@dataclass(frozen=True)
class Standard:
    """Mean and spread of Faith PD in the training samples."""

    mean: float = 0.0
    spread: float = 1.0


@dataclass(frozen=True)
class Recipe:
    """What a network is and how its input is made.

    Attributes:
        command: "pretrain" or "train".
        shape: sizes of the network.
        metric: phylogenetic measure that its embeddings were trained for.
        plan: how samples become batches, without masks and phylogeny.
        standard: of Faith PD.
        target: what it predicts; None after pretraining.
        options: the options of the command, as plain values.
    """

    command: str
    shape: NetworkShape
    metric: Metric
    plan: BatchPlan
    standard: Standard
    target: Target | None
    options: dict[str, Any]

    def network(self, backends: Backends = AUTO, recompute: bool = False) -> Encoder | Predictor:
        """Build the network with fresh weights."""
        kind = Encoder if self.target is None else Predictor
        return kind(self.shape, self.metric, backends, recompute)


def to_plain(recipe: Recipe) -> dict[str, Any]:
    """Turn a recipe into dictionaries, lists, strings and numbers."""
    return {
        "format": FORMAT,
        "version": __version__,
        "torch": str(torch.__version__),
        "vocabulary": "".join(LETTERS),
        **asdict(recipe),
    }


def from_plain(stored: dict[str, Any], path: Path) -> Recipe:
    """Undo `to_plain`.

    Raises:
        DataError: the recipe is of a newer format or of another vocabulary.
    """
    if stored["format"] > FORMAT:
        raise DataError(
            "The checkpoint was written by a newer version",
            f"'{path}', aam {stored['version']}, format {stored['format']}",
            f"use that version (this is {__version__})",
        )
    if stored["vocabulary"] != "".join(LETTERS):
        raise DataError(
            "The checkpoint has another vocabulary", f"'{stored['vocabulary']}'", "train it again"
        )
    assert len(LETTERS) == VOCABULARY
    target = stored["target"]
    return Recipe(
        command=stored["command"],
        shape=NetworkShape(**stored["shape"]),
        metric=stored["metric"],
        plan=BatchPlan(**stored["plan"]),
        standard=Standard(**stored["standard"]),
        target=target and _target(target),
        options=stored["options"],
    )


def _target(stored: dict[str, Any]) -> Target:
    transform = stored["transform"]
    lists = {name: tuple(stored[name]) for name in ("classes", "class_weights", "quantiles")}
    return Target(**{**stored, **lists, "transform": transform and TargetTransform(**transform)})
