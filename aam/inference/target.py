"""Target of a predictor: encoding of labels, and decoding of outputs to predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aam.contract.options.field import INSIDE_ONE, ZERO_OR_MORE
from aam.contract.options.training import LossType
from aam.data.target_transforms import UNLIMITED, OutputRange, TargetTransform


@dataclass(frozen=True)
class Target:
    """Metadata column to predict.

    Attributes:
        column: name of the metadata column.
        classes: names of the categories; empty for a number.
        class_weights: weight of each category in the loss; empty for equal weights.
        transform: transform of a number; None for a category.
        loss_type: loss of a number, on the transformed scale.
        quantiles: levels predicted by the quantile loss, rising; empty otherwise.
        over_penalty, under_penalty: weights of errors above and below in the asymmetric loss.
        range: range of the predictions of a number, in its units.
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
        """Encode labels for the loss.

        Args:
            values: float64 [B], numbers in the units of the target, or class codes.

        Returns:
            float32 [B], transformed numbers, or int64 [B], codes.
        """
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

    def decode(self, outputs_BC: Tensor) -> npt.NDArray[np.float64]:
        """Return predictions: class probabilities, or numbers in the units of the target.

        Args:
            outputs_BC: outputs of the network, of any type and device.

        Returns:
            float64 [B, C]; rows of classes have the sum 1, those of quantiles ascend.

        >>> target = Target("diet", ("carnivore", "herbivore"))
        >>> target.decode(torch.zeros(1, 2)).tolist()
        [[0.5, 0.5]]
        """
        outputs_BC = outputs_BC.detach().cpu().double()
        if self.classes:
            probabilities_BC: npt.NDArray[np.float64] = outputs_BC.softmax(dim=-1).numpy()
            return probabilities_BC
        assert self.transform is not None
        if self.quantiles:
            # Quantiles do not cross: sorting never increases the pinball loss (Chernozhukov,
            # Fernández-Val and Galichon 2010).
            outputs_BC = outputs_BC.sort(dim=-1).values
        numbers_BC: npt.NDArray[np.float64] = outputs_BC.numpy()
        return self.range.clip(self.transform.undo(numbers_BC))

    def point_predictions(self, predictions_BC: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return one value per sample: most probable class code, number, or middle quantile."""
        if self.classes:
            codes_B: npt.NDArray[np.float64] = predictions_BC.argmax(axis=-1).astype(np.float64)
            return codes_B
        return predictions_BC[:, self.middle]

    def quantile_columns(
        self, predictions_BC: npt.NDArray[np.float64]
    ) -> dict[str, npt.NDArray[np.float64]]:
        """Return the columns q_<quantile>; nothing without the quantile loss."""
        return {f"q_{q:g}": predictions_BC[:, i] for i, q in enumerate(self.quantiles)}
