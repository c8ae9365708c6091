"""Random trees and tables for tests, within what the reference implementations accept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse

POSITIVE = ("1e-3", "0.25", "0.5", "1", "3.75")
LENGTHS = st.sampled_from(["0", "0.0", *POSITIVE])


@dataclass(frozen=True)
class Case:
    """A tree, some of its tips in any order, and reads of them."""

    newick: str
    features: list[str]
    counts: NDArray[np.int32]

    @property
    def table(self) -> sparse.csr_array:
        return sparse.csr_array(self.counts)


@st.composite
def newicks(draw: st.DrawFn, most_tips: int = 9) -> tuple[str, list[str]]:
    """Draw a rooted tree with polytomies, unary nodes, zero lengths, stems and root lengths."""
    tips = [f"t_{n}" for n in range(draw(st.integers(2, most_tips)))]
    # Of several tips with lengths of 0 alone a tree is refused.
    nodes = [f"{tip}:{draw(st.sampled_from(POSITIVE))}" for tip in tips[1:]]
    nodes.insert(0, f"{tips[0]}:{draw(LENGTHS)}")
    while len(nodes) > 1:
        nodes = draw(st.permutations(nodes))
        width = min(draw(st.integers(2, 3)), len(nodes) if len(nodes) < 3 else len(nodes) - 1)
        joined = f"({','.join(nodes[:width])})"
        is_root = width == len(nodes)
        if is_root and draw(st.booleans()):
            joined += draw(st.sampled_from(["", "root"]))  # No length on the root.
        else:
            joined += f"n:{draw(LENGTHS)}"
            for _ in range(draw(st.integers(0, 2))):
                joined = f"({joined}):{draw(LENGTHS)}"  # A unary node above.
        nodes = [joined, *nodes[width:]]
    return f"{nodes[0]};", tips


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a tree and a table of some of its tips, empty samples included."""
    newick, tips = draw(newicks())
    features = draw(st.permutations(tips))[: draw(st.integers(1, len(tips)))]
    samples = draw(st.integers(2, 6))
    size = samples * len(features)
    reads = draw(st.lists(st.sampled_from([0, 0, 1, 2, 30]), min_size=size, max_size=size))
    counts = np.array(reads, dtype=np.int32).reshape(samples, len(features))
    return Case(newick, list(features), counts)


def random_case(tips: int, samples: int, richness: int, seed: int) -> Case:
    """Make a bigger case than hypothesis would draw: a random binary tree under a stem."""
    rng = np.random.default_rng(seed)
    names = [f"t{n}" for n in range(tips)]
    nodes = [f"{name}:{rng.random():.5f}" for name in names]
    while len(nodes) > 1:
        one = nodes.pop(rng.integers(len(nodes)))
        other = rng.integers(len(nodes))
        nodes[other] = f"({one},{nodes[other]}):{rng.random():.5f}"
    counts: NDArray[Any] = np.zeros((samples, tips), dtype=np.int32)
    for row in counts:
        row[rng.choice(tips, richness, replace=False)] = rng.integers(1, 100, richness)
    return Case(f"({nodes[0]});", names, counts)
