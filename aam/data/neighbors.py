"""Nearest neighbors of samples by their embedding, and their agreement with UniFrac.

The search compares all pairs.

Shape suffixes: Q query samples, K neighbors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr
from sklearn.neighbors import NearestNeighbors

from aam.contract.errors import DataError
from aam.data.distances import DistanceMatrix
from aam.data.embeddings import Embeddings
from aam.data.metadata import ID_HEADER


def nearest(query: Embeddings, collection: Embeddings, number: int) -> pd.DataFrame:
    """Find the nearest samples of a collection by the Euclidean distance of embeddings.

    Args:
        query: samples whose neighbors are found; a sample is not its own neighbor.
        collection: embeddings by the same model.
        number: neighbors of each sample.

    Returns:
        Columns sample-id, rank (from 1), neighbor-id and distance; K rows for each query sample.

    Raises:
        DataError: the embeddings are of different models, or the collection is too small.
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
    # One more than requested, since a sample of the collection is nearest to itself.
    search = NearestNeighbors(n_neighbors=number + 1, algorithm="brute").fit(collection.values)
    distances_QK, rows_QK = search.kneighbors(query.values)
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
        samples: number of samples that both have.
        correlation: Spearman's correlation of the distances of all pairs, -1 to 1.
        recall: fraction of the K nearest samples by UniFrac that are among those by embedding.
        chance: the same fraction for K random samples.
    """

    samples: int
    correlation: float
    recall: float
    chance: float


def agreement(embeddings: Embeddings, unifrac: DistanceMatrix, number: int) -> Agreement:
    """Compare the distances of embeddings with a UniFrac matrix of some of the samples.

    Args:
        embeddings: embeddings of a collection of samples.
        unifrac: UniFrac distances; samples that are not in both are left out.
        number: number of neighbors K, at least 1.

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
        # Stable: equal distances, as of equal samples, are ordered alike in both matrices.
        near.append(np.argsort(distances_NN, axis=1, kind="stable")[:, :number])
    recall = np.mean([len(set(a) & set(b)) / number for a, b in zip(*near, strict=True)])
    chance = number / (len(values) - 1)
    return Agreement(len(values), float(correlation), float(recall), chance)
