"""The tables of a run folder: predictions and embeddings, written whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from aam.contract.errors import NotFinite, first_few
from aam.contract.files import atomic_write
from aam.data.metadata import ID_HEADER
from aam.training.target import Target


def prediction_table(
    target: Target,
    sample_ids: Sequence[str],
    answers_BC: npt.NDArray[np.float64],
    asked_B: npt.NDArray[np.float64] | None = None,
) -> pd.DataFrame:
    """Lay answers out: sample-id, [actual,] predicted, and p_<class> or q_<quantile> columns.

    Raises:
        NotFinite: an answer is NaN or infinite.
    """
    require_finite("predictions", sample_ids, answers_BC)
    predicted_B = target.point_predictions(answers_BC)
    columns: dict[str, object] = {ID_HEADER: list(sample_ids)}
    if asked_B is not None:
        columns["actual"] = _shown(target, asked_B)
    columns["predicted"] = _shown(target, predicted_B)
    names = [f"p_{name}" for name in target.classes] or [f"q_{q:g}" for q in target.quantiles]
    columns |= {name: answers_BC[:, i] for i, name in enumerate(names)}
    return pd.DataFrame(columns)


def require_finite(
    what: str, sample_ids: Sequence[str], values_BC: npt.NDArray[np.floating[Any]]
) -> None:
    """Refuse values that a table would show as empty cells.

    Raises:
        NotFinite: names the samples that have NaN or infinite values.
    """
    wrong = np.flatnonzero(~np.isfinite(values_BC).all(axis=1))
    if len(wrong):
        raise NotFinite(
            f"The model's {what} are not finite numbers",
            f"samples {first_few(sample_ids[row] for row in wrong.tolist())} of {len(sample_ids)}",
            "run `aam check` on this device, or use another checkpoint",
        )


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a tab-separated file; numbers have all their digits."""
    with atomic_write(path) as temporary:
        table.to_csv(temporary, sep="\t", index=False)


def write_embeddings(
    path: Path, sample_ids: Sequence[str], embeddings_ND: npt.NDArray[np.float32]
) -> None:
    """Write sample-id, e0, e1, ... ."""
    table = pd.DataFrame(embeddings_ND, columns=[f"e{i}" for i in range(embeddings_ND.shape[1])])
    table.insert(0, ID_HEADER, list(sample_ids))
    write_table(path, table)


def _shown(target: Target, values: npt.NDArray[np.float64]) -> object:
    return [target.classes[int(code)] for code in values] if target.classes else values
