"""Does a network join kernel and forest where it helps, and only there?

    python -m benchmarks.network_weight [--runs 300]

Simulated predictions of 600 training samples with a number or two classes: kernel and forest have
noise of their own; the network predicts a part of the samples, its validation samples. It knows
nothing, as much with noise of twice the size, as much as the others, or more. The weights of
`choose_weights` are applied to 2,000 new samples. Rows have the part of the runs in which the
network joins, its mean weight, and the R² (of classes of the squared errors, after the best scale)
less that without it, beside the weight 1 / 3 in any case.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import numpy as np

from aam.arrays import F64
from aam.evaluation.ensemble import choose_weights, weighted_mean
from aam.evaluation.labels import Labels

NEW = 2_000
NOISE = {"nothing": None, "behind": 2.0, "equal": 1.0, "ahead": 0.6}
OTHERS = ("kernel", "forest")


def skill(predictions: Mapping[str, F64], weights: Mapping[str, float], y_NC: F64) -> float:
    """Return the part of the squares that the mean with the best scale explains."""
    mean_NC = weighted_mean(predictions, weights)
    mean_NC = mean_NC - mean_NC.mean(axis=0)
    y_NC = y_NC - y_NC.mean(axis=0)
    scale = (mean_NC * y_NC).sum() / np.square(mean_NC).sum()
    return float(1 - np.square(scale * mean_NC - y_NC).sum() / np.square(y_NC).sum())


def run(
    rng: np.random.Generator, noise: float | None, classes: bool, validation: int
) -> tuple[float, float, float]:
    """Return the weight of the network, and the gains of it and of the weight 1 / 3."""
    number = 600
    y_N = rng.normal(size=number + NEW)
    if classes:
        y_N = (y_N > 0).astype(np.float64)
    signal_N = (y_N - y_N.mean()) / y_N.std()
    sizes = {"kernel": 1.0, "forest": 1.1, "network": noise}
    predictions: dict[str, F64] = {}
    for name, size in sizes.items():
        error_N = rng.normal(size=len(y_N))
        value_N = error_N if size is None else signal_N + size * error_N
        value_N = value_N / (1 + (1.0 if size is None else size**2))  # about the best scale
        if classes:
            half_N = 0.5 * value_N.clip(-1, 1)
            predictions[name] = np.stack([0.5 - half_N, 0.5 + half_N], axis=1)
        else:
            predictions[name] = value_N[:, None]
    labels = Labels.of(y_N[:number], ("a", "b") if classes else (), None)
    left_out = {name: each_NC[:number].copy() for name, each_NC in predictions.items()}
    left_out["network"][rng.permutation(number)[validation:]] = np.nan
    new = {name: each_NC[number:] for name, each_NC in predictions.items()}
    y_NC = np.eye(2)[y_N[number:].astype(np.int64)] if classes else y_N[number:, None]
    weights = choose_weights(left_out, labels)
    without = choose_weights({name: left_out[name] for name in OTHERS}, labels)
    third = {name: 2 / 3 * weight for name, weight in without.items()} | {"network": 1 / 3}
    alone = skill({name: new[name] for name in OTHERS}, without, y_NC)
    return weights["network"], skill(new, weights, y_NC) - alone, skill(new, third, y_NC) - alone


def main() -> None:
    """Print a row for each target, number of validation samples and network."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=300)
    runs = parser.parse_args().runs
    print("| target | validation samples | network | joins | mean weight | gain | with 1 / 3 |")
    print("|---|---|---|---|---|---|---|")
    for classes in (False, True):
        for validation in (30, 120):
            for name, noise in NOISE.items():
                rng = np.random.default_rng([classes, validation])
                results = np.array([run(rng, noise, classes, validation) for _ in range(runs)])
                weight, gain, third = results.mean(axis=0)
                row = ["class" if classes else "number", str(validation), name]
                row += [f"{(results[:, 0] > 0).mean():.2f}", f"{weight:.2f}"]
                print(f"| {' | '.join([*row, f'{gain:+.3f}', f'{third:+.3f}'])} |", flush=True)


if __name__ == "__main__":
    main()
