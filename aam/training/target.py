"""Target of a predictor: label encoding, loss, and decoding of outputs to predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from aam.contract.options.field import INSIDE_ONE, ZERO_OR_MORE
from aam.contract.options.training import LossType
from aam.model.shape import at_least_fp32
from aam.training.losses import LossTerm
from aam.training.target_transforms import UNLIMITED, OutputRange, TargetTransform


class NumericLoss(Protocol):
    """Loss of a numeric target."""

    def __call__(self, error_BC: Tensor, target: Target) -> Tensor:
        """Return the mean loss of a batch, a scalar.

        Args:
            error_BC: outputs minus labels on the transformed scale, float32 or float64; a column
                for each quantile, or one.
            target: with the parameters of the loss.
        """
        ...


def _mse(error_BC: Tensor, target: Target) -> Tensor:
    return error_BC.square().mean()


def _mae(error_BC: Tensor, target: Target) -> Tensor:
    return error_BC.abs().mean()


def _huber(error_BC: Tensor, target: Target) -> Tensor:
    return F.smooth_l1_loss(error_BC, torch.zeros_like(error_BC))


def _quantile(error_BC: Tensor, target: Target) -> Tensor:
    """Pinball loss (Koenker and Bassett 1978): level q weighs errors below by q."""
    level_C = error_BC.new_tensor(target.quantiles)
    return torch.maximum(-level_C * error_BC, (1 - level_C) * error_BC).mean()


def _asymmetric(error_BC: Tensor, target: Target) -> Tensor:
    return torch.where(
        error_BC > 0, target.over_penalty * error_BC, -target.under_penalty * error_BC
    ).mean()


LOSSES: dict[LossType, NumericLoss] = {
    "mse": _mse,
    "mae": _mae,
    "huber": _huber,
    "quantile": _quantile,
    "asymmetric": _asymmetric,
}
"""Registry of --loss-type; the option lists the same names (`LossType`)."""


@dataclass(frozen=True)
class Target:
    """Metadata column to predict.

    Attributes:
        classes: names of the categories; empty for a number.
        class_weights: weight of each category in the loss; empty for equal weights.
        transform: of a number; None for a category.
        loss_type: loss of a number, on the transformed scale.
        quantiles: levels predicted by the quantile loss, rising; empty otherwise.
        over_penalty, under_penalty: weights of errors above and below in the asymmetric loss.
        range: of the predictions of a number, in its units.
        levels: ordered categories, the lowest first, whose ranks are the number; else empty.
    """

    column: str
    classes: tuple[str, ...] = ()
    class_weights: tuple[Annotated[float, ZERO_OR_MORE], ...] = ()
    transform: TargetTransform | None = None
    loss_type: LossType = "huber"
    quantiles: tuple[Annotated[float, INSIDE_ONE], ...] = ()
    over_penalty: Annotated[float, ZERO_OR_MORE] = 1.0
    under_penalty: Annotated[float, ZERO_OR_MORE] = 1.0
    range: OutputRange = UNLIMITED
    levels: tuple[str, ...] = ()

    @property
    def outputs(self) -> int:
        """Number of network outputs per sample."""
        return len(self.classes) or len(self.quantiles) or 1

    @property
    def middle(self) -> int:
        """Index of the output that predicts a number: of several quantiles the nearest to 0.5."""
        levels = self.quantiles
        return min(range(len(levels)), key=lambda k: abs(levels[k] - 0.5), default=0)

    def encode(self, values: npt.NDArray[np.float64]) -> Tensor:
        """Encode labels (numbers in the units of the target, or class codes) for the loss."""
        if self.classes:
            return torch.from_numpy(values.astype(np.int64))
        assert self.transform is not None
        return torch.from_numpy(self.transform.apply(values).astype(np.float32))

    def initial_outputs(self, values: npt.NDArray[np.float64]) -> Tensor:
        """Return the best constant outputs [C]: mean, quantiles or log class frequencies."""
        encoded = self.encode(values)
        if self.classes:
            frequencies = torch.bincount(encoded, minlength=len(self.classes)) / len(encoded)
            return frequencies.log()
        if self.quantiles:
            return encoded.quantile(torch.tensor(self.quantiles))
        return encoded.mean()[None]

    def loss(self, outputs_BC: Tensor, target_B: Tensor) -> LossTerm:
        """Return the loss summed over a batch, and the number or total weight of its samples."""
        outputs_BC = at_least_fp32(outputs_BC)
        number = outputs_BC.new_tensor(len(target_B))
        if not self.classes:
            # The sum over no samples is 0; their mean is undefined.
            mean = (
                LOSSES[self.loss_type](outputs_BC - target_B[:, None], self)
                if len(target_B)
                else outputs_BC.sum()
            )
            return LossTerm(mean * number, number)
        if not self.class_weights:
            return LossTerm(F.cross_entropy(outputs_BC, target_B, reduction="sum"), number)
        weights_C = outputs_BC.new_tensor(self.class_weights)
        total = F.cross_entropy(outputs_BC, target_B, weights_C, reduction="sum")
        return LossTerm(total, weights_C[target_B].sum())

    def decode(self, outputs_BC: Tensor) -> npt.NDArray[np.float64]:
        """Return predictions [B, C]: class probabilities, or numbers in the units of the target."""
        outputs_BC = outputs_BC.detach().cpu().double()
        if self.classes:
            probabilities_BC: npt.NDArray[np.float64] = outputs_BC.softmax(dim=-1).numpy()
            return probabilities_BC
        assert self.transform is not None
        if self.quantiles:
            # Quantiles do not cross: sorting never increases the pinball loss.
            outputs_BC = outputs_BC.sort(dim=-1).values
        numbers_BC: npt.NDArray[np.float64] = outputs_BC.numpy()
        return self.range.clip(self.transform.undo(numbers_BC))

    def point_predictions(self, predictions_BC: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return one value per sample: most probable class code, number, or middle quantile."""
        if self.classes:
            return predictions_BC.argmax(axis=-1).astype(np.float64)
        return predictions_BC[:, self.middle]
