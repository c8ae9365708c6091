"""Predictions of held-out samples as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from aam.data.metadata import ID_HEADER
from aam.members.base import F64, Labels
from aam.members.cross_validation import HeldOut
from aam.training.target_transforms import OutputRange

if TYPE_CHECKING:
    import pandas as pd


def held_out_table(
    sample_ids: Sequence[str],
    held: HeldOut,
    labels: Labels,
    predictions_MC: F64,
    columns: Mapping[str, object] | None = None,
) -> pd.DataFrame:
    """Build the table sample-id, fold, split, actual, predicted, p_<class>, and further columns.

    Args:
        sample_ids: of all N samples.
        held: the samples of the table.
        labels: of all N samples.
        predictions_MC: numbers or class probabilities.
        columns: further columns of M values.
    """
    import pandas as pd

    actual = labels.values[held.rows]
    content: dict[str, object] = {
        ID_HEADER: [sample_ids[row] for row in held.rows],
        "fold": held.folds,
        "split": held.part,
        "actual": [labels.classes[int(code)] for code in actual] if labels.classes else actual,
    }
    return pd.DataFrame(
        content | prediction_columns(predictions_MC, labels.classes) | dict(columns or {})
    )


def prediction_columns(
    predictions_NC: F64, classes: Sequence[str], prefix: str = ""
) -> dict[str, object]:
    """Return the columns predicted and p_<class>, with a prefix before their names."""
    if not classes:
        return {f"{prefix}predicted": predictions_NC[:, 0]}
    predicted = [classes[code] for code in np.argmax(predictions_NC, axis=1)]
    probabilities = {f"{prefix}p_{name}": predictions_NC[:, c] for c, name in enumerate(classes)}
    return {f"{prefix}predicted": predicted, **probabilities}


def interval_columns(
    predictions_NC: F64, half_widths_N: F64 | None, outputs: OutputRange
) -> dict[str, object]:
    """Return the limits of the prediction intervals; nothing if there are none."""
    if half_widths_N is None or not np.isfinite(half_widths_N).all():
        return {}
    return {
        "lower": outputs.clip(predictions_NC[:, 0] - half_widths_N),
        "upper": outputs.clip(predictions_NC[:, 0] + half_widths_N),
    }
