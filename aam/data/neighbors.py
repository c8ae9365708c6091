"""Nearest neighbors of samples by their embedding, and their agreement with UniFrac.

The exact search compares all pairs. The approximate one follows a graph of the collection (HNSW,
Malkov and Yashunin, TPAMI 2020), and is chosen by the user: results do not depend on whether FAISS
is installed.

Shape suffixes: Q query samples, C samples of the collection, K neighbors, D width of an embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr
from sklearn.neighbors import NearestNeighbors

from aam.contract.errors import DataError
from aam.contract.installation import not_installed
from aam.contract.options.commands.use import IndexName
from aam.data.distances import DistanceMatrix
from aam.data.embeddings import Embeddings
from aam.data.metadata import ID_HEADER

HNSW_LINKS = 32
"""Links of a sample in the graph of HNSW."""
HNSW_CANDIDATES = 128
"""Least candidates that a search in the graph keeps."""

Floats: TypeAlias = npt.NDArray[np.float32]
Search: TypeAlias = Callable[[Floats, Floats, int], tuple[Floats, npt.NDArray[np.int64]]]
"""Collection [C, D], queries [Q, D] and K -> distances and rows [Q, K], nearest first."""


def _exact(
    collection_CD: Floats, query_QD: Floats, number: int
) -> tuple[Floats, npt.NDArray[np.int64]]:
    search = NearestNeighbors(n_neighbors=number, algorithm="brute").fit(collection_CD)
    distances_QK, rows_QK = search.kneighbors(query_QD)
    return distances_QK, rows_QK


def _hnsw(
    collection_CD: Floats, query_QD: Floats, number: int
) -> tuple[Floats, npt.NDArray[np.int64]]:
    try:
        import faiss
    except ModuleNotFoundError as error:
        raise not_installed(
            "--index hnsw needs FAISS", error, "faiss", "use --index exact"
        ) from error
    index = faiss.IndexHNSWFlat(collection_CD.shape[1], HNSW_LINKS)
    index.add(collection_CD)
    index.hnsw.efSearch = max(HNSW_CANDIDATES, 2 * number)
    squares_QK, rows_QK = index.search(query_QD, number)
    distances_QK = np.sqrt(squares_QK)
    # Parts of the graph are out of reach where many embeddings are equal; FAISS marks this by -1.
    short_Q = (rows_QK < 0).any(axis=1)
    if short_Q.any():
        distances_QK[short_Q], rows_QK[short_Q] = _exact(collection_CD, query_QD[short_Q], number)
    return distances_QK, rows_QK


INDEXES: dict[IndexName, Search] = {"exact": _exact, "hnsw": _hnsw}
"""Registry of --index; the option lists the same names (`IndexName`)."""


def nearest(
    query: Embeddings, collection: Embeddings, number: int, index: IndexName = "exact"
) -> pd.DataFrame:
    """Find the nearest samples of a collection by the Euclidean distance of embeddings.

    Args:
        query: samples whose neighbors are found; a sample is not its own neighbor.
        collection: embeddings by the same model.
        number: neighbors of each sample.
        index: search, of `INDEXES`; "hnsw" finds most of the nearest, not all.

    Returns:
        Columns sample-id, rank (from 1), neighbor-id and distance; K rows for each query sample.

    Raises:
        DataError: the embeddings are of different models, or the collection is too small.
        Unavailable: the package of the search is not installed.
    """
    if query.values.shape[1] != collection.values.shape[1] or (
        query.model is not None and collection.model is not None and query.model != collection.model
    ):
        raise DataError(
            "The embeddings are of different models",
            f"'{query.path}' and '{collection.path}'",
            "embed both tables with one model",
        )
    if number >= len(collection.ids):
        evidence = f"--neighbors {number} of the {len(collection.ids)} in '{collection.path}'"
        raise DataError("The collection is too small", evidence, "ask for fewer neighbors")
    distances_QK, rows_QK = INDEXES[index](collection.values, query.values, number + 1)
    itself_QK = collection.ids[rows_QK] == query.ids[:, None]
    # Without the sample itself; where it is not among them, without the farthest.
    itself_QK[~itself_QK.any(axis=1), -1] = True
    shape = (len(query.ids), number)
    return pd.DataFrame(
        {
            ID_HEADER: np.repeat(query.ids, number),
            "rank": np.tile(np.arange(1, number + 1), len(query.ids)),
            "neighbor-id": collection.ids[rows_QK[~itself_QK].reshape(shape)].ravel(),
            "distance": distances_QK[~itself_QK],
        }
    )


@dataclass(frozen=True)
class Agreement:
    """Agreement of the distances of embeddings with UniFrac.

    Attributes:
        samples: that both have.
        correlation: Spearman's, of the distances of all pairs.
        recall: fraction of the K nearest samples by UniFrac that are among those by embedding.
        chance: the same fraction for K random samples.
    """

    samples: int
    correlation: float
    recall: float
    chance: float


def agreement(embeddings: Embeddings, unifrac: DistanceMatrix, number: int) -> Agreement:
    """Compare the distances of embeddings with a UniFrac matrix of some of the samples.

    Raises:
        DataError: fewer than `number` + 2 samples are in both.
    """
    rows = pd.Index(embeddings.ids).get_indexer(list(unifrac.ids))
    known = rows >= 0
    if known.sum() < number + 2:
        evidence = f"{known.sum()} samples are in '{embeddings.path}' and in the matrix"
        raise DataError("Too few samples to compare with UniFrac", evidence, "use a larger matrix")
    expected_NN = unifrac.values[np.ix_(known, known)]
    values = embeddings.values[rows[known]].astype(np.float64)
    found_NN = cdist(values, values)
    upper = np.triu_indices(len(values), 1)
    correlation = spearmanr(found_NN[upper], expected_NN[upper]).statistic
    near = []
    for distances_NN in (found_NN, np.array(expected_NN, dtype=np.float64)):
        np.fill_diagonal(distances_NN, np.inf)
        near.append(np.argsort(distances_NN, axis=1, kind="stable")[:, :number])
    recall = np.mean([len(set(a) & set(b)) / number for a, b in zip(*near, strict=True)])
    chance = number / (len(values) - 1)
    return Agreement(len(values), float(correlation), float(recall), chance)
