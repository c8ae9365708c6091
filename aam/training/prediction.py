"""Answers for new samples from checkpoints alone: one model, or the mean of a run's folds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from aam.console import say, warn
from aam.contract.errors import DataError, MissingInput, first_few
from aam.contract.options.groups import DeviceOptions, TableOptions
from aam.data.study import Study, load_study
from aam.model.network import Encoder, Predictor
from aam.numerics.backend_selection import GUARD, Guard, Guarded
from aam.numerics.device import choose_device
from aam.training import checkpoints
from aam.training.checkpoint_content import Recipe
from aam.training.inference import Readout, read_out, remember_asvs, shallow
from aam.training.runtime import choose_attention
from aam.training.sample_selection import reading_plan


@dataclass(frozen=True)
class Model:
    """A network with its recipe, ready to read samples.

    `attention` tells for the record what computes it (see `aam.numerics.backend_selection`).
    """

    recipe: Recipe
    network: Encoder | Predictor
    attention: dict[str, Any]


def load_models(path: Path, device: DeviceOptions, guard: Guard = GUARD) -> list[Model]:
    """Load the model of a checkpoint or run folder; of a cross-validated run, one a fold.

    `guard` holds the attention backends that may compute.

    Raises:
        MissingInput: there is no checkpoint.
        DataError: it cannot be read, or is of another program or a newer version.
    """
    if not path.exists():
        raise MissingInput(
            "No model", f"'{path}' does not exist", "name a checkpoint or run folder"
        )
    folds = (
        sorted(path.glob("fold-*"), key=lambda p: (len(p.name), p.name)) if path.is_dir() else []
    )
    read = [_read(folder) for folder in (folds or [path])]
    first = read[0][0]
    for folder, (recipe, _) in zip(folds, read, strict=False):
        if _answers(recipe) != _answers(first):
            raise DataError(
                "The folds are of different runs",
                f"'{folder}' and '{folds[0]}' have other shapes or targets",
                "name one checkpoint, or train all folds again",
            )
    chosen = choose_attention(device, choose_device(device), first.shape, guard)
    return [_model(recipe, content, chosen) for recipe, content in read]


def _answers(recipe: Recipe) -> tuple[object, ...]:
    """Return the facts that models need to have in common to answer together."""
    target = recipe.target
    return recipe.shape, target and (target.column, target.classes, target.quantiles)


def _read(path: Path) -> tuple[Recipe, dict[str, Any]]:
    folder = path / "checkpoints"
    name = "best.ckpt" if (folder / "best.ckpt").exists() else "last.ckpt"
    return checkpoints.read(checkpoints.find(path, name))


def _model(recipe: Recipe, content: dict[str, Any], chosen: Guarded) -> Model:
    network = recipe.network(chosen.backends)
    checkpoints.load_weights(network, content)
    return Model(recipe, network, chosen.record)


def load_samples(input: TableOptions, recipe: Recipe) -> Study:
    """Read the table that a model is asked about; shallow samples are kept and named."""
    study = load_study(input, max_bp=recipe.shape.max_bp)
    few = list(shallow(study, recipe.plan.rarefy_depth))
    if few:
        warn(
            f"Samples with fewer than the model's {recipe.plan.rarefy_depth} reads are read whole: "
            f"{first_few(few)}."
        )
    return study


def read_samples(
    model: Model, study: Study, batch_size: int, device: torch.device, passes: int = 1
) -> list[Readout]:
    """Read every sample of a study once for each rarefaction."""
    encoder = model.network if isinstance(model.network, Encoder) else model.network.encoder
    remembered_FD = remember_asvs(encoder, study, device)
    rows = np.arange(len(study.table.sample_ids))
    plan = reading_plan(model.recipe.plan)
    return [
        read_out(model.network, study, plan, rows, batch_size, device, remembered_FD, number)
        for number in range(passes)
    ]


def answer(
    models: list[Model], study: Study, batch_size: int, device: torch.device, passes: int
) -> npt.NDArray[np.float64]:
    """Answers [models x passes, N, C] of predictors, in the target's units or as probabilities.

    Raises:
        DataError: a model was pretrained only and has no target.
    """
    answers = []
    for model in models:
        target = model.recipe.target
        if target is None:
            raise DataError(
                "The model predicts nothing yet", "it was only pretrained", "use `aam train` first"
            )
        for found in read_samples(model, study, batch_size, device, passes):
            assert found.outputs_NC is not None
            answers.append(target.answer(found.outputs_NC))
    if len(models) > 1:
        say(f"Predictions are the mean of {len(models)} models, one of each fold.")
    return np.stack(answers)
