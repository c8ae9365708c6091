"""What is predicted: its transform or classes, its loss, and how outputs become answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from aam.contract.options.field import INSIDE_ONE, ZERO_OR_MORE
from aam.model.shape import at_least_fp32
from aam.training.losses import LossTerm
from aam.training.target_transforms import TargetTransform

LossType = Literal["mse", "mae", "huber", "quantile", "asymmetric"]


@dataclass(frozen=True)
class Target:
    """A column to predict.

    Attributes:
        column: its name in the metadata.
        classes: names of the categories; empty for a number.
        class_weights: weight of each category in the loss; empty for equal weights.
        transform: of a number; None for a category.
        loss_type: loss of a number, on the transformed scale.
        quantiles: levels predicted by the quantile loss, rising; empty otherwise.
        over_penalty, under_penalty: weights of errors above and below in the asymmetric loss.
    """

    column: str
    classes: tuple[str, ...] = ()
    class_weights: tuple[Annotated[float, ZERO_OR_MORE], ...] = ()
    transform: TargetTransform | None = None
    loss_type: LossType = "huber"
    quantiles: tuple[Annotated[float, INSIDE_ONE], ...] = ()
    over_penalty: Annotated[float, ZERO_OR_MORE] = 1.0
    under_penalty: Annotated[float, ZERO_OR_MORE] = 1.0

    @property
    def outputs(self) -> int:
        """Numbers that the network gives for a sample."""
        return len(self.classes) or len(self.quantiles) or 1

    def encode(self, values: npt.NDArray[np.float64]) -> Tensor:
        """Turn values (numbers in the target's units, or class codes) into what the loss takes."""
        if self.classes:
            return torch.from_numpy(values.astype(np.int64))
        assert self.transform is not None
        return torch.from_numpy(self.transform.apply(values).astype(np.float32))

    def initial_outputs(self, values: npt.NDArray[np.float64]) -> Tensor:
        """Outputs [C] that are best without knowing the sample: mean, quantiles or log shares."""
        encoded = self.encode(values)
        if self.classes:
            share = torch.bincount(encoded, minlength=len(self.classes)) / len(encoded)
            return share.log()
        if self.quantiles:
            return encoded.quantile(torch.tensor(self.quantiles))
        return encoded.mean()[None]

    def loss(self, outputs_BC: Tensor, target_B: Tensor) -> LossTerm:
        """Loss summed over a batch, and the number (with class weights: the weight) of samples."""
        outputs_BC = at_least_fp32(outputs_BC)
        number = outputs_BC.new_tensor(len(target_B))
        if not self.classes:
            # The sum over no samples at all is 0, while their mean is none.
            mean = self._number_loss(outputs_BC, target_B) if len(target_B) else outputs_BC.sum()
            return LossTerm(mean * number, number)
        if not self.class_weights:
            return LossTerm(F.cross_entropy(outputs_BC, target_B, reduction="sum"), number)
        weights_C = outputs_BC.new_tensor(self.class_weights)
        total = F.cross_entropy(outputs_BC, target_B, weights_C, reduction="sum")
        return LossTerm(total, weights_C[target_B].sum())

    def _number_loss(self, outputs_BC: Tensor, target_B: Tensor) -> Tensor:
        """Mean loss of the numbers of a batch, a scalar."""
        error_BC = outputs_BC - target_B[:, None]
        if self.loss_type == "mse":
            return error_BC.square().mean()
        if self.loss_type == "mae":
            return error_BC.abs().mean()
        if self.loss_type == "huber":
            return F.smooth_l1_loss(error_BC, torch.zeros_like(error_BC))
        if self.loss_type == "quantile":
            # Pinball loss (Koenker and Bassett 1978): level q weighs errors below by q.
            level_C = outputs_BC.new_tensor(self.quantiles)
            return torch.maximum(-level_C * error_BC, (1 - level_C) * error_BC).mean()
        return torch.where(
            error_BC > 0, self.over_penalty * error_BC, -self.under_penalty * error_BC
        ).mean()

    def decode(self, outputs_BC: Tensor) -> npt.NDArray[np.float64]:
        """Answers [B, C]: class probabilities, or numbers in the target's units."""
        outputs_BC = outputs_BC.detach().cpu().double()
        if self.classes:
            chance_BC: npt.NDArray[np.float64] = outputs_BC.softmax(dim=-1).numpy()
            return chance_BC
        assert self.transform is not None
        if self.quantiles:
            # Quantiles do not cross: sorting never increases the pinball loss.
            outputs_BC = outputs_BC.sort(dim=-1).values
        numbers_BC: npt.NDArray[np.float64] = outputs_BC.numpy()
        return self.transform.undo(numbers_BC)

    def point_predictions(self, answers_BC: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """One value a sample: the likeliest class's code, the number, or the middle quantile."""
        if self.classes:
            return answers_BC.argmax(axis=-1).astype(np.float64)
        middle = min(
            range(len(self.quantiles)), key=lambda i: abs(self.quantiles[i] - 0.5), default=0
        )
        return answers_BC[:, middle]
