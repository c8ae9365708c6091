"""Embeddings tables: reading what `aam embed`, `aam pretrain` and `aam train` write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from aam.contract import run_record
from aam.contract.errors import AamError, DataError, first_few
from aam.contract.files import require
from aam.data.metadata import ID_HEADER


@dataclass(frozen=True)
class Embeddings:
    """Embeddings of samples.

    Attributes:
        path: file that they were read from.
        ids: N unique sample ids.
        values: float32 [N, D], one embedding of width D for each sample.
        model: SHA-256 of the checkpoint that made them; None if the run record is absent.
    """

    path: Path
    ids: npt.NDArray[np.str_]
    values: npt.NDArray[np.float32]
    model: str | None


def read_embeddings(path: Path) -> Embeddings:
    """Read an embeddings.tsv, such as that of `aam embed`.

    Raises:
        MissingInput: there is no such file.
        DataError: it is not such a table, has no samples, an id twice, or values that are not
            finite.
    """
    remedy = "give the embeddings.tsv of `aam embed`"
    try:
        header = pd.read_csv(require(path, "table of embeddings"), sep="\t", nrows=0).columns
        types: dict[str, Any] = {**dict.fromkeys(header, np.float32), header[0]: str}
        # pandas would take ids such as NA for missing values.
        table = pd.read_csv(path, sep="\t", dtype=types, keep_default_na=False)
    except (ValueError, IndexError) as error:
        raise DataError("Not a table of embeddings", f"'{path}', {error}", remedy) from error
    expected = [f"e{k}" for k in range(len(header) - 1)]
    if header[0] != ID_HEADER or list(header[1:]) != expected or not expected or table.empty:
        evidence = f"'{path}' has {len(table)} rows and the columns {first_few(header)}"
        raise DataError("Not a table of embeddings", evidence, remedy)
    ids, values = table[header[0]], table.iloc[:, 1:].to_numpy(np.float32)
    if ids.duplicated().any():
        evidence = f"{first_few(ids[ids.duplicated()].unique())} in '{path}'"
        raise DataError("Sample ids occur twice", evidence, "give each sample one row")
    if not np.isfinite(values).all():
        evidence = f"samples {first_few(ids[~np.isfinite(values).all(axis=1)])} in '{path}'"
        raise DataError("Embeddings that are not finite numbers", evidence, "embed them again")
    return Embeddings(path, ids.to_numpy(str), values, _model_of(path))


def _model_of(path: Path) -> str | None:
    """Return the SHA-256 of the model in the run record of a table of embeddings."""
    for record in (run_record.beside(path), path.with_name("embed.run.json")):
        try:
            return str(run_record.read(record)["inputs"]["--model"]["sha256"])
        except (AamError, KeyError):
            continue
    return None
