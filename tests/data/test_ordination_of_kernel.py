"""Principal coordinates of samples that are alike."""

from __future__ import annotations

import numpy as np
import pytest

from aam.data.distances import coordinates_of_kernel


@pytest.mark.parametrize("samples", [3, 12, 40])
@pytest.mark.parametrize("directions", [0, 1, 2])
def test_samples_that_differ_in_few_directions_have_coordinates(
    samples: int, directions: int
) -> None:
    """ARPACK finds no start in a kernel of zeros, or in one direction alone."""
    features = np.ones((samples, 3))
    features[:, :directions] = np.random.default_rng(0).normal(size=(samples, directions))
    coordinates, explained = coordinates_of_kernel(features @ features.T)
    assert np.isfinite(coordinates).all() and coordinates.shape == (samples, 2)
    assert explained.sum() == pytest.approx(min(1, directions))
